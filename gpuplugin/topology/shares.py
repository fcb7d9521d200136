"""Spreading and packing: the order in which devices are taken that share GPUs with others.

As the reference does it, least or most taken first, one after the other. What it leaves to chance is decided here: MIG
devices count by their GPU as well, and among GPUs that are equal the best joined are taken.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuplugin.topology.graph import mask_of
from gpuplugin.topology.graph import positions as positions_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuplugin.model.ids import DeviceId
    from gpuplugin.topology.allocate import Tables


@dataclass(slots=True)
class Ledger:
    """How things stand with each device, while some are picked.

    positions: of their GPUs, of all devices in order · taken: how many replicas somebody has, what is picked included ·
    free: how many may still be picked, devices without any left out · picked: one entry a replica.
    """

    positions: Mapping[DeviceId, int]
    taken: dict[DeviceId, int]
    free: dict[DeviceId, int]
    picked: list[DeviceId]
    _on_gpu: Counter[int] = field(init=False)

    def __post_init__(self) -> None:
        self._on_gpu = Counter()
        for device, count in self.taken.items():
            self._on_gpu[self.positions[device]] += count

    @property
    def gpus_picked(self) -> list[int]:
        """The positions of what is picked, one entry a replica."""
        return [self.positions[device] for device in self.picked]

    def load(self, device: DeviceId) -> tuple[int, int, int]:
        """How much is taken: of the device, of it in this round, of its GPU."""
        return self.taken[device], self.picked.count(device), self._on_gpu[self.positions[device]]

    def pick(self, device: DeviceId) -> None:
        """Take one replica."""
        self.picked.append(device)
        self.taken[device] += 1
        self._on_gpu[self.positions[device]] += 1
        self.free[device] -= 1
        if not self.free[device]:
            del self.free[device]

    def candidates(self, *, alone: bool) -> list[DeviceId]:
        """The devices that may be picked next, in order; with `alone` only on GPUs of which nothing is picked."""
        used = set(self.gpus_picked) if alone else set()
        return [device for device in self.free if self.positions[device] not in used]


def spread_out(ledger: Ledger, tables: Tables, count: int, *, alone: bool) -> Sequence[DeviceId]:
    """Pick `count` where least is taken. There must be as many."""
    order: list[DeviceId] = []
    while len(order) < count:
        candidates = ledger.candidates(alone=alone)
        least = min(map(ledger.load, candidates))
        on_gpu: dict[int, DeviceId] = {}
        for device in candidates:
            if ledger.load(device) == least:
                on_gpu.setdefault(ledger.positions[device], device)
        for position in _joined_best(on_gpu, ledger, tables, count - len(order)):
            ledger.pick(on_gpu[position])
            order.append(on_gpu[position])
    return order


def packed(ledger: Ledger, tables: Tables, count: int, *, alone: bool) -> Sequence[DeviceId]:
    """Pick `count` where most is taken. There must be as many."""
    del tables
    order: list[DeviceId] = []
    while len(order) < count:
        device = max(ledger.candidates(alone=alone), key=lambda one: (ledger.load(one)[0], ledger.load(one)[2]))
        ledger.pick(device)
        order.append(device)
    return order


def _joined_best(on_gpu: Mapping[int, DeviceId], ledger: Ledger, tables: Tables, most: int) -> Sequence[int]:
    """The GPUs of equals to take from, at most `most`: those not picked yet that go best with those that are."""
    before = mask_of(set(ledger.gpus_picked))
    fresh = mask_of(on_gpu) & ~before
    if not fresh:
        return sorted(on_gpu)[:most]
    if fresh.bit_count() <= most:
        return positions_in(fresh)
    chosen = tables.choose(fresh | before, before, before.bit_count() + most)
    return positions_in(chosen & ~before)
