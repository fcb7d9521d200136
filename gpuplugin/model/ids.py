"""Names that must not be mixed up, each a type of its own so that mypy notices when they are."""

from __future__ import annotations

import re
from typing import Final, NewType, TypeAlias

GpuUuid = NewType("GpuUuid", str)
"""As NVML gives it: ``GPU-`` and 8-4-4-4-12 hex digits."""

MigUuid = NewType("MigUuid", str)
"""``MIG-<uuid>``, or the legacy ``MIG-GPU-<uuid>/<gi>/<ci>``."""

DeviceUuid: TypeAlias = GpuUuid | MigUuid
"""Of a GPU, or of a MIG device on one."""

PciAddress = NewType("PciAddress", str)
"""As sysfs writes it: ``0000:1b:00.0``, lower case."""

NumaId = NewType("NumaId", int)
"""A NUMA node's number, 0 or more; "unknown" is None, never -1."""

DeviceId = NewType("DeviceId", str)
"""What kubelet calls a device: a GPU's UUID, a MIG device's UUID, or ``<uuid>::<n>`` for a replica."""

SLICE: Final = "::"
"""Stands between a device and the number of its replica, as the reference writes it."""

ResourceName = NewType("ResourceName", str)
"""An extended resource: ``nvidia.com/gpu``."""

_REPLICA = re.compile(r"0|[1-9][0-9]{0,8}")
_PCI = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")


def pci_address(text: str) -> PciAddress:
    """Bring NVML's (``00000000:1B:00.0``) or a person's (``1b:00.0``) notation to sysfs's.

    Raises ValueError when it is no PCI address.
    """
    match = _PCI.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a PCI address; expected domain:bus:device.function, such as 0000:1b:00.0")
    domain, bus, device, function = (int(part or "0", 16) for part in match.groups())
    return PciAddress(f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}")


def without_replica(device: str) -> tuple[DeviceId, int | None]:
    """Take ``<uuid>::<n>`` apart; the number is None where there is none, and -1 where something else stands for it."""
    base, mark, number = device.partition(SLICE)
    if not mark:
        return DeviceId(base), None
    return DeviceId(base), int(number) if _REPLICA.fullmatch(number) else -1
