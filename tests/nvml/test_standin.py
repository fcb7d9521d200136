"""What only the C stand-in can show: the loader, device nodes, other processes, handles of the real ABI."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pynvml
import pytest

from gpuplugin.discovery.nvml_real import RealNvml
from gpuplugin.errors import NvmlError, NvmlUnavailable
from gpuplugin.sim import machine
from gpuplugin.sim.state import State
from tests.nvml.conftest import make_nodes
from tests.nvml.standin.build import LIBRARY, CompilerMissingError, build_standin

SOON = 10.0

UNPRIVILEGED = """
    import ctypes, os, sys
    PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
    libc = ctypes.CDLL(None)
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.execv(sys.argv[1], sys.argv[1:])
"""
"""Becomes another program that is refused by a file's mode even when root runs it."""

LOOK = """
    import json, sys
    from pathlib import Path
    from gpuplugin.discovery.nvml_real import RealNvml
    from gpuplugin.errors import NvmlError
    nvml = RealNvml(Path(sys.argv[1]) if sys.argv[1:] else None)
    try:
        nvml.open()
    except NvmlError as error:
        print(json.dumps([type(error).__name__, error.code]))
        raise SystemExit
    answers = []
    for index in range(nvml.gpu_count()):
        try:
            answers.append(nvml.gpu(index).minor)
        except NvmlError as error:
            answers.append([type(error).__name__, error.code])
    print(json.dumps(answers))
"""
"""A program that prints each GPU's minor number, or the error in its place; or the error of opening."""


@pytest.fixture
def state(tmp_path, monkeypatch) -> State:
    """Four A100 with minor numbers 2, 3, 0, 1, and their device nodes."""
    snapshot = machine.load("a100-pcie-4").snapshot
    state = State.create(tmp_path / "nvml.state", snapshot)
    monkeypatch.setenv("GPUPLUGIN_NVML_STATE", str(state.path))
    monkeypatch.setenv("GPUPLUGIN_NVML_DEV", str(make_nodes(tmp_path / "dev", snapshot)))
    return state


@pytest.fixture
def nvml(standin, state):
    nvml = RealNvml(standin)
    nvml.open()
    yield nvml
    state.heal()
    nvml.close()


