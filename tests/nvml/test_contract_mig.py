"""RealNvml over both doubles: MIG devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuplugin.errors import NvmlError
from gpuplugin.model.inventory import MigMode
from gpuplugin.sim.snapshot import MigRecord
from tests.nvml.records import expected


def mig_record(slot, gi, ci=0, gpu=0, uuid=None, profile="1g.10gb"):
    uuid = uuid or f"MIG-{slot:08d}-0000-0000-0000-000000000000"
    return MigRecord(gpu, slot, uuid, gi, ci, 19, slot, 1, profile, 9984 << 20, 16, 1, 1, 1, 1, 0, 1, 0)


def with_mig(rig, *records):
    rig.state.update(0, mig_current=True, mig_pending=True)
    rig.state.change(lambda now: replace(now, migs=tuple(records)))


def test_mig_devices_with_holes_between_them(rig):
    with_mig(rig, mig_record(0, 7), mig_record(3, 9), mig_record(6, 11, profile="1g.10gb+me"))
    reading = rig.nvml.gpu(0)
    assert [device.index for device in reading.mig_devices] == [0, 3, 6]
    assert reading == expected(rig.state.snapshot, 0)


def test_mig_devices_that_share_a_gpu_instance(rig):
    records = [mig_record(0, 1, 0, profile="1c.2g.20gb"), mig_record(1, 1, 1, profile="1c.2g.20gb")]
    with_mig(rig, *(replace(record, gi_slices=2, start=0, size=2) for record in records))
    devices = rig.nvml.gpu(0).mig_devices
    assert [(device.gpu_instance, device.compute_instance, device.profile) for device in devices] == [
        (1, 0, "1c.2g.20gb"),
        (1, 1, "1c.2g.20gb"),
    ]


def test_mig_uuids_of_the_old_form(rig):
    gpu = rig.state.snapshot.gpu(0).uuid
    with_mig(rig, mig_record(0, 1, uuid=f"MIG-{gpu}/1/0"))
    assert rig.nvml.gpu(0).mig_devices[0].uuid == f"MIG-{gpu}/1/0"


def test_mig_devices_are_not_looked_for_where_mig_is_off(rig):
    rig.state.change(lambda now: replace(now, migs=(mig_record(0, 1),)))
    assert rig.nvml.gpu(0).mig_devices == ()


def test_mig_that_waits_for_a_reset(rig):
    rig.state.update(0, mig_pending=True)
    assert rig.nvml.gpu(0).mig == MigMode(current=False, pending=True)


def test_a_mig_profile_by_sizes_where_the_name_has_none(rig):
    with_mig(rig, mig_record(0, 1, profile="?"))
    assert rig.nvml.gpu(0).mig_devices[0].profile == "1g.10gb"


@pytest.mark.parametrize("code", [3, 4, 13])
def test_a_placement_that_may_not_be_asked_for_is_none(rig, code):
    with_mig(rig, mig_record(0, 1))
    rig.state.fail("nvmlDeviceGetGpuInstanceById", code)
    assert rig.nvml.gpu(0).mig_devices[0].placement is None


def test_a_mig_device_that_cannot_be_read_is_not_taken_for_one_that_is_gone(rig):
    with_mig(rig, mig_record(0, 1), mig_record(1, 2))
    rig.state.fail("nvmlDeviceGetAttributes_v2", 999, times=1)
    with pytest.raises(NvmlError):
        rig.nvml.gpu(0)
    assert len(rig.nvml.gpu(0).mig_devices) == 2
