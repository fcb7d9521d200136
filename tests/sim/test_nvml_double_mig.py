"""The double as pynvml's own wrappers see it: MIG."""

import ctypes

import pynvml as n
import pytest

from gpuplugin.sim.host import SimulatedHost
from gpuplugin.sim.snapshot import MigRecord
from tests.sim.calls import Start, code_of, gpu


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
