"""Simulated NVML calls about MIG: mode, devices, GPU and compute instances, profiles and placements."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from gpuplugin.sim import mig
from gpuplugin.sim.abi import Code, Failed, check_version, fill, number, pointee, put, put_handle, put_row
from gpuplugin.sim.nvml_session import CALLS, Device, Key, Look, device_call, gpu_call, mig_call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuplugin.sim.snapshot import GpuRecord, MigRecord


@gpu_call("nvmlDeviceGetMigMode")
def _mode(_look: Look, gpu: GpuRecord, current: Any, pending: Any) -> None:
    if gpu.mig_current is None or gpu.mig_pending is None:
        raise Failed(Code.NOT_SUPPORTED)
    put(current, int(gpu.mig_current))
    put(pending, int(gpu.mig_pending))


@gpu_call("nvmlDeviceGetMaxMigDeviceCount")
def _max_count(_look: Look, gpu: GpuRecord, out: Any) -> None:
    put(out, _slots(gpu))


@gpu_call("nvmlDeviceGetMigDeviceHandleByIndex")
def _handle_by_slot(look: Look, gpu: GpuRecord, slot: Any, out: Any) -> None:
    if number(slot) >= _slots(gpu):
        raise Failed(Code.INVALID_ARGUMENT)
    for record in look.instances(gpu):
        if record.slot == number(slot):
            put_handle(out, look.session.handle_of(Key("mig", record.uuid)))
            return
    raise Failed(Code.NOT_FOUND)


@device_call("nvmlDeviceIsMigDeviceHandle")
def _is_mig(_look: Look, device: Device, out: Any) -> None:
    put(out, int(device.mig is not None))


@mig_call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle")
def _parent(look: Look, record: MigRecord, out: Any) -> None:
    put_handle(out, look.session.handle_of(Key("gpu", look.now.gpu(record.gpu).uuid)))


@mig_call("nvmlDeviceGetGpuInstanceId")
def _gpu_instance_id(_look: Look, record: MigRecord, out: Any) -> None:
    put(out, record.gi)


@mig_call("nvmlDeviceGetComputeInstanceId")
def _compute_instance_id(_look: Look, record: MigRecord, out: Any) -> None:
    put(out, record.ci)


@device_call("nvmlDeviceGetAttributes", "nvmlDeviceGetAttributes_v2")
def _attributes(_look: Look, device: Device, out: Any) -> None:
    if device.mig is None:
        raise Failed(Code.NOT_SUPPORTED)
    record = device.mig
    fill(
        out,
        multiprocessorCount=record.multiprocessors,
        sharedCopyEngineCount=record.copy_engines,
        sharedDecoderCount=record.decoders,
        sharedEncoderCount=record.encoders,
        sharedJpegCount=record.jpegs,
        sharedOfaCount=record.ofas,
        gpuInstanceSliceCount=record.gi_slices,
        computeInstanceSliceCount=record.ci_slices,
        memorySizeMB=record.memory >> 20,
    )


@gpu_call("nvmlDeviceGetGpuInstanceProfileInfo")
def _profile_info(_look: Look, gpu: GpuRecord, which: Any, out: Any) -> None:
    _fill_profile(gpu, which, out)


@gpu_call("nvmlDeviceGetGpuInstanceProfileInfoV")
def _profile_info_v(_look: Look, gpu: GpuRecord, which: Any, out: Any) -> None:
    check_version(out, 2, 3)
    _fill_profile(gpu, which, out)


def _fill_profile(gpu: GpuRecord, which: Any, out: Any) -> None:
    for profile in _profiles(gpu):
        if profile.number == number(which):
            fill(
                out,
                id=profile.id,
                isP2pSupported=0,
                sliceCount=profile.slices,
                instanceCount=profile.count,
                multiprocessorCount=profile.multiprocessors,
                copyEngineCount=profile.copy_engines,
                decoderCount=profile.decoders,
                encoderCount=profile.encoders,
                jpegCount=profile.jpegs,
                ofaCount=profile.ofas,
                memorySizeMB=profile.memory_mib,
                name=f"MIG {profile.name}".encode(),
            )
            return
    raise Failed(Code.NOT_SUPPORTED)


@gpu_call("nvmlDeviceGetGpuInstancePossiblePlacements", "nvmlDeviceGetGpuInstancePossiblePlacements_v2")
def _possible_placements(_look: Look, gpu: GpuRecord, profile: Any, out: Any, count: Any) -> None:
    kind = _profile(gpu, profile)
    room = pointee(count).value
    put(count, len(kind.starts))
    if out is None:
        return
    if room < len(kind.starts):
        raise Failed(Code.INSUFFICIENT_SIZE)
    put_row(out, ctypes.c_uint, [number for start in kind.starts for number in (start, kind.size)])


@gpu_call("nvmlDeviceGetGpuInstanceRemainingCapacity")
def _remaining_capacity(look: Look, gpu: GpuRecord, profile: Any, out: Any) -> None:
    put(out, len(mig.free_starts(_profile(gpu, profile), look.instances(gpu))))


@gpu_call("nvmlDeviceGetGpuInstances")
def _gpu_instances(look: Look, gpu: GpuRecord, profile: Any, out: Any, count: Any) -> None:
    kind = _profile(gpu, profile)
    ids = sorted({record.gi for record in look.instances(gpu) if record.profile_id == kind.id})
    _put_handles(look, out, count, [Key("gi", gpu.uuid, gi) for gi in ids])


@gpu_call("nvmlDeviceGetGpuInstanceById")
def _gpu_instance_by_id(look: Look, gpu: GpuRecord, wanted: Any, out: Any) -> None:
    if number(wanted) not in {record.gi for record in look.instances(gpu)}:
        raise Failed(Code.NOT_FOUND)
    put_handle(out, look.session.handle_of(Key("gi", gpu.uuid, number(wanted))))


def _instance_call(call: str, kind: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Enter ``function(look, gpu, records, *arguments)``, whose first C argument is an instance handle."""

    def enter(function: Callable[..., None]) -> Callable[..., None]:
        def entered(look: Look, value: Any, *arguments: Any) -> None:
            key = look.session.key_of(value, kind)
            gpu = look.gpu_by_uuid(key.uuid)
            look.reach(gpu)
            records = [each for each in look.instances(gpu) if each.gi == key.gi and key.ci in {-1, each.ci}]
            if not records:
                raise Failed(Code.NOT_FOUND)
            function(look, gpu, records, *arguments)

        CALLS[call] = entered
        return function

    return enter


