"""RealNvml through pynvml, over both doubles: the same typed facts and the same typed errors from either."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import wait as wait_for
from ctypes import CDLL
from dataclasses import replace
from pathlib import Path

import pytest

from gpuplugin.discovery.nvml import GpuReading, NvLinkEnd, RecoveryAction
from gpuplugin.discovery.nvml_real import RealNvml
from gpuplugin.errors import GpuLost, NvmlError, NvmlNotSupported, NvmlUnavailable
from gpuplugin.model.health import XidEvent
from gpuplugin.model.ids import pci_address
from gpuplugin.model.inventory import Driver, Fabric, FabricState, MigDevice, MigMode, MigPlacement
from gpuplugin.sim import machine
from gpuplugin.sim.snapshot import MigRecord

SOON = 10.0
BLOCKED = 0.1
ARCHITECTURES = {5: "volta", 6: "turing", 7: "ampere", 8: "ada", 9: "hopper", 10: "blackwell"}


def expected(snapshot, index):
    """What RealNvml must say of a GPU, straight from the records that the machine was made from."""
    gpu = snapshot.gpu(index)
    cluster = gpu.fabric_cluster
    return GpuReading(
        index=index,
        uuid=gpu.uuid,
        pci=pci_address(gpu.bus_id),
        minor=gpu.minor,
        model=gpu.name,
        architecture=ARCHITECTURES[gpu.architecture],
        brand="Tesla" if gpu.name.startswith("Tesla") else "Nvidia",
        memory_bytes=gpu.memory,
        compute_capability=(gpu.cc_major, gpu.cc_minor),
        mig=None if gpu.mig_current is None else MigMode(gpu.mig_current, gpu.mig_pending),
        mig_devices=tuple(
            MigDevice(
                uuid=mig.uuid,
                index=mig.slot,
                gpu_instance=mig.gi,
                compute_instance=mig.ci,
                profile=mig.profile,
                placement=MigPlacement(mig.start, mig.size),
                memory_bytes=mig.memory,
                multiprocessors=mig.multiprocessors,
                gpu_slices=mig.gi_slices,
                compute_slices=mig.ci_slices,
                copy_engines=mig.copy_engines,
                decoders=mig.decoders,
                encoders=mig.encoders,
                jpegs=mig.jpegs,
                ofas=mig.ofas,
            )
            for mig in sorted(snapshot.migs, key=lambda mig: mig.slot)
            if mig.gpu == index and gpu.mig_current
        ),
        fabric=None
        if gpu.fabric_state is None
        else Fabric(
            FabricState(gpu.fabric_state),
            "-".join((cluster[:8], cluster[8:12], cluster[12:16], cluster[16:20], cluster[20:])),
            gpu.fabric_clique,
            gpu.fabric_status,
            gpu.fabric_health,
        ),
        nvlinks=tuple(
            NvLinkEnd(
                link.link, link.remote_type == 2, None if link.remote_type == 2 else pci_address(link.remote_bus_id)
            )
            for link in sorted(snapshot.links, key=lambda link: link.link)
            if link.gpu == index and link.active
        ),
    )


def mig_record(slot, gi, ci=0, gpu=0, uuid=None, profile="1g.10gb"):
    uuid = uuid or f"MIG-{slot:08d}-0000-0000-0000-000000000000"
    return MigRecord(gpu, slot, uuid, gi, ci, 19, slot, 1, profile, 9984 << 20, 16, 1, 1, 1, 1, 0, 1, 0)


def with_mig(rig, *records):
    rig.state.update(0, mig_current=True, mig_pending=True)
    rig.state.change(lambda now: replace(now, migs=tuple(records)))


# -- facts


@pytest.mark.parametrize("name", machine.names())
def test_every_machine_is_read_as_its_records_say(make_rig, name):
    rig = make_rig(name)
    rig.nvml.open()
    snapshot = rig.state.snapshot
    assert rig.nvml.gpu_count() == len(snapshot.gpus)
    for index in range(len(snapshot.gpus)):
        assert rig.nvml.gpu(index) == expected(snapshot, index)
        assert rig.nvml.gpu_pci(index) == pci_address(snapshot.gpu(index).bus_id)


def test_the_drivers_versions(rig):
    record = rig.state.snapshot.driver
    assert rig.nvml.driver() == Driver(record.version, record.nvml, (record.cuda // 1000, record.cuda % 1000 // 10))


def test_cuda_is_told_without_libcuda(rig):
    told = rig.nvml.driver().cuda
    rig.state.fail("nvmlSystemGetCudaDriverVersion_v2", 12)
    assert rig.nvml.driver().cuda in (told, None)


def test_a_change_is_seen_at_the_next_look(rig):
    rig.state.update(2, name="NVIDIA H100 PCIe")
    assert rig.nvml.gpu(2).model == "NVIDIA H100 PCIe"


def test_a_gpu_without_mig_fabric_and_memory_has_none_of_them(rig):
    rig.state.update(0, memory=None, mig_current=None, mig_pending=None, fabric_state=None, minor=None)
    reading = rig.nvml.gpu(0)
    assert (reading.memory_bytes, reading.mig, reading.fabric, reading.minor) == (None, None, None, None)


@pytest.mark.parametrize("code", [3, 13, 25])
@pytest.mark.parametrize(
    ("call", "fact"),
    [
        ("nvmlDeviceGetMinorNumber", "minor"),
        ("nvmlDeviceGetArchitecture", "architecture"),
        ("nvmlDeviceGetBrand", "brand"),
        ("nvmlDeviceGetMemoryInfo", "memory_bytes"),
        ("nvmlDeviceGetCudaComputeCapability", "compute_capability"),
        ("nvmlDeviceGetMigMode", "mig"),
    ],
)
def test_an_optional_fact_that_is_not_supported_is_none(rig, call, fact, code):
    whole = rig.nvml.gpu(1)
    rig.state.fail(call, code, gpu=1)
    assert rig.nvml.gpu(1) == replace(whole, **{fact: None})


@pytest.mark.parametrize("call", ["nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3"])
def test_a_mandatory_fact_that_is_not_supported_raises(rig, call):
    rig.state.fail(call, 3, gpu=1)
    with pytest.raises(NvmlNotSupported, match=call):
        rig.nvml.gpu(1)


def test_an_architecture_that_nobody_knows_yet_is_none(rig):
    rig.state.update(0, architecture=77)
    assert rig.nvml.gpu(0).architecture is None


def test_a_fabric_on_an_older_driver_has_no_health(rig):
    told = rig.nvml.gpu(0).fabric
    rig.state.fail("nvmlDeviceGetGpuFabricInfoV", 13)
    assert rig.nvml.gpu(0).fabric == replace(told, health=None)


def test_a_multi_node_fabric(rig):
    rig.state.fabric(0, 3, "12345678-9abc-def0-1234-56789abcdef0", 5, fabric_health=0x5555)
    assert rig.nvml.gpu(0).fabric == Fabric(FabricState.COMPLETED, "12345678-9abc-def0-1234-56789abcdef0", 5, 0, 0x5555)


# -- errors


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


# -- probe


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


# -- MIG


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


# -- NVLink


def test_a_link_that_is_down_is_left_out(rig):
    rig.state.link(0, 5, active=False)
    assert [end.link for end in rig.nvml.gpu(0).nvlinks] == [link for link in range(18) if link != 5]


@pytest.mark.parametrize(
    "call",
    ["nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2"],
)
def test_a_link_that_cannot_be_read_is_left_out(make_rig, call):
    rig = make_rig("a100-pcie-4")
    rig.nvml.open()
    rig.state.fail(call, 999, gpu=0, times=2)
    reading = rig.nvml.gpu(0)
    assert reading == replace(expected(rig.state.snapshot, 0), nvlinks=expected(rig.state.snapshot, 0).nvlinks[2:])


def test_links_of_a_gpu_that_falls_off_the_bus_meanwhile_are_not_taken_for_gone(rig):
    rig.state.fail("nvmlDeviceGetNvLinkState", 15, gpu=0, times=1)
    with pytest.raises(GpuLost):
        rig.nvml.gpu(0)


def test_links_on_a_driver_that_does_not_tell_their_type_are_ends_with_addresses(make_rig):
    rig = make_rig("a100-pcie-4")
    rig.nvml.open()
    rig.state.fail("nvmlDeviceGetNvLinkRemoteDeviceType", 13)
    assert rig.nvml.gpu(0) == expected(rig.state.snapshot, 0)


# -- events


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
