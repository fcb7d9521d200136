"""`gpuplugin mps-control` as the process that it is: killed, signalled, twice at once, configured anew."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.mps import report
from gpuplugin.mps.processes import running
from gpuplugin.sim import machine
from gpuplugin.sim.host import SimulatedHost
from tests.mps.conftest import GPU, PROC, Client, until
from tests.nvml.conftest import standin  # noqa: F401 - a fixture

CHECKOUT = Path(__file__).resolve().parents[2]


class Program:
    """A node's files, and the programs started on it."""

    def __init__(self, folder: Path, control: Path, library: Path) -> None:
        self.folder, self.root = folder, folder / "mps"
        self.host = SimulatedHost(machine.load("hgx-h100"), folder / "host")
        link = self.host.root / f"usr/lib/{platform.machine()}-linux-gnu/libnvidia-ml.so.1"
        link.unlink()
        shutil.copy(library, link)
        (folder / "gpus").mkdir()
        self.config = folder / "config.yaml"
        self.environment = {
            "PATH": f"{control.parent}:{os.environ['PATH']}",
            "CONFIG_FILE": str(self.config),
            "MPS_ROOT": str(self.root),
            "NVIDIA_DRIVER_ROOT": str(self.host.root),
            "GPUPLUGIN_PATHS_SYSFS": str(self.host.root / "sys"),
            "GPUPLUGIN_PATHS_PROC": str(self.host.root / "proc"),
            "GPUPLUGIN_NVML_STATE": str(self.host.state.path),
            "GPUPLUGIN_NVML_DEV": str(self.host.root / "dev"),
            "GPUPLUGIN_LOG_FORMAT": "json",
        }
        self.log = folder / "log"
        self.started: list[subprocess.Popen[bytes]] = []

    def share(self, replicas: int | None, **more: object) -> None:
        entry = {"name": GPU, "replicas": replicas}
        sharing = {"mps": {"resources": [entry], **more}} if replicas else {}
        new = self.folder / "new.yaml"
        new.write_text(json.dumps({"version": "v1", "sharing": sharing}))
        new.replace(self.config)

    def start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "gpuplugin", "mps-control"]
            process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, cwd=CHECKOUT)
        self.started.append(process)
        return process

    def worker(self, keeper: subprocess.Popen[bytes]) -> int:
        """The process that does the work, of a keeper."""
        found: list[int] = []

        def look() -> list[int]:
            text = Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children").read_text()
            found[:] = [int(pid) for pid in text.split() if b"mps-control\0" in _command(int(pid)) + b"\0"]
            found[:] = [pid for pid in found if b"nvidia-cuda" not in _command(pid)]
            return found

        until(look, f"a worker; {self.said()}")
        return found[0]

    def said(self) -> list[Any]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [json.loads(line) if line.startswith("{") else line for line in lines]

    def until_ready(self, holds: Callable[[report.Report], bool] = lambda said: said.ready) -> None:
        def look() -> bool:
            said = report.read(self.root / GPU)
            return said is not None and holds(said)

        until(look, f"ready; {self.said()}")

    @property
    def pid(self) -> int:
        found = running(PROC, str(self.root))
        return found[GPU].pid if found else 0

    def modes(self) -> set[int]:
        return {self.host.state.compute_mode(index) for index in range(8)}


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@pytest.fixture
def program(folder: Path, control: Path, standin: Path) -> Iterator[Program]:  # noqa: F811 - the fixture
    made = Program(folder, control, standin)
    yield made
    for process in made.started:
        process.kill()
        process.wait()


def test_from_start_to_stop(program: Program):
    program.share(4, defaultPinnedDeviceMemoryLimit="8Gi", defaultActiveThreadPercentage=30)
    keeper = program.start()
    program.until_ready()
    assert program.modes() == {3}
    text = (program.root / GPU / "log/control.log").read_text()
    assert text.count("Cmd:set_default_device_pinned_mem_limit") == text.count(" 8192M") == 8
    assert "Cmd:set_default_active_thread_percentage 30" in text
    keeper.send_signal(signal.SIGTERM)
    assert keeper.wait(30) == 0, program.said()
    assert program.pid == 0
    assert program.modes() == {0}
    assert not (program.root / GPU / report.REPORT).exists()


@pytest.mark.parametrize("victim", ["worker", "keeper"])
def test_kill_9_ends_no_client(program: Program, victim: str):
    program.share(2)
    keeper = program.start()
    program.until_ready()
    client, pid = Client(program.root / GPU / "pipe"), program.pid
    worker = program.worker(keeper)
    if victim == "worker":
        os.kill(worker, signal.SIGKILL)
        until(lambda: program.worker(keeper) != worker, "another worker")
    else:
        keeper.kill()
        keeper.wait()
        until(lambda: not _command(worker), "the worker ends with its keeper")
        keeper = program.start()
    until(lambda: len(_take_ups(program)) == 2, "taken up again")
    program.until_ready()
    assert client.lives
    assert program.pid == pid
    client.close()
    keeper.send_signal(signal.SIGTERM)
    assert keeper.wait(30) == 0
    assert program.modes() == {0}


def _take_ups(program: Program) -> list[Any]:
    return [line for line in program.said() if isinstance(line, dict) and line["event"] == "MPS control daemon"]


def test_a_second_one_waits_for_the_first(program: Program):
    program.share(2)
    first = program.start()
    program.until_ready()
    pid = program.pid
    second = program.start()
    until(lambda: any("another gpuplugin mps-control" in str(line) for line in program.said()), "the second waits")
    first.kill()
    first.wait()
    until(lambda: len(_take_ups(program)) == 2, "the second takes over")
    assert program.pid == pid
    second.send_signal(signal.SIGTERM)
    assert second.wait(30) == 0
    assert program.pid == 0


def test_a_configuration_without_mps_gives_the_gpus_back_once_clients_have_left(program: Program):
    program.share(2)
    program.start()
    program.until_ready()
    client = Client(program.root / GPU / "pipe")
    program.share(None)
    program.until_ready(lambda said: "is wanted no more; it is replaced when its 1 clients have left" in said.reason)
    assert client.lives
    client.close()
    until(lambda: program.pid == 0 and program.modes() == {0}, "given back")


def test_a_configuration_that_is_wrong_ends_it_with_the_reason(program: Program):
    program.config.write_text("version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 49}]}}\n")
    assert program.start().wait(30) == 2
    assert "replicas: 49 is not allowed; allowed: at most 48" in program.log.read_text()


def test_too_many_clients_for_an_old_gpu_and_mig_start_nothing(program: Program):
    """What plan.mps refuses has no group; held here because the control daemon would not refuse it."""
    program.share(17)
    for index in range(1, 8):
        program.host.state.update(index, cc_major=6, cc_minor=0)
    program.host.state.update(0, mig_current=True, mig_pending=True)
    program.start()
    until(lambda: any(isinstance(line, dict) for line in program.said()), "it runs")
    program.share(16)
    program.until_ready()
    assert [program.host.state.compute_mode(index) for index in range(8)] == [0, 3, 3, 3, 3, 3, 3, 3]
    assert len(_take_ups(program)) == 1
    assert "set_default_active_thread_percentage 5" not in (program.root / GPU / "log/control.log").read_text()
