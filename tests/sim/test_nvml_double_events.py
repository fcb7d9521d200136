"""The double as pynvml's own wrappers see it: XIDs, and waiting for them."""

from typing import Any

import pynvml as n

from gpuplugin.sim.host import SimulatedHost
from gpuplugin.sim.state import State
from tests.sim.calls import XID, Aside, code_of, elsewhere, gpu, registered, until_blocked, uuid


def wait(events: Any, milliseconds: int = 30_000) -> tuple[int, str, int, int]:
    data = n.nvmlEventSetWait_v2(events, milliseconds)
    assert data.eventType == XID
    return data.eventData, n.nvmlDeviceGetUUID(data.device), data.gpuInstanceId, data.computeInstanceId


def test_an_xid_is_delivered_once_in_order_to_each_set(h100: SimulatedHost) -> None:
    h100.state.xid(0, 13)
    first, second = registered(0, 4), registered(0, 4)
    h100.state.xid(0, 79)
    h100.state.xid(4, 94, gi=3, ci=0)
    none = 0xFFFFFFFF
    for events in (first, second):
        assert wait(events) == (79, uuid(0), none, none)
        assert wait(events) == (94, uuid(4), 3, 0)
        assert code_of(lambda events=events: wait(events, 0)) == n.NVML_ERROR_TIMEOUT


def test_only_gpus_that_were_registered_are_heard(h100: SimulatedHost) -> None:
    events = registered(1)
    h100.state.xid(0, 79)
    assert code_of(lambda: wait(events, 0)) == n.NVML_ERROR_TIMEOUT
    h100.state.xid(1, 31)
    assert wait(events)[0] == 31


def test_a_wait_is_woken_by_a_change_in_this_process(h100: SimulatedHost) -> None:
    events = registered(0)
    waiting = Aside(lambda: wait(events)[0])
    until_blocked(h100)
    h100.state.xid(0, 79)
    assert waiting.join() == 79


def test_a_wait_is_woken_by_another_process(h100: SimulatedHost) -> None:
    events = registered(0)
    waiting = Aside(lambda: wait(events)[0])
    until_blocked(h100)
    elsewhere(h100.state.path, "state.xid(0, 48)")
    assert waiting.join() == 48


def test_shutdown_ends_a_wait_even_if_init_follows_at_once(h100: SimulatedHost) -> None:
    events = registered(0)
    waiting = Aside(lambda: n.nvmlEventSetWait_v2(events, 600_000))
    until_blocked(h100)
    n.nvmlShutdown()
    n.nvmlInit()
    assert code_of(waiting.join) == n.NVML_ERROR_UNINITIALIZED


def test_freeing_a_set_ends_a_wait_on_it(h100: SimulatedHost) -> None:
    events = registered(0)
    waiting = Aside(lambda: n.nvmlEventSetWait_v2(events, 600_000))
    until_blocked(h100)
    n.nvmlEventSetFree(events)
    assert code_of(waiting.join) == n.NVML_ERROR_INVALID_ARGUMENT


def test_a_set_that_was_freed_is_no_more(h100: SimulatedHost) -> None:
    events = registered(0)
    n.nvmlEventSetFree(events)
    for call in (lambda: wait(events, 0), lambda: n.nvmlEventSetFree(events)):
        assert code_of(call) == n.NVML_ERROR_INVALID_ARGUMENT


def test_only_xids_can_be_waited_for(h100: SimulatedHost) -> None:
    assert n.nvmlDeviceGetSupportedEventTypes(gpu(0)) == XID
    events = n.nvmlEventSetCreate()
    code = code_of(lambda: n.nvmlDeviceRegisterEvents(gpu(0), n.nvmlEventTypePState, events))
    assert code == n.NVML_ERROR_NOT_SUPPORTED


def test_a_lost_gpu_cannot_be_registered_but_its_last_xid_is_heard(h100: SimulatedHost) -> None:
    events = registered(0)
    h100.state.xid(0, 79)
    h100.state.lose(0)
    assert code_of(lambda: registered(0)) == n.NVML_ERROR_GPU_IS_LOST
    assert n.nvmlEventSetWait_v2(events, 0).eventData == 79


def test_a_machine_that_starts_anew_is_still_heard(h100: SimulatedHost) -> None:
    events = registered(0)
    h100.state.xid(0, 13)
    assert wait(events)[0] == 13
    State.create(h100.state.path, h100.machine.snapshot).xid(0, 79)
    assert wait(events)[0] == 79
