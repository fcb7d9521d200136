"""The double as pynvml's own wrappers see it: the library, the driver and GPUs."""

import ctypes
from typing import Any

import pynvml as n
import pytest

from gpuplugin.sim import machine
from gpuplugin.sim.host import SimulatedHost
from tests.sim.calls import Start, code_of, gpu


def test_versions(h100: SimulatedHost) -> None:
    assert n.nvmlSystemGetDriverVersion() == "580.95.05"
    assert n.nvmlSystemGetNVMLVersion() == "13.580.95.05"
    assert n.nvmlSystemGetCudaDriverVersion() == n.nvmlSystemGetCudaDriverVersion_v2() == 13000
    assert n.nvmlErrorString(n.NVML_ERROR_GPU_IS_LOST)


@pytest.mark.parametrize(
    ("loaded", "code"), [(False, n.NVML_ERROR_DRIVER_NOT_LOADED), ("mismatch", n.NVML_ERROR_LIB_RM_VERSION_MISMATCH)]
)
def test_init_fails_without_a_driver_that_matches(start: Start, loaded: Any, code: int) -> None:
    host = start("vm-flat")
    host.state.driver(loaded)
    assert code_of(n.nvmlInit) == code
    assert code_of(n.nvmlDeviceGetCount) == n.NVML_ERROR_UNINITIALIZED
    host.state.driver(loaded=True)
    n.nvmlInit()
    assert n.nvmlDeviceGetCount() == 4


def test_nothing_works_before_init_or_after_the_last_shutdown(start: Start) -> None:
    start("vm-flat")
    assert code_of(n.nvmlDeviceGetCount) == n.NVML_ERROR_UNINITIALIZED
    assert code_of(n.nvmlShutdown) == n.NVML_ERROR_UNINITIALIZED
    n.nvmlInit()
    n.nvmlInit()
    n.nvmlShutdown()
    assert n.nvmlDeviceGetCount() == 4
    n.nvmlShutdown()
    assert code_of(n.nvmlDeviceGetCount) == n.NVML_ERROR_UNINITIALIZED


def test_old_handles_are_void_after_shutdown_and_init(h100: SimulatedHost) -> None:
    old = gpu(0)
    n.nvmlShutdown()
    n.nvmlInit()
    assert code_of(lambda: n.nvmlDeviceGetUUID(old)) == n.NVML_ERROR_INVALID_ARGUMENT
    assert n.nvmlDeviceGetUUID(gpu(0))
    assert code_of(lambda: n.nvmlDeviceGetUUID(old)) == n.NVML_ERROR_INVALID_ARGUMENT


def test_a_function_that_is_missing_is_missing_as_in_a_real_library(h100: SimulatedHost) -> None:
    with pytest.raises(AttributeError, match="undefined symbol: nvmlDeviceGetMagic"):
        n.nvmlLib.nvmlDeviceGetMagic  # noqa: B018
    assert code_of(lambda: n.nvmlDeviceGetVbiosVersion(gpu(0))) == n.NVML_ERROR_FUNCTION_NOT_FOUND


def test_a_state_file_that_is_gone_is_an_unknown_error(h100: SimulatedHost) -> None:
    h100.state.path.unlink()
    assert code_of(n.nvmlDeviceGetCount) == n.NVML_ERROR_UNKNOWN


def test_two_libraries_have_handles_of_their_own(h100: SimulatedHost) -> None:
    other = h100.library()
    assert other.nvmlInitWithFlags(0) == n.NVML_SUCCESS
    count = ctypes.c_uint()
    assert other.nvmlDeviceGetCount_v2(ctypes.byref(count)) == n.NVML_SUCCESS
    n.nvmlShutdown()
    assert other.nvmlDeviceGetCount_v2(ctypes.byref(count)) == n.NVML_SUCCESS
    assert count.value == 8


# --- GPUs


@pytest.mark.parametrize("name", machine.names())
def test_every_gpu_tells_what_its_machine_says(start: Start, name: str) -> None:
    host = start(name)
    n.nvmlInit()
    assert n.nvmlDeviceGetCount() == len(host.machine.gpus)
    for index, made in enumerate(host.machine.gpus):
        record, handle = made.record, gpu(index)
        pci = n.nvmlDeviceGetPciInfo(handle)
        assert n.nvmlDeviceGetUUID(handle) == record.uuid
        assert n.nvmlDeviceGetName(handle) == record.name
        assert n.nvmlDeviceGetIndex(handle) == index
        assert n.nvmlDeviceGetMinorNumber(handle) == record.minor
        assert n.nvmlDeviceGetArchitecture(handle) == record.architecture
        assert n.nvmlDeviceGetCudaComputeCapability(handle) == (record.cc_major, record.cc_minor)
        assert n.nvmlDeviceGetMemoryInfo(handle).total == record.memory
        assert n.nvmlDeviceGetMemoryInfo(handle, version=n.nvmlMemory_v2).total == record.memory
        assert f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0" == made.pci
        assert (pci.busId, pci.busIdLegacy) == (record.bus_id, record.bus_id[4:])
        assert pci.pciDeviceId == int(made.pci_device, 16) << 16 | 0x10DE
        assert n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByUUID(record.uuid)) == record.uuid
        assert n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByPciBusId(record.bus_id)) == record.uuid
        assert n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByPciBusId(made.pci)) == record.uuid


