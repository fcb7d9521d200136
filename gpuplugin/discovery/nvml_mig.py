"""MIG as NVML tells it: whether a GPU's is on, and the devices that are there. Reads only.

Apart from `nvml_real` by subject. `ask` makes a call of pynvml's by name and raises typed errors, as there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplugin.discovery import nvml_decode as decode
from gpuplugin.errors import NvmlError, NvmlNotSupported
from gpuplugin.model.ids import MigUuid
from gpuplugin.model.inventory import MigDevice, MigMode, MigPlacement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Ask = Callable[..., Any]


def mode(ask: Ask, gpu: Any) -> MigMode | None:
    """Whether MIG is on; None where the GPU has none."""
    try:
        current, pending = ask("nvmlDeviceGetMigMode", gpu)
    except NvmlNotSupported:
        return None
    return MigMode(current=bool(current), pending=bool(pending))


def devices(ask: Ask, gpu: Any, gpu_memory: int | None) -> Iterator[MigDevice]:
    """Give the MIG devices of a GPU by slot, past the holes. gpu_memory: bytes, for profiles told by size only.

    One that cannot be read raises: it must not be taken for one that is gone.
    """
    for slot in range(ask("nvmlDeviceGetMaxMigDeviceCount", gpu)):
        try:
            handle = ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu, slot)
        except NvmlError as error:
            if error.code == decode.NOT_FOUND:
                continue
            raise
        yield _device(ask, gpu, slot, handle, gpu_memory)


def _device(ask: Ask, gpu: Any, slot: int, handle: Any, gpu_memory: int | None) -> MigDevice:
    instance: int = ask("nvmlDeviceGetGpuInstanceId", handle)
    has = ask("nvmlDeviceGetAttributes_v2", handle)
    sizes = (has.gpuInstanceSliceCount, has.computeInstanceSliceCount, has.memorySizeMB)
    return MigDevice(
        uuid=MigUuid(ask("nvmlDeviceGetUUID", handle)),
        index=slot,
        gpu_instance=instance,
        compute_instance=ask("nvmlDeviceGetComputeInstanceId", handle),
        profile=decode.profile_in_name(ask("nvmlDeviceGetName", handle))
        or decode.profile_from_sizes(*sizes, gpu_memory),
        placement=_placement(ask, gpu, instance),
        memory_bytes=has.memorySizeMB * decode.MIB,
        multiprocessors=has.multiprocessorCount,
        gpu_slices=has.gpuInstanceSliceCount,
        compute_slices=has.computeInstanceSliceCount,
        copy_engines=has.sharedCopyEngineCount,
        decoders=has.sharedDecoderCount,
        encoders=has.sharedEncoderCount,
        jpegs=has.sharedJpegCount,
        ofas=has.sharedOfaCount,
    )


def _placement(ask: Ask, gpu: Any, instance: int) -> MigPlacement | None:
    """None where it may not be asked for: it takes root, or the capability ``mig/config``."""
    try:
        placement = ask("nvmlGpuInstanceGetInfo", ask("nvmlDeviceGetGpuInstanceById", gpu, instance)).placement
    except NvmlError as error:
        if error.code == decode.NO_PERMISSION or isinstance(error, NvmlNotSupported):
            return None
        raise
    return MigPlacement(placement.start, placement.size)
