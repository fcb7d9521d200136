"""The choice in kubelet's words: device ids in, device ids out, and errors that say what is wrong with the request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuplugin.errors import UnknownDevice, UnsatisfiableRequest
from gpuplugin.topology.explain import Reasons, explain
from gpuplugin.topology.graph import mask_of, positions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuplugin.model.ids import DeviceId, ResourceName
    from gpuplugin.topology.allocate import Tables


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
    """Chooses among the devices of one resource, each a whole GPU.

    places: each device's position in the tables' inventory. Raises ValueError when two devices are on one GPU.
    """

    def __init__(self, resource: ResourceName, tables: Tables, places: Mapping[DeviceId, int]) -> None:
        self._resource, self._tables, self._places = resource, tables, dict(places)
        self._devices = {place: device for device, place in self._places.items()}
        if len(self._devices) != len(self._places):
            raise ValueError(f"{resource}: two devices on one GPU; a Chooser takes whole GPUs")

    def choose(self, available: Iterable[DeviceId], must: Iterable[DeviceId], size: int) -> Choice:
        """The best `size` of `available` with all of `must`. The order and repetition of ids make no difference.

        A lost GPU is left out unless it is in `must`: whether it can still be used is for Allocate to say.
        Raises UnknownDevice for an id that is none of the resource's, UnsatisfiableRequest when no set fits.
        """
        free, wanted = self._mask(available), self._mask(must)
        lost = free & self._tables.lost & ~wanted
        usable = (free & ~lost).bit_count()
        if outside := wanted & ~free:
            raise UnsatisfiableRequest(
                f"{self._resource}: {self._named(outside)} must be included but is not among the available devices"
            )
        if size < wanted.bit_count():
            raise UnsatisfiableRequest(
                f"{self._resource}: {size} asked for, but {wanted.bit_count()} must be included: {self._named(wanted)}"
            )
        if size > usable:
            without = f", leaving out the lost {self._named(lost)}" if lost else ""
            raise UnsatisfiableRequest(f"{self._resource}: {size} asked for, but only {usable} can be used{without}")
        chosen = self._tables.choose(free, wanted, size)
        return Choice(tuple(self._devices[place] for place in positions(chosen)), self._tables, chosen, free & ~lost)

    def _mask(self, devices: Iterable[DeviceId]) -> int:
        try:
            return mask_of({self._places[device] for device in devices})
        except KeyError as missing:
            raise UnknownDevice(self._resource, str(missing.args[0])) from None

    def _named(self, mask: int) -> str:
        return ", ".join(self._devices[place] for place in positions(mask))
