"""The choice in kubelet's words: device ids in, device ids out, and errors that say what is wrong with the request.

Whole GPUs are chosen by how they are joined. MIG devices and replicas are first of all spread or packed, by what is
taken of each; where that leaves several GPUs equal, they too are chosen by how they are joined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuplugin.errors import UnknownDevice, UnsatisfiableRequest
from gpuplugin.model.ids import without_replica
from gpuplugin.topology.explain import Reasons, explain
from gpuplugin.topology.graph import mask_of
from gpuplugin.topology.shares import Ledger, packed, spread_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuplugin.model.ids import DeviceId, ResourceName
    from gpuplugin.topology.allocate import Tables


@dataclass(frozen=True, slots=True)
class Place:
    """Where a device is: on which GPU, by its position in the tables' inventory, and how often it is offered.

    whole: whether it is all of that GPU · replicas: 0 where it is offered once, under its own id · alone: whether no
    other device of a container may be on the same GPU.
    """

    position: int
    whole: bool = True
    replicas: int = 0
    alone: bool = False

    @property
    def plain(self) -> bool:
        """Whether who has it has a GPU to himself."""
        return self.whole and not self.replicas


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen devices in inventory order, and what it takes to explain them: masks of positions."""

    devices: tuple[DeviceId, ...]
    tables: Tables
    chosen: int
    available: int

    def why(self) -> Reasons:
        """The facts behind the choice; their `str` is one line for people. Worked out on each call."""
        return explain(self.tables.graph, self.chosen, self.available, exact=self.tables.exact)


class Chooser:
    """Chooses among the devices of one resource.

    places: each device's, by its id without replica number, in the order in which people count them · pack: whether
    what is shared goes where most is taken already, instead of where least is.
    """

    def __init__(
        self, resource: ResourceName, tables: Tables, places: Mapping[DeviceId, Place], *, pack: bool = False
    ) -> None:
        self._resource, self._tables, self._places, self._pack = resource, tables, dict(places), pack
        self._order = {device: number for number, device in enumerate(self._places)}

    def choose(self, available: Iterable[DeviceId], must: Iterable[DeviceId], size: int) -> Choice:
        """The best `size` of `available` with all of `must`. The order and repetition of ids make no difference.

        A lost GPU is left out unless it is in `must`: whether it can still be used is for Allocate to say. So is a
        device that is offered no longer, of which kubelet has not heard yet.
        Raises UnknownDevice for an id in `must` that is none of the resource's, UnsatisfiableRequest when no set fits.
        """
        found = {device: self._find(device) for device in dict.fromkeys(available)}
        free = {device: place for device, place in found.items() if place is not None}
        gone = [device for device, place in found.items() if place is None]
        wanted = {device: self._parse(device) for device in dict.fromkeys(must)}
        lost = [one for one, (base, _) in free.items() if self._is_lost(base) and one not in wanted]
        if outside := [one for one in wanted if one not in free]:
            raise UnsatisfiableRequest(
                f"{self._resource}: {_named(outside)} must be included but is not among the available devices"
            )
        if size < len(wanted):
            raise UnsatisfiableRequest(
                f"{self._resource}: {size} asked for, but {len(wanted)} must be included: {_named(wanted)}"
            )
        for one in lost:
            del free[one]
        if size > len(free):
            without = f", leaving out the lost {_named(lost)}" if lost else ""
            without += f", without {_named(gone)}, which this resource does not have (any more)" if gone else ""
            raise UnsatisfiableRequest(f"{self._resource}: {size} asked for, but only {len(free)} can be used{without}")
        usable = self._mask(free.values())
        if all(self._places[base].plain for base, _ in free.values()):
            chosen = self._tables.choose(usable, self._mask(wanted.values()), size)
            picked = [one for one, (base, _) in free.items() if chosen >> self._places[base].position & 1]
        else:
            picked = self._shares(free, wanted, size)
        ordered = sorted(picked, key=lambda one: (self._order[free[one][0]], free[one][1]))
        return Choice(tuple(ordered), self._tables, self._mask(free[one] for one in picked), usable)

    def _shares(
        self, free: dict[DeviceId, tuple[DeviceId, int]], wanted: dict[DeviceId, tuple[DeviceId, int]], size: int
    ) -> list[DeviceId]:
        left: dict[DeviceId, list[DeviceId]] = {}
        for one in sorted((one for one in free if one not in wanted), key=lambda one: free[one][1]):
            left.setdefault(free[one][0], []).append(one)
        ledger = Ledger(
            positions={device: self._places[device].position for device in self._order},
            taken={device: (place.replicas or 1) - len(left.get(device, ())) for device, place in self._places.items()},
            free={device: len(left[device]) for device in self._order if device in left},
            picked=[base for base, _ in wanted.values()],
        )
        alone = any(self._places[base].alone for base, _ in free.values())
        if alone:
            self._check_room(ledger, wanted, size)
        pick = packed if self._pack else spread_out
        order = pick(ledger, self._tables, size - len(wanted), alone=alone)
        return [*wanted, *(left[device].pop(0) for device in order)]

    def _check_room(self, ledger: Ledger, wanted: Iterable[DeviceId], size: int) -> None:
        rule = "each on a GPU of its own (spread: required)"
        if len(set(ledger.gpus_picked)) < len(ledger.picked):
            raise UnsatisfiableRequest(
                f"{self._resource}: {size} asked for, {rule}, but {_named(wanted)} must be included and share a GPU"
            )
        room = len({ledger.positions[device] for device in ledger.free} | set(ledger.gpus_picked))
        if size > room:
            gpus = "1 GPU has" if room == 1 else f"{room} GPUs have"
            raise UnsatisfiableRequest(f"{self._resource}: {size} asked for, {rule}, but only {gpus} one to give")

    def _parse(self, device: DeviceId) -> tuple[DeviceId, int]:
        found = self._find(device)
        if found is None:
            raise UnknownDevice(self._resource, device)
        return found

    def _find(self, device: DeviceId) -> tuple[DeviceId, int] | None:
        """Give the device and its replica's number, 0 where it has none; None where it is none of the resource's."""
        base, replica = without_replica(device)
        place = self._places.get(base)
        return (base, replica or 0) if place is not None and _within(replica, place.replicas) else None

    def _is_lost(self, base: DeviceId) -> bool:
        return bool(self._tables.lost >> self._places[base].position & 1)

    def _mask(self, devices: Iterable[tuple[DeviceId, int]]) -> int:
        return mask_of({self._places[base].position for base, _ in devices})


def _within(replica: int | None, replicas: int) -> bool:
    """Whether there is such a replica: of none there is no number, of several there is no device without one."""
    return replica is None if not replicas else replica is not None and 0 <= replica < replicas


def _named(devices: Iterable[DeviceId]) -> str:
    return ", ".join(devices)
