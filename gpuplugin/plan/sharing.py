"""Which devices are offered several times, under which name: time-slicing and MPS."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from gpuplugin.model.ids import ResourceName

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuplugin.config.settings import ReplicatedResource, Sharing
    from gpuplugin.plan.units import Unit


class Kind(Enum):
    """How containers share; the values are the sections' names under ``sharing``."""

    TIME_SLICING = "timeSlicing"
    MPS = "mps"


@dataclass(frozen=True, slots=True)
class Share:
    """A device offered `replicas` times.

    one_each: whether a container may have one of them only · spread: whether those of one container must be on
    different GPUs.
    """

    kind: Kind
    replicas: int
    one_each: bool = False
    spread: bool = False


def published_name(entry: ReplicatedResource, *, rename_by_default: bool) -> ResourceName:
    """Name the resource that the replicas of `entry` are offered as."""
    return ResourceName(entry.rename or (f"{entry.name}.shared" if rename_by_default else entry.name))


def shared(units: Sequence[Unit], sharing: Sharing) -> tuple[tuple[Unit, ...], tuple[str, ...]]:
    """Lay the sharing over the devices: those that are selected get a share and its name; all keep their places.

    Returns the devices, and a line for each part of a selection that this node does not have.
    """
    remarks: list[str] = []
    found = list(units)
    for kind, section in ((Kind.TIME_SLICING, sharing.time_slicing), (Kind.MPS, sharing.mps)):
        for number, entry in enumerate(section.resources if section else ()):
            key = f"sharing.{kind.value}.resources[{number}].devices"
            members = [unit for unit in units if unit.resource == entry.name]
            chosen = _selected(entry, members, key, remarks)
            name = published_name(entry, rename_by_default=section is not None and section.rename_by_default)
            one_each = section is not None and section.fail_requests_greater_than_one
            share = Share(kind, entry.replicas, one_each, entry.spread == "required")
            for place, unit in enumerate(units):
                if unit in chosen:
                    found[place] = replace(unit, resource=name, share=share)
    return tuple(found), tuple(remarks)


def _selected(entry: ReplicatedResource, members: list[Unit], key: str, remarks: list[str]) -> Iterable[Unit]:
    wanted = entry.devices
    if isinstance(wanted, str):
        return members
    if isinstance(wanted, int):
        if wanted > len(members):
            remarks.append(f"{key}: {wanted} of {entry.name} shall be shared, but this node has {len(members)}")
        return members[:wanted]
    chosen = []
    for reference in map(str, wanted):
        match = [unit for unit in members if reference.lower() in (unit.index, unit.uuid.lower())]
        if not match:
            remarks.append(f"{key}: no {entry.name} of this node is {reference!r}")
        chosen += match
    return chosen