def test_where_a_gpu_sits_and_how_it_reaches_memory(start: Start) -> None:
    start("gb200-tray")
    n.nvmlInit()
    assert [n.nvmlDeviceGetModuleId(gpu(index)) for index in range(4)] == [2, 1, 4, 3]
    assert n.nvmlDeviceGetAddressingMode(gpu(0)) == n.NVML_DEVICE_ADDRESSING_MODE_ATS


def test_a_handle_stays_the_same(h100: SimulatedHost) -> None:
    first, again = (ctypes.cast(gpu(3), ctypes.c_void_p).value for _ in range(2))
    assert first == again


def test_what_is_not_there_is_not_found(h100: SimulatedHost) -> None:
    assert code_of(lambda: gpu(8)) == n.NVML_ERROR_INVALID_ARGUMENT
    assert code_of(lambda: n.nvmlDeviceGetHandleByUUID("GPU-0")) == n.NVML_ERROR_NOT_FOUND
    assert code_of(lambda: n.nvmlDeviceGetHandleByPciBusId("0000:ff:00.0")) == n.NVML_ERROR_NOT_FOUND
    assert code_of(lambda: n.nvmlDeviceGetHandleByPciBusId("bus 9")) == n.NVML_ERROR_INVALID_ARGUMENT
    assert code_of(lambda: n.nvmlDeviceGetUUID(n.c_nvmlDevice_t())) == n.NVML_ERROR_INVALID_ARGUMENT


def test_a_buffer_that_is_too_small(h100: SimulatedHost) -> None:
    buffer = ctypes.create_string_buffer(8)
    assert n.nvmlLib.nvmlDeviceGetUUID(gpu(0), buffer, ctypes.c_uint(8)) == n.NVML_ERROR_INSUFFICIENT_SIZE
    assert n.nvmlLib.nvmlDeviceGetUUID(gpu(0), None, ctypes.c_uint(96)) == n.NVML_ERROR_INVALID_ARGUMENT


def test_what_a_gpu_does_not_tell_is_not_supported(h100: SimulatedHost) -> None:
    h100.state.update(0, memory=None, minor=None, fabric_state=None, module_id=None, addressing=None)
    assert code_of(lambda: n.nvmlDeviceGetMemoryInfo(gpu(0))) == n.NVML_ERROR_NOT_SUPPORTED
    assert code_of(lambda: n.nvmlDeviceGetMinorNumber(gpu(0))) == n.NVML_ERROR_NOT_SUPPORTED
    assert code_of(lambda: n.nvmlDeviceGetModuleId(gpu(0))) == n.NVML_ERROR_NOT_SUPPORTED
    assert code_of(lambda: n.nvmlDeviceGetAddressingMode(gpu(0))) == n.NVML_ERROR_NOT_SUPPORTED
    fabric = n.c_nvmlGpuFabricInfoV_t()
    assert code_of(lambda: n.nvmlDeviceGetGpuFabricInfoV(gpu(0), ctypes.byref(fabric))) == n.NVML_ERROR_NOT_SUPPORTED


@pytest.mark.parametrize("version", [0, 0x01000028, 0x02000030])
def test_a_wrong_struct_version_is_refused(h100: SimulatedHost, version: int) -> None:
    memory = n.c_nvmlMemory_v2_t()
    memory.version = version
    code = n.nvmlLib.nvmlDeviceGetMemoryInfo_v2(gpu(0), ctypes.byref(memory))
    assert code == n.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    mode = n.c_nvmlDeviceAddressingMode_t()
    mode.version = version
    code = n.nvmlLib.nvmlDeviceGetAddressingMode(gpu(0), ctypes.byref(mode))
    assert code == n.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    fabric = n.c_nvmlGpuFabricInfo_v2_t()
    fabric.version = version
    code = n.nvmlLib.nvmlDeviceGetGpuFabricInfoV(gpu(0), ctypes.byref(fabric))
    assert code == n.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (n.c_nvmlGpuFabricInfo_t, n.nvmlDeviceGetGpuFabricInfo),
        (n.c_nvmlGpuFabricInfo_v2_t, n.nvmlDeviceGetGpuFabricInfoV),
        (n.c_nvmlGpuFabricInfo_v3_t, n.nvmlDeviceGetGpuFabricInfoV),
    ],
)
def test_fabric(h100: SimulatedHost, kind: Any, call: Any) -> None:
    h100.state.fabric(2, 3, "8af0b8e4-5d2c-4c6b-9f35-e2f1d7a0c111", 4, fabric_health=0b10010)
    info = kind()
    call(gpu(2), ctypes.byref(info))
    assert (bytes(info.clusterUuid).hex(), info.cliqueId, info.state, info.status) == (
        "8af0b8e45d2c4c6b9f35e2f1d7a0c111",
        4,
        3,
        0,
    )
    assert getattr(info, "healthMask", 0b10010) == 0b10010
    assert getattr(info, "healthSummary", 2) == n.NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY


