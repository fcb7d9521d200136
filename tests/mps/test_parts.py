"""The parts by themselves: what is found in /proc, reports and their locks, the note of modes, folders, the program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuplugin.discovery.nvml import ComputeMode
from gpuplugin.discovery.places import Place
from gpuplugin.errors import MpsControlFailed
from gpuplugin.mps import folders, report
from gpuplugin.mps.decide import Running
from gpuplugin.mps.modes import ComputeModes
from gpuplugin.mps.processes import running
from gpuplugin.mps.program import ControlProgram
from tests.mps.conftest import GPU, PROC, until

ROOT = "/run/nvidia/mps"


def process(proc: Path, pid: int, command: str, **environment: str) -> None:
    folder = proc / f"{pid}"
    folder.mkdir(parents=True)
    (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
    (folder / "environ").write_bytes(b"".join(f"{name}={value}\0".encode() for name, value in environment.items()))


def test_control_daemons_are_told_from_all_else(tmp_path):
    pipe = f"{ROOT}/{GPU}/pipe"
    process(tmp_path, 1, "/sbin/init")
    process(
        tmp_path, 10, "nvidia-cuda-mps-control -d", CUDA_MPS_PIPE_DIRECTORY=pipe, CUDA_VISIBLE_DEVICES="GPU-a,GPU-b"
    )
    process(tmp_path, 11, "/usr/bin/nvidia-cuda-mps-control", CUDA_MPS_PIPE_DIRECTORY=pipe)  # a command to it
    process(tmp_path, 12, "nvidia-cuda-mps-server", CUDA_MPS_PIPE_DIRECTORY=pipe)
    process(tmp_path, 13, "nvidia-cuda-mps-control -f", CUDA_MPS_PIPE_DIRECTORY="/tmp/nvidia-mps")
    process(tmp_path, 14, "nvidia-cuda-mps-control -f", CUDA_MPS_PIPE_DIRECTORY=f"{ROOT}/a.b/c/pipe/")
    process(tmp_path, 15, "")
    (tmp_path / "16").mkdir()
    (tmp_path / "self").mkdir()
    assert running(tmp_path, ROOT) == {
        GPU: Running(GPU, 10, frozenset(("GPU-a", "GPU-b"))),
        "a.b/c": Running("a.b/c", 14, None),
    }


@pytest.mark.parametrize("resource", ["../../etc/x", "a/../../x", "a", "a/b/c", "/x", "a/.."])
def test_pipes_that_are_no_resources_are_nobodys(tmp_path, resource):
    process(tmp_path, 10, "nvidia-cuda-mps-control -d", CUDA_MPS_PIPE_DIRECTORY=f"{ROOT}/{resource}/pipe")
    assert running(tmp_path, ROOT) == {}


def test_process_in_a_container_of_its_own_is_no_control_daemon(tmp_path):
    for pid, namespace in ((10, "pid:[4026531836]"), (11, "pid:[4026532801]"), (12, None)):
        pipe = f"{ROOT}/vendor.com/gpu-{pid}/pipe"
        process(tmp_path, pid, "nvidia-cuda-mps-control -d", CUDA_MPS_PIPE_DIRECTORY=pipe)
        if namespace:
            (tmp_path / f"{pid}/ns").mkdir()
            (tmp_path / f"{pid}/ns/pid").symlink_to(namespace)
    (tmp_path / "self").symlink_to("10")
    assert set(running(tmp_path, ROOT)) == {"vendor.com/gpu-10"}


def test_of_a_daemon_and_its_parent_that_waits_for_it_the_pid_file_says_which(tmp_path):
    root = tmp_path / "mps"
    (root / GPU / "pipe").mkdir(parents=True)
    for pid in (20, 21, 22):
        process(tmp_path / "proc", pid, "nvidia-cuda-mps-control -d", CUDA_MPS_PIPE_DIRECTORY=f"{root}/{GPU}/pipe")
    assert running(tmp_path / "proc", str(root))[GPU].pid == 22
    (root / GPU / "pipe/nvidia-cuda-mps-control.pid").write_text("21\n")
    assert running(tmp_path / "proc", str(root))[GPU].pid == 21


def test_a_report_counts_while_somebody_stands_behind_it(tmp_path):
    said = report.Report(ready=True, pid=7)
    assert report.read(tmp_path) is None
    held = report.hold(tmp_path)
    report.write(tmp_path, said)
    assert report.read(tmp_path) == said
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(held,))
    os.close(held)
    assert report.read(tmp_path) == said
    child.communicate()
    assert report.read(tmp_path) == report.Report(
        ready=False, reason="gpuplugin mps-control, which sees to the MPS control daemon, does not run"
    )


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"ready": true}', '{"ready": true, "reason": "", "pid": "x"}'])
def test_what_is_no_report_says_nothing(tmp_path, text):
    report.hold(tmp_path)
    (tmp_path / report.REPORT).write_text(text)
    assert report.read(tmp_path) is None


@pytest.mark.parametrize("text", ["", "[]", "null", '{"boot": "another", "modes": {"GPU-a": 0}}', '{"modes": {}}'])
def test_a_note_of_modes_that_means_nothing_is_not_believed(node, text):
    note = node.root / "note"
    note.write_text(text)
    assert not ComputeModes(node.thread, note, PROC).taken


async def test_the_note_is_there_before_the_mode_is_changed(node):
    note = node.root / "note"
    boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    node.host.state.fail("nvmlDeviceSetComputeMode", 999)
    modes = ComputeModes(node.thread, note, PROC)
    with pytest.raises(Exception, match="nvmlDeviceSetComputeMode"):
        await modes.take([node.uuids[0]])
    assert json.loads(note.read_text()) == {"boot": boot, "modes": {node.uuids[0]: 0}}
    assert ComputeModes(node.thread, note, PROC).taken == {node.uuids[0]}


async def test_a_gpu_that_was_exclusive_stays_so(node):
    node.host.state.set_compute_mode(0, ComputeMode.EXCLUSIVE_PROCESS)
    modes = ComputeModes(node.thread, node.root / "note", PROC)
    await modes.take([node.uuids[0]])
    await modes.give_back([node.uuids[0]])
    assert node.host.state.compute_mode(0) == ComputeMode.EXCLUSIVE_PROCESS
    assert not modes.taken


def test_folders_that_users_cannot_pass_are_named(tmp_path):
    root = tmp_path / "nvidia/mps"
    root.mkdir(parents=True)
    (tmp_path / "nvidia").chmod(0o700)
    assert tmp_path / "nvidia" in set(folders.barred(root))
    (tmp_path / "nvidia").chmod(0o755)
    assert tmp_path / "nvidia" not in set(folders.barred(root))


def test_pipes_get_the_label_that_containers_may_use(tmp_path, monkeypatch):
    labelled = []
    monkeypatch.setattr(os, "setxattr", lambda *arguments: labelled.append(arguments))
    made = folders.Folders.of(str(tmp_path), GPU)
    made.make(sysfs=tmp_path)
    assert labelled == []
    (tmp_path / "fs/selinux").mkdir(parents=True)
    made.make(sysfs=tmp_path)
    assert labelled == [(made.pipe, "security.selinux", b"system_u:object_r:container_file_t:s0\0")]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_shared_memory_is_mounted_once_and_stays(tmp_path):
    code = (
        "import sys, pathlib; from gpuplugin.mps.folders import mount_shared_memory as mount\n"
        "root = pathlib.Path(sys.argv[1])\n"
        "print(mount(root)); (root / 'shm/of-a-client').touch(); print(mount(root))\n"
        "print((root / 'shm/of-a-client').exists(), oct((root / 'shm').stat().st_mode))\n"
        "print([line.split()[2] for line in open('/proc/mounts') if f'{root}/shm' in line])\n"
    )
    command = ["unshare", "--mount", sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert done.stdout.splitlines() == ["True", "False", "True 0o41777", "['tmpfs']"]


def test_the_program_is_looked_for_on_the_path_and_in_the_drivers_root(tmp_path, monkeypatch, control):
    monkeypatch.setenv("PATH", str(tmp_path))
    root = Place(tmp_path / "driver", "/run/nvidia/driver")
    with pytest.raises(MpsControlFailed, match="no nvidia-cuda-mps-control on the PATH or in"):
        ControlProgram.find(root)
    (tmp_path / "driver/usr/bin").mkdir(parents=True)
    (tmp_path / "driver/usr/bin/nvidia-cuda-mps-control").touch()
    assert ControlProgram.find(root)._command[-2:] == (str(root.here), "/usr/bin/nvidia-cuda-mps-control")
    monkeypatch.setenv("PATH", str(control.parent))
    assert ControlProgram.find(root)._command == (str(control),)


@pytest.mark.skipif(os.geteuid() != 0, reason="another root folder takes root")
async def test_in_the_drivers_root_the_program_runs_with_that_as_its_root(node, folder, control, monkeypatch):
    """The folder for MPS is at the same path on both sides."""
    driver = folder / "driver"
    inside = driver / str(node.root).lstrip("/")
    (driver / "usr/bin").mkdir(parents=True)
    inside.mkdir(parents=True)
    (driver / "usr/bin/nvidia-cuda-mps-control").write_bytes(control.read_bytes())
    (driver / "usr/bin/nvidia-cuda-mps-control").chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    program = ControlProgram.find(Place(driver, "/driver"))
    group = node.group()
    here, there = folders.Folders.of(str(node.root), GPU), folders.Folders.of(str(inside), GPU)
    here.make()
    there.make()
    held = report.hold(here.home)
    await program.start(group, here, held)
    assert (there.pipe / "control").is_socket()
    assert not (here.pipe / "control").exists()
    assert await program.ask(here, "get_default_active_thread_percentage") == "100.0"
    await program.ask(here, "quit")
    until(lambda: not running(PROC, str(node.root)), "it has ended")
    os.close(held)


async def test_a_program_that_says_nothing_is_given_up(node, monkeypatch):
    monkeypatch.setattr("gpuplugin.mps.program.ANSWER_SECONDS", 0.1)
    program = ControlProgram(("/bin/sleep", "1000", "#"))
    slow = ControlProgram((sys.executable, "-c", "import time; time.sleep(1000)"))
    made = folders.Folders.of(str(node.root), GPU)
    made.make()
    with pytest.raises(MpsControlFailed, match="get_server_list: no answer within"):
        await slow.ask(made, "get_server_list")
    with pytest.raises(MpsControlFailed):
        await program.ask(made, "get_server_list")
    with pytest.raises(MpsControlFailed, match="No such file"):
        await ControlProgram(("/nowhere/program",)).ask(made, "get_server_list")
