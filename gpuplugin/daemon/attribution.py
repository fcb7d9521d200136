"""Who has which device and how it is, as metrics want to know it: pure, from what kubelet, plan and plugins say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplugin.metrics.collect import Holding
from gpuplugin.model.holds import Owner
from gpuplugin.model.ids import without_replica
from gpuplugin.plan.desired import for_claims
from gpuplugin.topology.numa import Alignment, alignment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpuplugin.config.settings import Dra
    from gpuplugin.model.health import DeviceHealth
    from gpuplugin.model.ids import GpuUuid
    from gpuplugin.model.inventory import Inventory
    from gpuplugin.plan.desired import Facts, OfferedResource
    from gpuplugin.serving.pod_resources import PodResources

Place = tuple["GpuUuid", int | None]
"""A GPU, or one of its GPU instances."""


def holdings(pods: PodResources, inventory: Inventory) -> tuple[Holding, ...]:
    """Give what pods have of this machine. Devices of other plugins and drivers are not in it.

    A device of a claim is told by its name in a CDI document, which ends with its UUID.
    """
    return tuple(_holdings(pods, _places(inventory)))


def _places(inventory: Inventory) -> dict[str, Place]:
    return {
        uuid: place
        for gpu in inventory.gpus
        for uuid, place in (
            (gpu.uuid, (gpu.uuid, None)),
            *((mig.uuid, (gpu.uuid, mig.gpu_instance)) for mig in gpu.mig_devices),
        )
    }


def _holdings(pods: PodResources, places: Mapping[str, Place]) -> Iterator[Holding]:
    for device in pods.plugin_devices:
        place = places.get(without_replica(device.id)[0])
        if place is not None:
            yield Holding(*place, device.resource, device.namespace, device.pod, device.container)
    for claimed in pods.claimed:
        for place in {places[name]: None for name in map(_last, claimed.cdi) if name in places}:
            yield Holding(
                *place,
                resource="",
                namespace=claimed.namespace,
                pod=claimed.pod,
                container=claimed.container,
                claim_namespace=claimed.namespace,
                claim=claimed.claim,
                device=claimed.device,
            )


def _last(qualified_name: str) -> str:
    return qualified_name.rpartition("=")[2]


def health(
    inventory: Inventory, offered: Iterable[OfferedResource], facts: Facts, dra: Dra
) -> dict[Place, DeviceHealth]:
    """Say of each device that is handed out how it is. Of an instance's compute instances the worst counts."""
    places = _places(inventory)
    found: dict[Place, DeviceHealth] = {
        (gpu.uuid, None): for_claims(gpu, facts, "") for gpu in inventory.gpus if dra.includes(gpu)
    }
    for resource in offered:
        for device in resource.devices:
            place = places.get(device.uuid)
            if place is not None and (place not in found or found[place].usable):
                found[place] = device.health
    return found


def free(
    inventory: Inventory,
    offered: Iterable[OfferedResource],
    held: Iterable[Holding],
    levels: Mapping[Place, DeviceHealth],
    dra: Dra,
) -> dict[str, Alignment]:
    """Say where whole GPUs are free, by who hands them out. GPUs that are shared, or in MIG mode, are no whole ones."""
    taken = {holding.gpu for holding in held}
    able = {
        place
        for place, gpu in enumerate(inventory.gpus)
        if gpu.uuid not in taken and (level := levels.get((gpu.uuid, None))) is not None and level.usable
    }
    whole = {
        device.position
        for resource in offered
        for device in resource.devices
        if device.mig is None and device.share is None
    }
    claims = {place for place, gpu in enumerate(inventory.gpus) if dra.includes(gpu)}
    owners = ((Owner.DEVICE_PLUGIN, whole - claims), (Owner.CLAIMS, claims))
    return {owner.name.lower(): alignment(inventory, able & theirs) for owner, theirs in owners if theirs}