def test_nvlinks_into_switches(h100: SimulatedHost) -> None:
    assert [n.nvmlDeviceGetNvLinkState(gpu(0), link) for link in range(18)] == [1] * 18
    assert n.nvmlDeviceGetNvLinkRemoteDeviceType(gpu(0), 17) == n.NVML_NVLINK_DEVICE_TYPE_SWITCH
    assert n.nvmlDeviceGetNvLinkRemotePciInfo(gpu(0), 0).domain == 0xFFFFFFFF
    h100.state.link(0, 3, active=False)
    assert n.nvmlDeviceGetNvLinkState(gpu(0), 3) == 0
    assert code_of(lambda: n.nvmlDeviceGetNvLinkRemotePciInfo(gpu(0), 3)) == n.NVML_ERROR_NOT_SUPPORTED


def test_nvlinks_between_gpus(start: Start) -> None:
    host = start("dgx-1v")
    n.nvmlInit()
    remote = [n.nvmlDeviceGetNvLinkRemotePciInfo(gpu(0), link).busId for link in range(6)]
    bus_ids = [made.record.bus_id for made in host.machine.gpus]
    assert sorted(map(bus_ids.index, remote)) == [1, 2, 3, 3, 4, 4]
    assert n.nvmlDeviceGetNvLinkRemoteDeviceType(gpu(0), 0) == n.NVML_NVLINK_DEVICE_TYPE_GPU
    assert code_of(lambda: n.nvmlDeviceGetNvLinkState(gpu(0), 6)) == n.NVML_ERROR_INVALID_ARGUMENT


def test_a_gpu_without_nvlink(start: Start) -> None:
    start("l40s-8")
    n.nvmlInit()
    assert code_of(lambda: n.nvmlDeviceGetNvLinkState(gpu(0), 0)) == n.NVML_ERROR_NOT_SUPPORTED


def test_common_ancestors(start: Start) -> None:
    start("l40s-8")
    n.nvmlInit()
    levels = [n.nvmlDeviceGetTopologyCommonAncestor(gpu(0), gpu(other)) for other in (0, 1, 2, 4)]
    assert levels == [0, 10, 20, 50]


def test_how_a_gpu_is_doing(h100: SimulatedHost) -> None:
    handle = gpu(1)
    assert 20 < n.nvmlDeviceGetTemperature(handle, n.NVML_TEMPERATURE_GPU) < 60
    assert n.nvmlDeviceGetTemperatureV(handle, n.NVML_TEMPERATURE_GPU) == n.nvmlDeviceGetTemperature(handle, 0)
    assert 10_000 < n.nvmlDeviceGetPowerUsage(handle) < n.nvmlDeviceGetEnforcedPowerLimit(handle)
    assert n.nvmlDeviceGetUtilizationRates(handle).gpu == 10
    assert n.nvmlDeviceGetComputeMode(handle) == n.NVML_COMPUTEMODE_DEFAULT
    assert n.nvmlDeviceGetPersistenceMode(handle) == 1
    assert n.nvmlDeviceGetEccMode(handle) == [1, 1]
    assert n.nvmlDeviceGetRemappedRows(handle) == (0, 0, 0, 0)
    assert n.nvmlDeviceGetComputeRunningProcesses(handle) == []
    assert n.nvmlDeviceGetTotalEccErrors(handle, 0, 0) == 0


def test_field_values_each_have_a_code_of_their_own(h100: SimulatedHost) -> None:
    h100.state.recovery(0, 2)
    action, links, traffic, unknown = n.nvmlDeviceGetFieldValues(gpu(0), [230, 91, (139, 0xFFFFFFFF), 299])
    assert (action.nvmlReturn, action.valueType, action.value.uiVal) == (0, n.NVML_VALUE_TYPE_UNSIGNED_INT, 2)
    assert (links.nvmlReturn, links.value.uiVal) == (0, 18)
    assert (traffic.nvmlReturn, traffic.valueType) == (0, n.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG)
    assert unknown.nvmlReturn == n.NVML_ERROR_NOT_SUPPORTED
    h100.state.recovery(0, None)
    assert n.nvmlDeviceGetFieldValues(gpu(0), [230])[0].nvmlReturn == n.NVML_ERROR_NOT_SUPPORTED
