"""How a GPU says it is, through pynvml, over both doubles."""

import pynvml
import pytest

from gpuplugin.discovery import condition
from gpuplugin.discovery.nvml import RecoveryAction
from gpuplugin.errors import GpuLost
from gpuplugin.model.inventory import FabricState


def ask(rig, index=3):
    return rig.nvml.probe(rig.state.snapshot.gpu(index).uuid)


def test_a_sound_gpu_has_nothing_to_say(rig):
    rig.nvml.gpu(3)
    answer = ask(rig)
    assert answer.recovery is RecoveryAction.NONE
    now = answer.condition
    assert (now.ecc_uncorrectable, now.rows_pending, now.rows_failed, now.nvlink_recoveries) == (0, False, False, 0)
    assert (now.links_down, now.hot, now.braked) == ((), False, False)
    assert now.fabric.state is FabricState.COMPLETED


@pytest.mark.parametrize(
    ("field", "value", "name", "told"),
    [
        (condition.ECC_UNCORRECTABLE, 2, "ecc_uncorrectable", 2),
        (condition.ROWS_PENDING, 1, "rows_pending", True),
        (condition.ROWS_FAILED, 1, "rows_failed", True),
        (condition.NVLINK_RECOVERIES, 5, "nvlink_recoveries", 5),
    ],
)
def test_a_field_is_read_of_its_gpu_alone(rig, field, value, name, told):
    rig.state.field(3, field, value)
    assert getattr(ask(rig).condition, name) == told
    assert not getattr(ask(rig, 2).condition, name)
    rig.state.field(3, field, None)
    assert not getattr(ask(rig).condition, name)


@pytest.mark.parametrize(
    ("reasons", "hot", "braked"),
    [
        (pynvml.nvmlClocksEventReasonSwPowerCap, False, False),
        (pynvml.nvmlClocksEventReasonSwThermalSlowdown, True, False),
        (pynvml.nvmlClocksEventReasonHwThermalSlowdown, True, False),
        (pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown, False, True),
        (0xE0, True, True),
    ],
)
def test_why_clocks_are_lowered(rig, reasons, hot, braked):
    rig.state.clocks(3, reasons)
    now = ask(rig).condition
    assert (now.hot, now.braked) == (hot, braked)
    rig.state.clocks(3, 0)
    assert not ask(rig).condition.hot


def test_a_link_that_was_up_is_missed_also_after_the_next_look(rig):
    rig.state.link(3, 7, active=False)
    rig.nvml.gpu(3)
    assert ask(rig).condition.links_down == (), "nobody knows whether it ever was up"
    rig.state.link(3, 4, active=False)
    assert ask(rig).condition.links_down == (4,)
    rig.nvml.gpu(3)
    assert ask(rig).condition.links_down == (4,)
    rig.state.link(3, 4, active=True)
    assert ask(rig).condition.links_down == ()


def test_what_cannot_be_told_is_none_and_no_fault(rig):
    for call in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        rig.state.fail(call, pynvml.NVML_ERROR_UNKNOWN, gpu=3)
    rig.state.fail("nvmlDeviceGetGpuFabricInfoV", pynvml.NVML_ERROR_UNKNOWN, gpu=3)
    now = ask(rig).condition
    assert (now.hot, now.braked, now.fabric) == (None, None, None)


def test_a_gpu_that_is_lost_meanwhile_is_lost(rig):
    rig.state.fail("nvmlDeviceGetGpuFabricInfoV", pynvml.NVML_ERROR_GPU_IS_LOST, gpu=3)
    with pytest.raises(GpuLost):
        ask(rig)
