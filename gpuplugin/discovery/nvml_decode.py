"""What NVML's numbers and texts mean: return codes, architectures, MIG profile names, fabrics.

Apart from `nvml_real`, because all of it is pure: it is tested with tables, without a library or a double of one.
"""

from __future__ import annotations

import re
from uuid import UUID

from gpuplugin.discovery.nvml import RecoveryAction
from gpuplugin.errors import GpuLost, NvmlError, NvmlNotSupported, NvmlUnavailable
from gpuplugin.model.inventory import AddressingMode, Fabric, FabricState

UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
ARGUMENT_VERSION_MISMATCH = 25
UNKNOWN = 999

_NAMES = {
    UNINITIALIZED: "UNINITIALIZED",
    INVALID_ARGUMENT: "INVALID_ARGUMENT",
    NOT_SUPPORTED: "NOT_SUPPORTED",
    NO_PERMISSION: "NO_PERMISSION",
    5: "ALREADY_INITIALIZED",
    NOT_FOUND: "NOT_FOUND",
    7: "INSUFFICIENT_SIZE",
    8: "INSUFFICIENT_POWER",
    DRIVER_NOT_LOADED: "DRIVER_NOT_LOADED",
    TIMEOUT: "TIMEOUT",
    11: "IRQ_ISSUE",
    LIBRARY_NOT_FOUND: "LIBRARY_NOT_FOUND",
    FUNCTION_NOT_FOUND: "FUNCTION_NOT_FOUND",
    14: "CORRUPTED_INFOROM",
    GPU_IS_LOST: "GPU_IS_LOST",
    RESET_REQUIRED: "RESET_REQUIRED",
    17: "OPERATING_SYSTEM",
    LIB_RM_VERSION_MISMATCH: "LIB_RM_VERSION_MISMATCH",
    19: "IN_USE",
    20: "MEMORY",
    21: "NO_DATA",
    22: "VGPU_ECC_NOT_SUPPORTED",
    23: "INSUFFICIENT_RESOURCES",
    24: "FREQ_NOT_SUPPORTED",
    ARGUMENT_VERSION_MISMATCH: "ARGUMENT_VERSION_MISMATCH",
    26: "DEPRECATED",
    27: "NOT_READY",
    28: "GPU_NOT_FOUND",
    29: "INVALID_STATE",
    30: "RESET_TYPE_NOT_SUPPORTED",
    UNKNOWN: "UNKNOWN",
}

_WORDS = {
    NO_PERMISSION: "this process may not open the device nodes /dev/nvidia*; run the container privileged",
    DRIVER_NOT_LOADED: "the kernel module nvidia is not loaded, or /dev/nvidiactl is missing; run nvidia-modprobe",
    LIBRARY_NOT_FOUND: "no usable libnvidia-ml.so.1; install the driver, or give the folder that it is installed in",
    GPU_IS_LOST: "the GPU has fallen off the bus; reset it, or restart the machine",
    RESET_REQUIRED: "the GPU does not work until it is reset",
    LIB_RM_VERSION_MISMATCH: (
        "the NVML library is of another version than the loaded kernel module, as after a driver update; "
        "restart the machine, or unload and reload the driver's modules"
    ),
}

_KINDS: dict[int, type[NvmlError]] = {
    UNINITIALIZED: NvmlUnavailable,
    DRIVER_NOT_LOADED: NvmlUnavailable,
    LIBRARY_NOT_FOUND: NvmlUnavailable,
    LIB_RM_VERSION_MISMATCH: NvmlUnavailable,
    NOT_SUPPORTED: NvmlNotSupported,
    FUNCTION_NOT_FOUND: NvmlNotSupported,
    ARGUMENT_VERSION_MISMATCH: NvmlNotSupported,
    GPU_IS_LOST: GpuLost,
    RESET_REQUIRED: GpuLost,
}

_ARCHITECTURES = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
    13: "rubin",
}

