"""RealNvml through pynvml, over both doubles: the same typed facts from either."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuplugin.errors import GpuLost, NvmlNotSupported
from gpuplugin.model.ids import pci_address
from gpuplugin.model.inventory import AddressingMode, Driver, Fabric, FabricState
from gpuplugin.sim import machine
from tests.nvml.records import expected


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


@pytest.mark.parametrize(("told", "number"), [(None, None), (0, None), (1, 1), (8, 8)])
def test_a_module_id_counts_from_one(rig, told, number):
    rig.state.update(3, module_id=told)
    assert rig.nvml.gpu(3).module_id == number


@pytest.mark.parametrize(
    ("told", "mode"),
    [(None, None), (0, AddressingMode.NONE), (1, AddressingMode.HMM), (2, AddressingMode.ATS), (3, None)],
)
def test_an_addressing_mode(rig, told, mode):
    rig.state.update(3, addressing=told)
    assert rig.nvml.gpu(3).addressing is mode


@pytest.mark.parametrize("code", [2, 3, 4, 13, 25, 27, 999])
@pytest.mark.parametrize(
    ("call", "fact"), [("nvmlDeviceGetModuleId", "module_id"), ("nvmlDeviceGetAddressingMode", "addressing")]
)
def test_no_gpu_is_missed_for_a_fact_that_nothing_rests_on(rig, call, fact, code):
    whole = rig.nvml.gpu(1)
    rig.state.fail(call, code, gpu=1)
    assert getattr(whole, fact) is not None
    assert rig.nvml.gpu(1) == replace(whole, **{fact: None})


@pytest.mark.parametrize("call", ["nvmlDeviceGetModuleId", "nvmlDeviceGetAddressingMode"])
def test_a_gpu_that_is_lost_meanwhile_is_not_taken_for_one_without_the_fact(rig, call):
    rig.state.fail(call, 15, gpu=1, times=1)
    with pytest.raises(GpuLost):
        rig.nvml.gpu(1)


def test_a_fabric_on_an_older_driver_has_no_health(rig):
    told = rig.nvml.gpu(0).fabric
    rig.state.fail("nvmlDeviceGetGpuFabricInfoV", 13)
    assert rig.nvml.gpu(0).fabric == replace(told, health_mask=None)


def test_a_multi_node_fabric(rig):
    rig.state.fabric(0, 3, "12345678-9abc-def0-1234-56789abcdef0", 5, fabric_health=0x5555)
    assert rig.nvml.gpu(0).fabric == Fabric(FabricState.COMPLETED, "12345678-9abc-def0-1234-56789abcdef0", 5, 0, 0x5555)


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
