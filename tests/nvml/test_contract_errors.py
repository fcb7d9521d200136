"""RealNvml over both doubles: what goes wrong comes out as the same typed error, and stays with its GPU."""

from __future__ import annotations

from concurrent.futures import wait as wait_for

import pytest

from gpuplugin.discovery.nvml import RecoveryAction
from gpuplugin.errors import GpuLost, NvmlError, NvmlUnavailable
from gpuplugin.model.ids import pci_address
from tests.nvml.records import BLOCKED, SOON


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, NvmlUnavailable),
        (4, NvmlError),
        (6, NvmlError),
        (9, NvmlUnavailable),
        (15, GpuLost),
        (16, GpuLost),
        (19, NvmlError),
        (27, NvmlError),
        (999, NvmlError),
    ],
)
def test_a_code_comes_out_as_its_kind(rig, code, kind):
    rig.state.fail("nvmlDeviceGetName", code, gpu=3)
    with pytest.raises(NvmlError) as caught:
        rig.nvml.gpu(3)
    assert (type(caught.value), caught.value.code, caught.value.call) == (kind, code, "nvmlDeviceGetName")
    assert rig.nvml.gpu(4).index == 4


def test_a_one_shot_fault_happens_once(rig):
    rig.state.fail("nvmlDeviceGetUUID", 999, gpu=0, times=1)
    with pytest.raises(NvmlError):
        rig.nvml.gpu(0)
    assert rig.nvml.gpu(0).index == 0


def test_a_one_shot_fault_stays_over_when_nvml_is_opened_again(rig):
    rig.state.fail("nvmlDeviceGetUUID", 999, gpu=0, times=1)
    with pytest.raises(NvmlError):
        rig.nvml.gpu(0)
    rig.nvml.close()
    rig.nvml.open()
    assert rig.nvml.gpu(0).index == 0


def test_a_fault_of_any_gpu_is_one_of_each(rig):
    rig.state.fail("nvmlDeviceGetHandleByIndex", 999, times=2)
    for index in (5, 6):
        with pytest.raises(NvmlError):
            rig.nvml.gpu(index)
    assert rig.nvml.gpu(5).index == 5


def test_a_gpu_that_there_is_not(rig):
    with pytest.raises(NvmlError) as caught:
        rig.nvml.gpu(8)
    assert caught.value.code == 2


def test_a_lost_gpu_is_lost_alone_and_comes_back(rig):
    uuid = rig.nvml.gpu(2).uuid
    rig.state.lose(2)
    assert rig.nvml.gpu_count() == 8
    with pytest.raises(GpuLost, match="fallen off the bus"):
        rig.nvml.gpu(2)
    with pytest.raises(GpuLost):
        rig.nvml.probe(uuid)
    assert rig.nvml.gpu(3).index == 3
    rig.state.restore(2)
    assert rig.nvml.gpu(2).uuid == uuid


def test_a_hang_blocks_its_own_call_and_no_other(rig):
    rig.state.hang("nvmlDeviceGetName", gpu=1)
    hung = rig.meanwhile(rig.nvml.gpu, 1)
    assert not wait_for([hung], timeout=BLOCKED).done
    assert rig.nvml.gpu(0).index == 0
    assert rig.nvml.gpu_count() == 8
    assert not hung.done()
    rig.state.heal("nvmlDeviceGetName")
    assert hung.result(SOON).index == 1


def test_a_hang_of_the_look_up_itself(rig):
    rig.state.hang("nvmlDeviceGetHandleByIndex", gpu=1)
    hung = rig.meanwhile(rig.nvml.gpu_pci, 1)
    assert not wait_for([hung], timeout=BLOCKED).done
    rig.state.heal()
    assert hung.result(SOON) == pci_address(rig.state.snapshot.gpu(1).bus_id)


# -- opening and closing


def test_a_driver_that_is_not_loaded_and_then_is(make_rig):
    rig = make_rig()
    rig.state.driver(loaded=False)
    with pytest.raises(NvmlUnavailable, match="kernel module nvidia is not loaded") as caught:
        rig.nvml.open()
    assert caught.value.code == 9
    rig.state.driver(loaded=True)
    rig.nvml.open()
    assert rig.nvml.gpu_count() == 8


def test_a_library_of_another_version_than_the_driver_is_said_to_be_that(make_rig):
    rig = make_rig()
    rig.state.driver("mismatch")
    with pytest.raises(NvmlUnavailable, match="another version than the loaded kernel module") as caught:
        rig.nvml.open()
    assert caught.value.code == 18
    assert "restart it" not in str(caught.value)


def test_a_mismatch_after_it_has_worked_asks_for_a_restart_of_the_process(rig):
    rig.nvml.close()
    rig.state.driver("mismatch")
    with pytest.raises(NvmlUnavailable, match="still holds the library from before: restart it"):
        rig.nvml.open()


@pytest.mark.parametrize("code", [4, 17, 999])
def test_whatever_stops_the_opening_is_unavailability(make_rig, code):
    rig = make_rig()
    rig.state.fail("nvmlInit", code, times=1)
    with pytest.raises(NvmlUnavailable) as caught:
        rig.nvml.open()
    assert caught.value.code == code
    rig.nvml.open()


def test_opening_and_closing_twice_do_nothing(rig):
    rig.nvml.open()
    assert rig.nvml.gpu_count() == 8
    rig.nvml.close()
    rig.nvml.close()
    with pytest.raises(NvmlUnavailable) as caught:
        rig.nvml.gpu_count()
    assert caught.value.code == 1


def test_it_is_asked_anew_after_it_was_closed(rig):
    uuid = rig.nvml.gpu(7).uuid
    rig.nvml.close()
    rig.nvml.open()
    assert rig.nvml.probe(uuid).recovery == RecoveryAction.NONE
    assert rig.nvml.gpu(7).uuid == uuid
