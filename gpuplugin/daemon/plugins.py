"""Offers, brought to kubelet: one served and registered plugin for each resource, made when first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from gpuplugin.deviceplugin.registration import Registered
from gpuplugin.deviceplugin.server import DevicePlugin, Offer

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable
    from pathlib import Path

    from gpuplugin.deviceplugin.response import Delivery
    from gpuplugin.model.choices import Choice
    from gpuplugin.model.health import DeviceHealth
    from gpuplugin.model.ids import DeviceId, ResourceName
    from gpuplugin.plan.desired import OfferedDevice, OfferedResource
    from gpuplugin.topology.allocate import Tables

log = structlog.get_logger()


class Plugins:
    """All resources of the node. socket: kubelet's registration socket; ours go beside it."""

    def __init__(self, socket: Path, tasks: asyncio.TaskGroup) -> None:
        self._socket, self._tasks = socket, tasks
        self._served: dict[ResourceName, Registered] = {}
        self._running: list[asyncio.Task[None]] = []

    @property
    def resources(self) -> tuple[ResourceName, ...]:
        """Resources that kubelet has been, or is being, told of."""
        return tuple(self._served)

    @property
    def registered(self) -> bool:
        """Whether kubelet knows all of them."""
        return all(served.registered for served in self._served.values())

    @property
    def troubles(self) -> tuple[str, ...]:
        """Why kubelet does not know a resource, one text each; empty where it knows all."""
        return tuple(f"{name} is not registered with kubelet: {why}" for name, why in self.unregistered.items())

    @property
    def unregistered(self) -> dict[ResourceName, str]:
        """Why kubelet does not know a resource, by resource."""
        return {
            name: served.trouble or "not tried yet" for name, served in self._served.items() if not served.registered
        }

    @property
    def offered(self) -> tuple[OfferedResource, ...]:
        """What is offered now."""
        return tuple(served.plugin.offers.value.resource for served in self._served.values())

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The choices made lately, for each resource in the order they were made."""
        return tuple(choice for served in self._served.values() for choice in served.plugin.choices)

    @property
    def summary(self) -> tuple[str, ...]:
        """What is offered, one text for each resource that has devices."""
        return tuple(f"{offer.name}: {offer.usable} of {offer.size} usable" for offer in self.offered if offer.size)

    def publish(
        self, resources: Iterable[OfferedResource], tables: asyncio.Future[Tables], delivery: Delivery, *, pack: bool
    ) -> None:
        """Send the lists to whoever watches, and say in the log what has changed for which device."""
        for resource in resources:
            offer = Offer.of(resource, tables, delivery, pack=pack)
            served = self._served.get(resource.name)
            _tell(served.plugin.offers.value.resource if served else None, resource)
            if served:
                served.plugin.offers.set(offer)
                continue
            plugin = DevicePlugin(offer)
            self._served[resource.name] = served = Registered(self._socket, resource.name, plugin)
            self._running.append(self._tasks.create_task(served.run(), name=f"serve {resource.name}"))

    def close(self) -> None:
        """Stop serving; kubelet then counts the devices as unhealthy, and pods that hold some go on."""
        for task in self._running:
            task.cancel()


def _tell(before: OfferedResource | None, now: OfferedResource) -> None:
    """Say what has changed for which devices, those with one reason in one line."""
    known = {device.id: device.health for device in before.devices} if before else {}
    recovered: list[OfferedDevice] = []
    withdrawn: dict[DeviceHealth, list[OfferedDevice]] = {}
    still_withdrawn: dict[DeviceHealth, list[OfferedDevice]] = {}
    for device in now.devices:
        was = known.pop(device.id, None)
        if not device.health.usable and was != device.health:
            told = withdrawn if was is None or was.usable else still_withdrawn
            told.setdefault(device.health, []).append(device)
        elif device.health.usable and was is not None and not was.usable:
            recovered.append(device)
    if recovered:
        log.info("recovered", resource=now.name, **_named(recovered))
    for health, devices in withdrawn.items():
        log.warning("withdrawn", resource=now.name, health=health.level.value, reason=health.reason, **_named(devices))
    for health, devices in still_withdrawn.items():
        log.info("still withdrawn", resource=now.name, reason=health.reason, **_named(devices))
    if known:
        log.warning("gone", resource=now.name, devices=list(known))
    if before is None or (before.usable, before.size) != (now.usable, now.size):
        log.info("offering", resource=now.name, usable=now.usable, devices=now.size)


def _named(devices: list[OfferedDevice]) -> dict[str, list[int] | list[DeviceId]]:
    return {"gpus": [device.gpu_index for device in devices], "devices": [device.id for device in devices]}
