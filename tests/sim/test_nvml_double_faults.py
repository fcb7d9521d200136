"""The double as pynvml's own wrappers see it: calls that fail and hang, GPUs that come and go."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml as n
import pytest

from gpuplugin.sim.host import SimulatedHost
from gpuplugin.sim.snapshot import MigRecord
from gpuplugin.sim.state import State
from tests.sim.calls import Aside, Start, code_of, elsewhere, gpu, registered, until_blocked, uuid


def test_a_lost_gpu_is_counted_but_does_not_answer(h100: SimulatedHost, sliced: list[MigRecord]) -> None:
    before = gpu(4)
    mig = n.nvmlDeviceGetMigDeviceHandleByIndex(before, 0)
    h100.state.lose(4)
    lost = n.NVML_ERROR_GPU_IS_LOST
    assert n.nvmlDeviceGetCount() == 8
    for handle in (before, gpu(4), mig):
        assert code_of(lambda handle=handle: n.nvmlDeviceGetUUID(handle)) == lost
    assert code_of(lambda: n.nvmlDeviceGetTemperature(before, 0)) == lost
    assert n.nvmlDeviceGetUUID(gpu(5))
    h100.state.restore(4)
    assert n.nvmlDeviceGetUUID(before)


def test_a_fault_hits_one_call_of_one_gpu_so_many_times(h100: SimulatedHost) -> None:
    h100.state.fail("nvmlDeviceGetName", n.NVML_ERROR_UNKNOWN, gpu=1, times=2)
    codes = []
    for _ in range(3):
        try:
            n.nvmlDeviceGetName(gpu(1))
            codes.append(0)
        except n.NVMLError as error:
            codes.append(error.value)
    assert codes == [999, 999, 0]
    assert n.nvmlDeviceGetName(gpu(0))
    assert n.nvmlDeviceGetUUID(gpu(1))


def test_a_new_fault_of_the_same_kind_counts_anew(h100: SimulatedHost) -> None:
    for _ in range(2):
        h100.state.fail("nvmlDeviceGetCount_v2", n.NVML_ERROR_UNKNOWN, times=1)
        assert code_of(n.nvmlDeviceGetCount) == n.NVML_ERROR_UNKNOWN
        assert n.nvmlDeviceGetCount() == 8
        h100.state.heal()


@pytest.mark.parametrize(
    ("fault", "call"),
    [
        ("nvmlDeviceGetCount", n.nvmlDeviceGetCount),
        ("nvmlInit", n.nvmlInit),
        ("nvmlInit_v2", n.nvmlInit),
        ("nvmlInitWithFlags", n.nvmlInit),
        ("nvmlDeviceGetCount_v1", n.nvmlDeviceGetCount),
        ("nvmlShutdown", n.nvmlShutdown),
        ("nvmlDeviceGetHandleByIndex_v2", lambda: gpu(2)),
        ("nvmlSystemGetDriverVersion", n.nvmlSystemGetDriverVersion),
        ("nvmlEventSetCreate", n.nvmlEventSetCreate),
        ("nvmlDeviceRegisterEvents", lambda: registered(2)),
    ],
)
def test_every_kind_of_call_can_fail_and_heal(h100: SimulatedHost, fault: str, call: Callable[[], object]) -> None:
    h100.state.fail(fault, n.NVML_ERROR_RESET_REQUIRED)
    assert code_of(call) == n.NVML_ERROR_RESET_REQUIRED
    h100.state.heal(fault)
    call()


def test_a_handle_fault_of_one_gpu_spares_the_others(h100: SimulatedHost) -> None:
    h100.state.fail("nvmlDeviceGetHandleByIndex_v2", n.NVML_ERROR_GPU_IS_LOST, gpu=2)
    assert code_of(lambda: gpu(2)) == n.NVML_ERROR_GPU_IS_LOST
    assert n.nvmlDeviceGetUUID(gpu(3))


def test_a_hanging_call_blocks_until_healed_and_others_go_on(h100: SimulatedHost) -> None:
    h100.state.hang("nvmlDeviceGetTemperature", gpu=1)
    handle = gpu(1)
    call = Aside(lambda: n.nvmlDeviceGetTemperature(handle, 0))
    until_blocked(h100)
    assert n.nvmlDeviceGetTemperature(gpu(0), 0)
    assert n.nvmlDeviceGetUUID(handle)
    assert not call.done
    h100.state.heal("nvmlDeviceGetTemperature")
    assert call.join()


def test_a_hanging_call_is_healed_by_another_process(h100: SimulatedHost) -> None:
    h100.state.hang("nvmlDeviceGetCount_v2")
    call = Aside(n.nvmlDeviceGetCount)
    until_blocked(h100)
    elsewhere(h100.state.path, "state.heal()")
    assert call.join() == 8


# --- hot-plug


def test_an_unplugged_gpu_is_lost_to_its_handle_and_the_others_are_renumbered(h100: SimulatedHost) -> None:
    handle, kept, uuids = gpu(2), gpu(3), [uuid(index) for index in range(8)]
    gone = h100.unplug(2)
    assert code_of(lambda: n.nvmlDeviceGetUUID(handle)) == n.NVML_ERROR_GPU_IS_LOST
    assert [uuid(index) for index in range(n.nvmlDeviceGetCount())] == uuids[:2] + uuids[3:]
    assert n.nvmlDeviceGetUUID(kept) == uuids[3]
    assert n.nvmlDeviceGetIndex(kept) == 2
    h100.plug(gone)
    assert [uuid(index) for index in range(n.nvmlDeviceGetCount())] == uuids
    assert h100.state.snapshot == replace(h100.machine.snapshot, events=h100.state.snapshot.events)


def test_links_to_an_unplugged_gpu_are_down(start: Start) -> None:
    host = start("a100-pcie-4")
    n.nvmlInit()
    gone = host.unplug(1)
    assert n.nvmlDeviceGetNvLinkState(gpu(0), 0) == 0
    host.plug(gone)
    assert n.nvmlDeviceGetNvLinkState(gpu(0), 0) == 1
    with pytest.raises(ValueError, match="in the machine already"):
        host.plug(gone)


def test_the_file_is_read_only_when_it_has_changed(h100: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    handle, reads, read = gpu(0), [], State.read

    def counted(path: Path) -> Any:
        reads.append(path)
        return read(path)

    h100.state.lose(1)
    monkeypatch.setattr(State, "read", staticmethod(counted))
    for _ in range(10):
        n.nvmlDeviceGetName(handle)
    assert len(reads) == 1