@_instance_call("nvmlGpuInstanceGetInfo", "gi")
def _gpu_instance_info(look: Look, gpu: GpuRecord, records: Sequence[MigRecord], out: Any) -> None:
    record = records[0]
    device = look.session.handle_of(Key("gpu", gpu.uuid))
    fill(out, device=device, id=record.gi, profileId=record.profile_id)
    place = pointee(out).placement
    place.start, place.size = record.start, record.size


@_instance_call("nvmlGpuInstanceGetComputeInstances", "gi")
def _compute_instances(
    look: Look, gpu: GpuRecord, records: Sequence[MigRecord], profile: Any, out: Any, count: Any
) -> None:
    keys = [Key("ci", gpu.uuid, each.gi, each.ci) for each in records if _compute_profile(each) == number(profile)]
    _put_handles(look, out, count, keys)


@_instance_call("nvmlGpuInstanceGetComputeInstanceById", "gi")
def _compute_instance_by_id(look: Look, gpu: GpuRecord, records: Sequence[MigRecord], wanted: Any, out: Any) -> None:
    for record in records:
        if record.ci == number(wanted):
            put_handle(out, look.session.handle_of(Key("ci", gpu.uuid, record.gi, record.ci)))
            return
    raise Failed(Code.NOT_FOUND)


@_instance_call("nvmlComputeInstanceGetInfo_v2", "ci")
def _compute_instance_info(look: Look, gpu: GpuRecord, records: Sequence[MigRecord], out: Any) -> None:
    record = records[0]
    fill(
        out,
        device=look.session.handle_of(Key("gpu", gpu.uuid)),
        gpuInstance=look.session.handle_of(Key("gi", gpu.uuid, record.gi)),
        id=record.ci,
        profileId=_compute_profile(record),
    )
    place = pointee(out).placement
    place.start, place.size = 0, record.ci_slices


def _compute_profile(record: MigRecord) -> int:
    """NVML_COMPUTE_INSTANCE_PROFILE_*: 1, 2, 3, 4 and 7 slices."""
    return (1, 2, 3, 4, 7).index(record.ci_slices)


def _put_handles(look: Look, out: Any, count: Any, keys: Sequence[Key]) -> None:
    if out is not None:
        put_row(out, ctypes.c_void_p, [look.session.handle_of(key) for key in keys])
    put(count, len(keys))


def _slots(gpu: GpuRecord) -> int:
    return max((profile.count for profile in mig.profiles(gpu.name)), default=0) if gpu.mig_current else 0


def _profiles(gpu: GpuRecord) -> tuple[mig.Profile, ...]:
    if gpu.mig_current is None:
        raise Failed(Code.NOT_SUPPORTED)
    return mig.profiles(gpu.name)


def _profile(gpu: GpuRecord, wanted: Any) -> mig.Profile:
    for profile in _profiles(gpu):
        if profile.id == number(wanted):
            return profile
    raise Failed(Code.NOT_SUPPORTED)
