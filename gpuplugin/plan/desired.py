"""What shall be published: resources with their devices, decided from what was observed and what people configured.

Pure, and the only place that decides whether a GPU is offered, so that "why not?" has one answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuplugin.model.health import HEALTHY, DeviceHealth, Level
from gpuplugin.model.ids import DeviceId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpuplugin.model.ids import DeviceUuid, GpuUuid, NumaId, ResourceName
    from gpuplugin.model.inventory import Gpu, Inventory
    from gpuplugin.plan.health import Health


@dataclass(frozen=True, slots=True)
class OfferedDevice:
    """One device of a resource.

    gpu_index: NVML's · position: of its GPU in the inventory · numa: the nodes for kubelet's TopologyInfo, empty where
    unknown.
    """

    id: DeviceId
    gpu: GpuUuid
    gpu_index: int
    position: int
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


def whole_gpus(
    inventory: Inventory,
    health: Health,
    injection: Mapping[DeviceUuid, str],
    resource_of: Callable[[str], ResourceName],
    earlier: Iterable[ResourceName] = (),
) -> tuple[OfferedResource, ...]:
    """Offer each GPU as one device of the resource that `resource_of` its model gives, resources in order of name.

    injection: GPUs that a container could not be given now, and why (a device node is missing, the CDI file cannot be
    written) · earlier: resources that kubelet has been told of; one that has no GPU any more is offered empty, since
    kubelet would otherwise go on counting what it was told last. A device that cannot be used stays in the list,
    unhealthy, so that kubelet keeps count of it.
    """
    devices: dict[ResourceName, list[OfferedDevice]] = {name: [] for name in earlier}
    for position, gpu in enumerate(inventory.gpus):
        health_now = _health(gpu, health, injection)
        numa = () if gpu.numa is None else (gpu.numa,)
        device = OfferedDevice(DeviceId(gpu.uuid), gpu.uuid, gpu.index, position, health_now, numa)
        devices.setdefault(resource_of(gpu.model), []).append(device)
    return tuple(OfferedResource(name, tuple(devices[name])) for name in sorted(devices))


def _health(gpu: Gpu, health: Health, injection: Mapping[DeviceUuid, str]) -> DeviceHealth:
    known = health.of(gpu.uuid)
    if known.level is Level.UNKNOWN:
        return known
    reasons = dict.fromkeys(text for text in (gpu.fault or "", known.reason, injection.get(gpu.uuid, "")) if text)
    return DeviceHealth(Level.UNHEALTHY, "; ".join(reasons)) if reasons else HEALTHY
