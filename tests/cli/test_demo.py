"""The demo from end to end, as `make demo` runs it: the real daemon in a process of its own."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from gpuplugin.cli.demo_daemon import DemoDaemon
from gpuplugin.errors import DemoFailed

DEMO = [sys.executable, "-m", "gpuplugin", "demo"]


@pytest.fixture
def folder():
    """Where temporary files go, to be looked at afterwards. A short path, for sockets' paths are short."""
    with tempfile.TemporaryDirectory(prefix="gp-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def environment(folder):
    return {**os.environ, "TMPDIR": str(folder)}


def daemons_below(folder):
    """Processes that were started with a path in the folder."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                command = (process / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if str(folder) in command and "gpuplugin" in command:
                found.append(command)
    return found


def test_the_whole_demo(environment, folder):
    ran = subprocess.run(DEMO, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout + ran.stderr
    text = ran.stdout
    for line in (
        r"  8 NVIDIA H100 80GB HBM3, NV18 between every two",
        r"  NUMA node 0: GPU 0-1 \| GPU 2-3   NICs mlx5_0, mlx5_1",
        r"  nvidia\.com/gpu registered \d+ ms after its start, .*; kubelet counts 8 of 8 allocatable",
        r"  gets     GPU 0 on NUMA node 0; kubelet left 4 to choose from",
        r"  gets     GPU 2-3 on NUMA node 0; kubelet left 3 to choose from",
        r"  why      2 GPUs \(2-3\), one NVLink island \(NV18\), NUMA 0, NIC mlx5_1; GPUs 4-7 kept whole",
        r"  gets     GPU 4-7 on NUMA node 1",
        r"  CDI      \S+/gpu=GPU-\S+ and 3 more",
        r" +/dev/nvidia4 /dev/nvidia5 /dev/nvidia6 /dev/nvidia7 /dev/nvidia-uvm /dev/nvidiactl, \d+ files of .*",
        r"  refused  TopologyAffinityError: Resources cannot be allocated with Topology locality",
        r"  why      no NUMA node has 5 free GPUs \(node 0 has 4, node 1 has 4\)",
        r"  XID 79: GPU has fallen off the bus; restart the machine",
        r"  \d+ ms later kubelet counts 7 of 8 allocatable",
        r"  It answers again\. After 3 good probes, \d+ ms later, kubelet counts 8 of 8 allocatable",
        r"  registered again \d+ ms later; kubelet counts 8 of 8 allocatable",
        r"  ended \d+ ms later; its socket is gone",
    ):
        assert re.search(f"^{line}$", text, re.MULTILINE), f"{line}\n\n{text}"
    assert "\x1b" not in text
    assert len(text.splitlines()) <= 60
    assert list(folder.iterdir()) == []
    assert daemons_below(folder) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing(environment, folder, number):
    heeding = ["env", "--default-signal=INT", *DEMO]  # a shell has its background programs ignore it
    with subprocess.Popen(
        heeding, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, bufsize=1
    ) as demo:
        deadline = time.monotonic() + 60
        while not daemons_below(folder):
            assert demo.poll() is None, demo.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        demo.send_signal(number)
        _, errors = demo.communicate(timeout=30)
    assert demo.returncode != 0
    assert "Traceback" not in errors
    assert daemons_below(folder) == []
    assert list(folder.iterdir()) == []


async def test_a_daemon_that_ends_is_told_of_with_its_log(tmp_path):
    async with DemoDaemon("no-such-machine", tmp_path, {}) as daemon:
        with pytest.raises(DemoFailed) as failed:
            await daemon.during("registration", asyncio.Event().wait())
    assert failed.value.step == "registration"
    assert "the daemon ended with status 1" in str(failed.value)
    assert "no-such-machine" in failed.value.tail


async def test_what_does_not_come_in_time_is_told_of(tmp_path):
    async def too_slow():
        raise TimeoutError("8 healthy GPUs: not within 15 s")

    async with DemoDaemon("vm-flat", tmp_path, {"paths-kubelet": str(tmp_path)}) as daemon:
        with pytest.raises(DemoFailed, match="8 healthy GPUs: not within 15 s"):
            await daemon.during("health", too_slow())


async def test_the_shells_settings_are_not_the_demos(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUPLUGIN_NONSENSE", "1")
    monkeypatch.setenv("DEVICE_LIST_STRATEGY", "nonsense")
    monkeypatch.setenv("CONFIG_FILE", "/nonsense")
    async with DemoDaemon("vm-flat", tmp_path, {"paths-kubelet": str(tmp_path)}) as daemon:
        async with asyncio.timeout(30):
            # The log is another process's; what is refused is refused before this line of it.
            while daemon.when("starting") is None:
                await asyncio.sleep(0.02)


def test_what_failed_comes_after_the_daemons_log(cli, monkeypatch):
    async def fails(_):
        raise DemoFailed("registration", "not within 15 s", "info: starting\nwarning: not registered")

    monkeypatch.setattr("gpuplugin.cli.demo._Demo.run", fails)
    ran = cli("demo", "--machine", "vm-flat")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.splitlines() == [
        "info: starting",
        "warning: not registered",
        "gpuplugin: the demo stopped at: registration: not within 15 s; above is the end of the daemon's log",
    ]


def test_an_unknown_machine_is_one_line(cli):
    ran = cli("demo", "--machine", "nonsense")
    assert (ran.status, ran.out, ran.err.count("\n")) == (1, "", 1)