_BRANDS = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    7: "NvidiaVApps",
    8: "NvidiaVPC",
    9: "NvidiaVCS",
    10: "NvidiaVWS",
    11: "NvidiaCloudGaming",
    12: "QuadroRTX",
    13: "NvidiaRTX",
    14: "Nvidia",
    15: "GeForceRTX",
    16: "TitanRTX",
}

_PROFILE = re.compile(r" MIG ((?:\d+c\.)?\d+g\.\d+gb(?:[+-][a-z.]+)*)", re.ASCII)

MIB = 1024**2
GIB = 1024**3


def said(code: int) -> str:
    """What a return code (nvmlReturn_t) says, with what to do about it where there is something."""
    name = _NAMES.get(code, "an error that this version of gpuplugin does not know")
    return f"{name}: {_WORDS[code]}" if code in _WORDS else name


def typed_error(call: str, code: int) -> NvmlError:
    """Make the error that stands for `code`, of the kind that says who is affected."""
    return _KINDS.get(code, NvmlError)(call, code, said(code))


def architecture(number: int) -> str | None:
    """nvmlDeviceArchitecture_t's name in lower case; None for one that is no GPU's or not known yet."""
    return _ARCHITECTURES.get(number)


def brand(number: int) -> str | None:
    """nvmlBrandType_t's name as other programs for Kubernetes write it; None for one that is no GPU's or not known."""
    return _BRANDS.get(number)


def addressing_mode(number: int) -> AddressingMode | None:
    """nvmlDeviceAddressingModeType_t; None for one that is not known yet."""
    modes = (AddressingMode.NONE, AddressingMode.HMM, AddressingMode.ATS)
    return modes[number] if number in range(len(modes)) else None


def cuda_version(number: int) -> tuple[int, int]:
    """Take 13010 apart into (13, 1)."""
    return number // 1000, number % 1000 // 10


def fabric(state: int, cluster: bytes, clique: int, status: int, health_mask: int | None) -> Fabric | None:
    """Take nvmlGpuFabricInfo's fields; None for a state of a driver that knows more of them than we do.

    cluster: 16 bytes in the order they are written · health_mask: that of nvmlGpuFabricInfo_v2.
    """
    try:
        return Fabric(FabricState(state), str(UUID(bytes=cluster)), clique, status, health_mask)
    except ValueError:
        return None


def recovery_action(call: str, code: int, action: int) -> RecoveryAction | None:
    """Take field 230 as `call` gave it, with its own return code. None where the driver does not have it.

    Raises what the code stands for, and NvmlError for an action that we do not know: something is wrong with the GPU.
    """
    if code == INVALID_ARGUMENT:  # from a driver before this field
        return None
    if code:
        error = typed_error(call, code)
        if isinstance(error, NvmlNotSupported):
            return None
        raise error
    try:
        return RecoveryAction(action)
    except ValueError:
        text = f"the driver wants recovery action {action}, which this version of gpuplugin does not know"
        raise NvmlError(call, UNKNOWN, text) from None


def profile_in_name(device_name: str) -> str | None:
    """Find the profile in a MIG device's name: ``1c.2g.20gb`` in ``NVIDIA A100 80GB PCIe MIG 1c.2g.20gb``."""
    found = _PROFILE.search(device_name)
    return found[1] if found else None


def profile_from_sizes(gpu_slices: int, compute_slices: int, memory_mib: int, gpu_memory_bytes: int | None) -> str:
    """Name a MIG device after its sizes as NVIDIA does: ``3g.71gb``, with ``1c.`` before it where compute is divided.

    The memory in the name is the GPU's, rounded up to GiB, times the share in eighths that the slice rounds up to:
    a nominal size, somewhat above what the slice has. Variants of one size (``+me``) cannot be told apart by this.
    """
    prefix = f"{compute_slices}c." if compute_slices < gpu_slices else ""
    if not gpu_memory_bytes:
        return f"{prefix}{gpu_slices}g.{-(-memory_mib * MIB // GIB)}gb"
    eighths = -(-memory_mib * MIB * 8 // gpu_memory_bytes)
    whole = -(-gpu_memory_bytes // GIB)
    return f"{prefix}{gpu_slices}g.{(eighths * whole + 4) // 8}gb"
