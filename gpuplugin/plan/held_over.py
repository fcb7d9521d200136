"""Devices that pods have under a name or in a form that is offered no more, and that must not be given a second time.

Kubelet counts by resource and by device id. When ``nvidia.com/gpu`` is renamed, or whole GPUs become slices, it takes
what is offered now for other devices that nobody has, while pods go on with the GPUs that they were given before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpuplugin.model.ids import DeviceId, without_replica

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuplugin.model.ids import DeviceUuid, ResourceName
    from gpuplugin.plan.units import Unit

NOT_ASKED: Final = "kubelet has not said yet whether a pod still has it as it was offered before"


@dataclass(frozen=True, slots=True)
class Grant:
    """A device that kubelet has given a pod. id: as kubelet calls it · pod: ``namespace/name``."""

    resource: str
    id: str
    pod: str


@dataclass(frozen=True, slots=True)
class Form:
    """How a device is offered: under which name, and whether whole or shared."""

    device: DeviceUuid
    resource: ResourceName
    shared: bool


def forms(units: Iterable[Unit]) -> frozenset[Form]:
    """Give the forms of all devices."""
    return frozenset(Form(unit.uuid, unit.resource, unit.share is not None) for unit in units)


def changed(before: frozenset[Form], now: frozenset[Form]) -> frozenset[DeviceUuid]:
    """Give the devices that were offered before, and are offered otherwise now."""
    known = {form.device for form in before}
    return frozenset(form.device for form in now - before if form.device in known)


def held_over(units: Iterable[Unit], grants: Iterable[Grant]) -> dict[DeviceUuid, str]:
    """Say which devices must wait for a pod to end, and why.

    Those who share a device go on sharing it with newcomers, whatever that is called by now; what a pod has to itself
    is given to nobody else, and what is offered whole is given to nobody while others still share it.
    """
    having: dict[str, list[Grant]] = {}
    for grant in sorted(grants, key=lambda grant: (grant.pod, grant.resource, grant.id)):
        having.setdefault(without_replica(grant.id)[0], []).append(grant)
    found: dict[DeviceUuid, str] = {}
    for unit in units:
        grants_of_it = (grant for device in _one_with(unit) for grant in having.get(device, ()))
        other = next((grant for grant in grants_of_it if not _agree(unit, grant)), None)
        if other is not None:
            found[unit.uuid] = (
                f"pod {other.pod} still has it as {other.resource} ({other.id}); "
                f"it is handed out as {unit.resource} once that has ended"
            )
    return found


def _one_with(unit: Unit) -> Iterator[DeviceUuid]:
    """Give the device itself, and those that are it in part or of which it is a part."""
    yield unit.uuid
    if unit.mig is not None:
        yield unit.gpu.uuid
    else:
        yield from (mig.uuid for mig in unit.gpu.mig_devices)


def _agree(unit: Unit, grant: Grant) -> bool:
    device, replica = without_replica(grant.id)
    if device != DeviceId(unit.uuid):
        return False
    if unit.share is not None:
        return replica is not None
    return replica is None and grant.resource == unit.resource
