"""RealNvml over both doubles: watching for XIDs, and waiting."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import wait as wait_for
from ctypes import CDLL
from pathlib import Path

import pytest

from gpuplugin.discovery.nvml_real import RealNvml
from gpuplugin.errors import GpuLost, NvmlError, NvmlUnavailable
from gpuplugin.model.health import XidEvent
from tests.nvml.records import BLOCKED, SOON


def test_an_xid_is_delivered_once_to_a_wait_that_is_blocked(rig):
    assert rig.nvml.watch() == {}
    waiting = rig.meanwhile(rig.nvml.wait, SOON)
    assert not wait_for([waiting], timeout=BLOCKED).done
    rig.state.xid(3, 79)
    assert waiting.result(SOON) == XidEvent(rig.state.snapshot.gpu(3).uuid, 79)
    assert rig.nvml.wait(0) is None


def test_xids_queue_in_order(rig):
    rig.nvml.watch()
    for code in (31, 43, 79):
        rig.state.xid(code % 8, code)
    assert [rig.nvml.wait(SOON).xid for _ in range(3)] == [31, 43, 79]
    assert rig.nvml.wait(0.001) is None


def test_an_xid_of_a_gpu_instance(rig):
    rig.nvml.watch()
    rig.state.xid(0, 94, gi=5, ci=0)
    rig.state.xid(0, 94, gi=0)
    uuid = rig.state.snapshot.gpu(0).uuid
    assert [rig.nvml.wait(SOON) for _ in range(2)] == [XidEvent(uuid, 94, 5, 0), XidEvent(uuid, 94, 0, None)]


def test_an_xid_of_a_gpu_that_can_no_longer_tell_its_uuid(rig):
    rig.nvml.watch()
    rig.state.lose(6)
    rig.state.xid(6, 79)
    assert rig.nvml.wait(SOON) == XidEvent(rig.state.snapshot.gpu(6).uuid, 79)


def test_an_old_xid_is_not_delivered(rig):
    rig.state.xid(0, 31)
    rig.nvml.watch()
    assert rig.nvml.wait(0) is None


def test_a_gpu_that_cannot_be_watched_is_said_with_the_reason(rig):
    uuid = rig.state.snapshot.gpu(2).uuid
    rig.state.fail("nvmlDeviceRegisterEvents", 3, gpu=2)
    assert rig.nvml.watch() == {uuid: "nvmlDeviceRegisterEvents: NOT_SUPPORTED (NVML code 3)"}
    rig.state.xid(2, 79)
    rig.state.xid(1, 43)
    assert rig.nvml.wait(SOON).xid == 43


def test_a_gpu_that_is_lost_does_not_stop_the_others_from_being_watched(rig):
    rig.state.lose(0)
    assert rig.nvml.watch() == {}
    rig.state.xid(1, 43)
    assert rig.nvml.wait(SOON).xid == 43


def test_closing_ends_a_wait(rig):
    rig.nvml.watch()
    waiting = rig.meanwhile(rig.nvml.wait, 3600)
    assert not wait_for([waiting], timeout=BLOCKED).done
    rig.nvml.close()
    assert waiting.result(SOON) is None


def test_it_can_be_opened_and_watched_again_right_after_a_wait_was_ended(rig):
    for code in (31, 43):
        rig.nvml.watch()
        waiting = rig.meanwhile(rig.nvml.wait, 3600)
        assert not wait_for([waiting], timeout=BLOCKED).done
        rig.nvml.close()
        rig.nvml.open()
        assert waiting.result(SOON) is None
        rig.nvml.watch()
        rig.state.xid(0, code)
        assert rig.nvml.wait(SOON).xid == code


def test_watching_afresh_leaves_a_wait_in_the_old_set_alone(rig):
    rig.nvml.watch()
    waiting = rig.meanwhile(rig.nvml.wait, SOON)
    assert not wait_for([waiting], timeout=BLOCKED).done
    assert rig.nvml.watch() == {}
    rig.state.xid(5, 43)
    assert waiting.result(SOON).xid == 43
    assert rig.nvml.wait(SOON).xid == 43


def test_watching_again_and_again_uses_nothing_up(rig):
    for _ in range(100):
        assert rig.nvml.watch() == {}
    rig.state.xid(5, 43)
    assert rig.nvml.wait(SOON).xid == 43


def test_a_wait_that_fails_raises(rig):
    rig.nvml.watch()
    rig.state.fail("nvmlEventSetWait", 15, times=1)
    with pytest.raises(GpuLost):
        rig.nvml.wait(SOON)
    rig.state.xid(0, 43)
    assert rig.nvml.wait(SOON).xid == 43


def test_a_wait_without_a_watch_says_so(rig):
    with pytest.raises(NvmlUnavailable, match="call watch first"):
        rig.nvml.wait(0)


def test_a_watch_that_fails_keeps_the_one_before(rig):
    rig.nvml.watch()
    rig.state.fail("nvmlDeviceGetCount", 999, times=1)
    with pytest.raises(NvmlError):
        rig.nvml.watch()
    rig.state.xid(0, 43)
    assert rig.nvml.wait(SOON).xid == 43


def test_watches_that_fail_use_nothing_up(rig):
    rig.state.fail("nvmlDeviceGetCount", 999, times=100)
    for _ in range(100):
        with pytest.raises(NvmlError):
            rig.nvml.watch()
    assert rig.nvml.watch() == {}


def test_a_watch_that_is_no_use_raises(rig):
    rig.state.fail("nvmlDeviceGetUUID", 1)
    with pytest.raises(NvmlUnavailable):
        rig.nvml.watch()


def test_an_event_set_is_never_freed_while_a_wait_is_in_it(make_rig):
    rig = make_rig()
    frees = []

    class Watched:
        """The double or the stand-in, with frees noted."""

        def __getattr__(self, name):
            if name == "nvmlEventSetFree":
                frees.append(name)
            return getattr(library, name)

    library = CDLL(str(rig.library)) if isinstance(rig.library, Path) else rig.library
    nvml = RealNvml(Watched())
    nvml.open()
    nvml.watch()
    waiting = rig.meanwhile(nvml.wait, 3600)
    assert not wait_for([waiting], timeout=BLOCKED).done
    nvml.watch()
    nvml.close()
    assert waiting.result(SOON) is None
    assert frees == []


def test_how_long_an_xid_takes(rig, request):
    """A measurement, printed with -s; what must hold is that all arrive."""
    rig.nvml.watch()
    delays = []
    for _ in range(50):
        waiting = rig.meanwhile(lambda: (rig.nvml.wait(SOON), time.perf_counter()))
        wait_for([waiting], timeout=0.005)
        rig.state.xid(0, 43)
        written = time.perf_counter()
        event, arrived = waiting.result(SOON)
        assert event.xid == 43
        delays.append(1000 * (arrived - written))
    print(f"\n{request.node.name}: p50 {statistics.median(delays):.2f} ms, worst {max(delays):.2f} ms after the write")