def look(*arguments: str, **environment: str):
    python = (sys.executable, "-c")
    done = subprocess.run(
        [*python, textwrap.dedent(UNPRIVILEGED), *python, textwrap.dedent(LOOK), *arguments],
        env=os.environ | environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return json.loads(done.stdout)


# -- the loader


def test_the_loader_finds_it_by_name(standin, state):
    assert look(LD_LIBRARY_PATH=str(standin.parent)) == [2, 3, 0, 1]


def test_a_library_that_is_not_there(tmp_path):
    with pytest.raises(NvmlUnavailable, match="no usable libnvidia-ml") as caught:
        RealNvml(tmp_path / LIBRARY).open()
    assert caught.value.code == 12
    assert str(tmp_path / LIBRARY) in str(caught.value)


def test_a_file_that_is_no_library(tmp_path):
    (tmp_path / LIBRARY).write_text("no ELF")
    with pytest.raises(NvmlUnavailable) as caught:
        RealNvml(tmp_path / LIBRARY).open()
    assert caught.value.code == 12


def test_a_library_that_could_not_be_opened_is_let_go_so_that_the_next_one_is_taken(standin, state, tmp_path):
    path = tmp_path / LIBRARY
    shutil.copy(standin, path)
    nvml = RealNvml(path)
    state.driver("mismatch")
    with pytest.raises(NvmlUnavailable) as caught:
        nvml.open()
    assert caught.value.code == 18
    assert str(path) not in Path("/proc/self/maps").read_text()
    state.driver(loaded=True)
    nvml.open()
    assert nvml.gpu_count() == 4
    nvml.close()


def test_two_libraries_one_after_the_other(standin, state, tmp_path):
    shutil.copy(standin, tmp_path / LIBRARY)
    for path in (standin, tmp_path / LIBRARY, standin):
        nvml = RealNvml(path)
        nvml.open()
        assert pynvml.nvmlLib._name == str(path)
        assert nvml.gpu_count() == 4
        nvml.close()


# -- device nodes


def test_a_gpu_whose_node_may_not_be_opened_is_refused_alone(standin, state, tmp_path):
    (tmp_path / "dev" / "nvidia3").chmod(0)
    assert look(str(standin)) == [2, ["NvmlError", 4], 0, 1]


def test_a_gpu_whose_node_is_missing(standin, state, tmp_path):
    (tmp_path / "dev" / "nvidia0").unlink()
    assert look(str(standin)) == [2, 3, ["NvmlError", 6], 1]


def test_without_permission_for_the_control_node_nothing_works(standin, state, tmp_path):
    (tmp_path / "dev" / "nvidiactl").chmod(0)
    assert look(str(standin)) == ["NvmlUnavailable", 4]


def test_without_the_control_node_the_driver_is_not_loaded(standin, state, tmp_path):
    (tmp_path / "dev" / "nvidiactl").unlink()
    assert look(str(standin)) == ["NvmlUnavailable", 9]


def test_a_node_without_a_driver_behind_it_will_do(standin, state, tmp_path):
    """Opening a socket gives ENXIO, as a device number that nobody serves does."""
    node = tmp_path / "dev" / "nvidia3"
    node.unlink()
    subprocess.run(
        [sys.executable, "-c", "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])", node.name],
        cwd=node.parent,
        check=True,
    )
    assert look(str(standin)) == [2, 3, 0, 1]


def open_nodes(folder):
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            found.append(descriptor.readlink())
    return sorted(path.name for path in found if path.parent == folder)


def test_nodes_are_kept_open_until_the_shutdown(nvml, tmp_path):
    assert open_nodes(tmp_path / "dev") == ["nvidiactl"]
    nvml.gpu(0)
    nvml.gpu(0)
    assert open_nodes(tmp_path / "dev") == ["nvidia2", "nvidiactl"]
    nvml.close()
    assert open_nodes(tmp_path / "dev") == []


# -- the file


def test_another_process_raises_an_xid(nvml, state):
    nvml.watch()
    script = "import sys; from pathlib import Path; from gpuplugin.sim.state import State; "
    subprocess.run([sys.executable, "-c", f"{script}State.open(Path(sys.argv[1])).xid(1, 79)", state.path], check=True)
    event = nvml.wait(SOON)
    assert (event.gpu, event.xid) == (state.snapshot.gpu(1).uuid, 79)


@pytest.mark.parametrize("text", ["", "something else\n", "gpuplugin-nvml-state\t1\ndriver\t1\n", None])
def test_a_file_that_makes_no_sense_is_an_unknown_error(standin, state, text):
    if text is None:
        state.path.unlink()
    else:
        state.path.write_text(text)
    with pytest.raises(NvmlUnavailable) as caught:
        RealNvml(standin).open()
    assert caught.value.code == 999


def test_every_replacement_is_seen_however_fast(nvml, state):
    for number in range(200):
        state.update(0, name=f"GPU {number:03d}")
        assert nvml.gpu(0).model == f"GPU {number:03d}"


def test_a_hang_ends_when_the_library_is_shut_down(nvml, state):
    state.hang("nvmlDeviceGetName")
    with ThreadPoolExecutor() as pool:
        hung = pool.submit(nvml.gpu, 0)
        with pytest.raises(TimeoutError):
            hung.result(0.1)
        nvml.close()
        with pytest.raises(NvmlUnavailable):
            hung.result(SOON)


# -- the ABI, by pynvml alone


def test_handles_from_before_a_shutdown_are_refused(nvml):
    old = pynvml.nvmlDeviceGetHandleByIndex(0)
    nvml.close()
    nvml.open()
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetUUID(old)


def test_handles_of_the_wrong_kind_are_refused(nvml):
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    for call in (pynvml.nvmlDeviceGetGpuInstanceId, pynvml.nvmlDeviceGetAttributes_v2, pynvml.nvmlEventSetFree):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            call(gpu)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetUUID(None)


def test_a_freed_event_set_is_refused(nvml):
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlEventSetFree(events)
    pynvml.nvmlEventSetCreate()
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlEventSetWait_v2(events, 0)


def test_a_struct_of_an_unknown_version_is_refused(nvml):
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(pynvml.NVMLError) as caught:
        pynvml.nvmlDeviceGetMemoryInfo(gpu, version=0x09000028)
    assert caught.value.value == 25
    assert pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2).total == 80 << 30


def test_initialisations_are_counted(nvml):
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert nvml.gpu_count() == 4


def test_gpus_are_found_by_every_name(nvml, state):
    gpu = state.snapshot.gpu(3)
    domain, bus, device = gpu.bus_id.split(":")
    for find, name in (
        (pynvml.nvmlDeviceGetHandleByUUID, gpu.uuid),
        (pynvml.nvmlDeviceGetHandleByPciBusId, gpu.bus_id),
        (pynvml.nvmlDeviceGetHandleByPciBusId, f"{domain[4:]}:{bus}:{device}".lower()),
    ):
        assert pynvml.nvmlDeviceGetIndex(find(name)) == 3
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByPciBusId("0000:ff:00.0")


def test_a_function_that_it_does_not_have_is_not_found(nvml):
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceGetFanSpeed(pynvml.nvmlDeviceGetHandleByIndex(0))


# -- building it


def test_it_is_built_once(standin):
    before = standin.stat()
    assert build_standin() == standin
    assert standin.stat().st_mtime_ns == before.st_mtime_ns
    assert standin.name == LIBRARY


def test_without_a_compiler_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerMissingError, match="install gcc"):
        build_standin()


def test_errors_carry_what_was_asked(nvml):
    with pytest.raises(NvmlError) as caught:
        nvml.gpu(99)
    assert caught.value.call == "nvmlDeviceGetHandleByIndex"
