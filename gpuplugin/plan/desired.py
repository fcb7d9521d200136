"""What shall be published: resources with their devices, decided from what was observed and what people configured.

Pure, and the only place that decides whether a GPU is offered, so that "why not?" has one answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuplugin.model.health import HEALTHY, DeviceHealth, Level
from gpuplugin.model.ids import DeviceId

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplugin.model.ids import GpuUuid, NumaId, ResourceName
    from gpuplugin.model.inventory import Gpu, Inventory
    from gpuplugin.plan.health import Health


@dataclass(frozen=True, slots=True)
class OfferedDevice:
    """One device of a resource. numa: the nodes for kubelet's TopologyInfo, empty where unknown."""

    id: DeviceId
    gpu: GpuUuid
    gpu_index: int
    health: DeviceHealth
    numa: tuple[NumaId, ...]


@dataclass(frozen=True, slots=True)
class OfferedResource:
    """A resource as kubelet shall see it, devices in a stable order (by GPU index)."""

    name: ResourceName
    devices: tuple[OfferedDevice, ...]

    @property
    def usable(self) -> int:
        """How many may be handed out now."""
        return sum(device.health.usable for device in self.devices)


@dataclass(frozen=True, slots=True)
class Desired:
    """The whole decision for one picture of the machine."""

    inventory: Inventory
    resources: tuple[OfferedResource, ...]


def whole_gpus(
    name: ResourceName,
    inventory: Inventory,
    health: Health,
    injection: Mapping[GpuUuid, str],
) -> OfferedResource:
    """Offer each GPU as one device of `name`.

    injection: GPUs that a container could not be given now, and why (a device node is missing, the CDI file cannot be
    written). A device that cannot be used stays in the list, unhealthy, so that kubelet keeps count of it.
    """
    return OfferedResource(name, tuple(_device(gpu, health, injection) for gpu in inventory.gpus))


def _device(gpu: Gpu, health: Health, injection: Mapping[GpuUuid, str]) -> OfferedDevice:
    numa = () if gpu.numa is None else (gpu.numa,)
    return OfferedDevice(DeviceId(gpu.uuid), gpu.uuid, gpu.index, _health(gpu, health, injection), numa)


def _health(gpu: Gpu, health: Health, injection: Mapping[GpuUuid, str]) -> DeviceHealth:
    known = health.of(gpu.uuid)
    if known.level is Level.UNKNOWN:
        return known
    reasons = [text for text in (gpu.fault or "", known.reason, injection.get(gpu.uuid, "")) if text]
    return DeviceHealth(Level.UNHEALTHY, "; ".join(reasons)) if reasons else HEALTHY
