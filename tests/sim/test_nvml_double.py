"""The double as pynvml's own wrappers see it."""

import ctypes
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml as n
import pytest

from gpuplugin.sim import machine
from gpuplugin.sim.host import SimulatedHost
from gpuplugin.sim.snapshot import MigRecord
from gpuplugin.sim.state import State, changed

Start = Callable[[str], SimulatedHost]
XID = n.nvmlEventTypeXidCriticalError


def code_of(call: Callable[[], object]) -> int:
    with pytest.raises(n.NVMLError) as caught:
        call()
    return int(caught.value.value)


def gpu(index: int) -> Any:
    return n.nvmlDeviceGetHandleByIndex(index)


def registered(*indexes: int) -> Any:
    events = n.nvmlEventSetCreate()
    for index in indexes:
        n.nvmlDeviceRegisterEvents(gpu(index), XID, events)
    return events


class Aside:
    """A call in a thread of its own; `done` when it has come back."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.result: object = None
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except n.NVMLError as error:
            self.error = error

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> object:
        self._thread.join(30)
        assert self.done
        if self.error:
            raise self.error
        return self.result


def until_blocked(host: SimulatedHost) -> None:
    """Until a call waits for the state to change."""
    deadline = time.monotonic() + 30
    while not changed(host.state.path)._waiters:  # type: ignore[attr-defined]
        assert time.monotonic() < deadline, "nothing waits"
        time.sleep(0.001)


# --- the library and the driver


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
    h100.state.update(0, memory=None, minor=None, fabric_state=None)
    assert code_of(lambda: n.nvmlDeviceGetMemoryInfo(gpu(0))) == n.NVML_ERROR_NOT_SUPPORTED
    assert code_of(lambda: n.nvmlDeviceGetMinorNumber(gpu(0))) == n.NVML_ERROR_NOT_SUPPORTED
    fabric = n.c_nvmlGpuFabricInfoV_t()
    assert code_of(lambda: n.nvmlDeviceGetGpuFabricInfoV(gpu(0), ctypes.byref(fabric))) == n.NVML_ERROR_NOT_SUPPORTED


@pytest.mark.parametrize("version", [0, 0x01000028, 0x02000030])
def test_a_wrong_struct_version_is_refused(h100: SimulatedHost, version: int) -> None:
    memory = n.c_nvmlMemory_v2_t()
    memory.version = version
    code = n.nvmlLib.nvmlDeviceGetMemoryInfo_v2(gpu(0), ctypes.byref(memory))
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


# --- MIG


@pytest.fixture
def sliced(h100: SimulatedHost) -> list[MigRecord]:
    h100.mig_mode(4, enabled=True)
    made = [h100.mig_create(4, "1g.10gb", 0), h100.mig_create(4, "2g.20gb", 2), h100.mig_create(4, "3g.40gb", 4)]
    h100.mig_destroy(4, made[1].slot)
    return [made[0], made[2]]


def test_mig_mode(h100: SimulatedHost) -> None:
    assert n.nvmlDeviceGetMigMode(gpu(0)) == [0, 0]
    assert n.nvmlDeviceGetMaxMigDeviceCount(gpu(0)) == 0
    h100.mig_mode(0, enabled=True, needs_reset=True)
    assert n.nvmlDeviceGetMigMode(gpu(0)) == [0, 1]
    h100.reset(0)
    assert n.nvmlDeviceGetMigMode(gpu(0)) == [1, 1]
    assert n.nvmlDeviceGetMaxMigDeviceCount(gpu(0)) == 7


def test_a_gpu_without_mig(start: Start) -> None:
    start("vm-flat")
    n.nvmlInit()
    assert code_of(lambda: n.nvmlDeviceGetMigMode(gpu(0))) == n.NVML_ERROR_NOT_SUPPORTED
    assert n.nvmlDeviceGetMaxMigDeviceCount(gpu(0)) == 0


def test_mig_devices_have_holes_between_them(sliced: list[MigRecord]) -> None:
    found = {}
    for slot in range(n.nvmlDeviceGetMaxMigDeviceCount(gpu(4))):
        try:
            found[slot] = n.nvmlDeviceGetMigDeviceHandleByIndex(gpu(4), slot)
        except n.NVMLError_NotFound:
            continue
    assert list(found) == [0, 2]
    for handle, record in zip(found.values(), sliced, strict=True):
        attributes = n.nvmlDeviceGetAttributes_v2(handle)
        assert n.nvmlDeviceGetUUID(handle) == record.uuid
        assert n.nvmlDeviceGetName(handle) == f"NVIDIA H100 80GB HBM3 MIG {record.profile}"
        assert n.nvmlDeviceIsMigDeviceHandle(handle).value == 1
        assert (n.nvmlDeviceGetGpuInstanceId(handle), n.nvmlDeviceGetComputeInstanceId(handle)) == (
            record.gi,
            record.ci,
        )
        assert n.nvmlDeviceGetMemoryInfo(handle).total == record.memory == attributes.memorySizeMB << 20
        assert attributes.multiprocessorCount == record.multiprocessors
        assert attributes.gpuInstanceSliceCount == record.gi_slices
        parent = n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        assert n.nvmlDeviceGetIndex(parent) == 4
        assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(record.uuid)) == record.slot


def test_calls_refuse_the_other_kind_of_handle(sliced: list[MigRecord]) -> None:
    mig = n.nvmlDeviceGetMigDeviceHandleByIndex(gpu(4), 0)
    invalid = n.NVML_ERROR_INVALID_ARGUMENT
    assert code_of(lambda: n.nvmlDeviceGetMigMode(mig)) == invalid
    assert code_of(lambda: n.nvmlDeviceGetGpuInstanceId(gpu(4))) == invalid
    assert code_of(lambda: n.nvmlDeviceGetMigDeviceHandleByIndex(gpu(4), 7)) == invalid
    assert code_of(lambda: n.nvmlDeviceGetAttributes_v2(gpu(4))) == n.NVML_ERROR_NOT_SUPPORTED
    assert n.nvmlDeviceIsMigDeviceHandle(gpu(4)).value == 0


def test_a_mig_device_that_was_destroyed(h100: SimulatedHost, sliced: list[MigRecord]) -> None:
    handle = n.nvmlDeviceGetMigDeviceHandleByIndex(gpu(4), 0)
    instance = n.nvmlDeviceGetGpuInstanceById(gpu(4), sliced[0].gi)
    h100.mig_destroy(4, 0)
    assert code_of(lambda: n.nvmlDeviceGetUUID(handle)) == n.NVML_ERROR_NOT_FOUND
    assert code_of(lambda: n.nvmlGpuInstanceGetInfo(instance)) == n.NVML_ERROR_NOT_FOUND
    assert code_of(lambda: n.nvmlDeviceGetGpuInstanceById(gpu(4), sliced[0].gi)) == n.NVML_ERROR_NOT_FOUND


def test_instances_and_their_placements(sliced: list[MigRecord]) -> None:
    record = sliced[1]
    instances = (n.c_nvmlGpuInstance_t * 7)()
    count = ctypes.c_uint()
    n.nvmlDeviceGetGpuInstances(gpu(4), record.profile_id, instances, ctypes.byref(count))
    assert count.value == 1
    info = n.nvmlGpuInstanceGetInfo(instances[0])
    assert (info.id, info.profileId, info.placement.start, info.placement.size) == (record.gi, 9, 4, 4)
    assert n.nvmlDeviceGetIndex(info.device) == 4
    compute = n.nvmlGpuInstanceGetComputeInstanceById(instances[0], record.ci)
    inside = n.nvmlComputeInstanceGetInfo(compute)
    assert (inside.id, inside.profileId, inside.placement.size) == (0, n.NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE, 3)
    assert n.nvmlGpuInstanceGetInfo(inside.gpuInstance).id == record.gi
    found = (n.c_nvmlComputeInstance_t * 7)()
    n.nvmlGpuInstanceGetComputeInstances(instances[0], inside.profileId, found, ctypes.byref(count))
    assert count.value == 1
    assert n.nvmlComputeInstanceGetInfo(found[0]).id == record.ci


@pytest.mark.parametrize("version", [1, 2])
def test_profiles(sliced: list[MigRecord], version: int) -> None:
    supported = {}
    for number in range(n.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = n.nvmlDeviceGetGpuInstanceProfileInfo(gpu(4), number, version=version)
        except n.NVMLError_NotSupported:
            continue
        supported[info.id] = (info.sliceCount, info.instanceCount, info.memorySizeMB, getattr(info, "name", None))
    assert list(supported) == [19, 14, 9, 5, 0, 20, 15]
    assert supported[9] == (3, 2, 40448, "MIG 3g.40gb" if version == 2 else None)
    assert n.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu(4), 9) == 0
    assert n.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu(4), 19) == 3


def test_possible_placements(sliced: list[MigRecord]) -> None:
    count = ctypes.c_uint()
    n.nvmlDeviceGetGpuInstancePossiblePlacements(gpu(4), 14, None, ctypes.byref(count))
    placements = (n.c_nvmlGpuInstancePlacement_t * count.value)()
    n.nvmlDeviceGetGpuInstancePossiblePlacements(gpu(4), 14, placements, ctypes.byref(count))
    assert [(each.start, each.size) for each in placements] == [(0, 2), (2, 2), (4, 2)]
    count.value = 1
    assert (
        code_of(lambda: n.nvmlDeviceGetGpuInstancePossiblePlacements(gpu(4), 14, placements, ctypes.byref(count)))
        == n.NVML_ERROR_INSUFFICIENT_SIZE
    )


# --- faults


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


# --- events


def elsewhere(path: Path, statement: str) -> None:
    program = (
        f"import sys, pathlib, gpuplugin.sim.state as s; state = s.State.open(pathlib.Path(sys.argv[1])); {statement}"
    )
    subprocess.run([sys.executable, "-c", program, path], check=True, timeout=60)


def wait(events: Any, milliseconds: int = 30_000) -> tuple[int, str, int, int]:
    data = n.nvmlEventSetWait_v2(events, milliseconds)
    assert data.eventType == XID
    return data.eventData, n.nvmlDeviceGetUUID(data.device), data.gpuInstanceId, data.computeInstanceId


def uuid(index: int) -> str:
    return str(n.nvmlDeviceGetUUID(gpu(index)))


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
