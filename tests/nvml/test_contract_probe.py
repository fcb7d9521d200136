"""RealNvml over both doubles: the question whether a GPU can be used."""

from __future__ import annotations

import pytest

from gpuplugin.discovery.nvml import RecoveryAction
from gpuplugin.errors import NvmlError
from tests.nvml.records import SOON


@pytest.mark.parametrize("action", [None, *RecoveryAction])
def test_what_the_driver_wants_is_told(rig, action):
    uuid = rig.nvml.gpu(4).uuid
    rig.state.recovery(4, action)
    assert rig.nvml.probe(uuid).recovery == action


def test_a_recovery_action_that_nobody_knows_yet_is_no_good_health(rig):
    uuid = rig.nvml.gpu(4).uuid
    rig.state.recovery(4, 42)
    with pytest.raises(NvmlError, match="recovery action 42"):
        rig.nvml.probe(uuid)


@pytest.mark.parametrize("call", ["nvmlDeviceGetTemperatureV", "nvmlDeviceGetFieldValues"])
def test_an_older_driver_can_be_probed(rig, call):
    uuid = rig.nvml.gpu(4).uuid
    rig.state.fail(call, 13)
    answer = None if call == "nvmlDeviceGetFieldValues" else RecoveryAction.NONE
    assert rig.nvml.probe(uuid).recovery == answer


def test_a_gpu_that_was_never_read_can_be_probed(rig):
    assert rig.nvml.probe(rig.state.snapshot.gpu(6).uuid).recovery == RecoveryAction.NONE


def test_a_probe_survives_indices_that_have_moved(rig):
    uuid = rig.nvml.gpu(7).uuid
    other = rig.state.snapshot.gpu(6).uuid
    assert rig.nvml.gpu(6).uuid == other
    rig.state.update(7, uuid="GPU-00000000-0000-0000-0000-000000000000")
    rig.state.update(6, uuid=uuid, recovery=2)
    assert rig.nvml.probe(uuid).recovery == RecoveryAction.NODE_REBOOT


def test_a_probe_of_nobody(rig):
    with pytest.raises(NvmlError) as caught:
        rig.nvml.probe("GPU-ffffffff-ffff-ffff-ffff-ffffffffffff")
    assert caught.value.code == 6


def test_a_probe_does_not_touch_other_gpus(rig):
    """As a look-up by UUID would, in the real library."""
    uuid = rig.nvml.gpu(1).uuid
    rig.state.hang("nvmlDeviceGetUUID", gpu=0)
    rig.state.hang("nvmlDeviceGetHandleByUUID")
    assert rig.meanwhile(rig.nvml.probe, uuid).result(SOON).recovery == RecoveryAction.NONE


def test_a_probe_after_reopening_does_not_take_another_gpu_for_this_one(rig):
    moved, lost = rig.nvml.gpu(1).uuid, rig.nvml.gpu(2).uuid
    rig.nvml.close()
    rig.state.update(2, uuid=moved)
    rig.state.update(1, uuid=lost, lost=True)
    rig.nvml.open()
    assert rig.nvml.probe(moved).recovery == RecoveryAction.NONE
