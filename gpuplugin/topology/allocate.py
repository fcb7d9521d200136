"""The best set of GPUs by exact search, with the work done when the inventory changes and not when kubelet asks.

Every set that differs from others by more than a swap of interchangeable GPUs is scored once and kept in order, best
first. A choice then walks down from the best to the first that fits what is free. With 16 GPUs that are all different
there are 65,536 sets; real machines have far fewer, since GPUs under one switch are usually alike.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from typing import TYPE_CHECKING

from gpuplugin.topology.graph import Graph, mask_of, positions
from gpuplugin.topology.score import Score, interchangeable
from gpuplugin.topology.search import good_set

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuplugin.model.inventory import Inventory

_MOST_SETS = 1 << 16
_MOST_GPUS = 64


@dataclass(frozen=True, slots=True)
class RankedSets:
    """Sets of one size, best first. ranks: equal where the score is equal, ascending."""

    masks: array[int]
    ranks: array[int]

    def best(self, must: int, available: int) -> list[int]:
        """All sets of the best score that fit; one at least fits when the request can be met at all."""
        fixed = must | ~available
        for at, mask in enumerate(self.masks):
            if mask & fixed == must:
                end = bisect_right(self.ranks, self.ranks[at], at)
                return [mask for mask in islice(self.masks, at, end) if mask & fixed == must]
        raise ValueError(f"no set of {self.masks[0].bit_count()} in {available:#x} with {must:#x}")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tables:
    """Everything about one graph that can be worked out before a choice is asked for. Any thread may use it.

    classes: positions that can be swapped for one another · by_size[k]: the sets of k GPUs, empty unless `exact` ·
    exact: whether the chosen set is the best there is; false only above 16 GPUs, where too few are alike (see `search`)
    · lost: mask of the GPUs that have a fault; they are never chosen unless they must be.
    """

    graph: Graph
    score: Score
    classes: tuple[tuple[int, ...], ...]
    by_size: tuple[RankedSets, ...]
    exact: bool
    lost: int

    @classmethod
    def build(cls, inventory: Inventory, earlier: Tables | None = None) -> Tables:
        """Tables of an inventory, taking over those of an `earlier` one when nothing but faults has changed.

        About 1 ms for 8 GPUs and a tenth of a second for 16 that are all different: call it in a worker thread.
        """
        graph = Graph.of(inventory)
        lost = mask_of(i for i, gpu in enumerate(inventory.gpus) if gpu.fault is not None)
        if earlier is not None and earlier.graph == graph:
            return replace(earlier, lost=lost)
        score = Score(graph)
        classes = interchangeable(graph, score)
        gpus = len(graph.labels)
        exact = prod(len(members) + 1 for members in classes) <= _MOST_SETS and gpus <= _MOST_GPUS
        return cls(graph, score, classes, _ranked(score, classes, gpus) if exact else (), exact, lost)

    def choose(self, available: int, must: int, size: int) -> int:
        """The best `size` positions out of `available` with all of `must`, as masks.

        Lost GPUs are left out, except in `must`: those kubelet has already given to the container, and an answer
        without them would be refused. Sets of equal score are told apart by what they leave free, then by the lowest
        positions, so the answer depends on nothing but the arguments.

        Raises ValueError when `must` is not within `available`, or `size` not between the number of `must` and of
        those that can be used.
        """
        usable = available & ~self.lost | must
        if must & ~available or not must.bit_count() <= size <= usable.bit_count():
            raise ValueError(f"no set of {size} in {usable:#x} with {must:#x}")
        if size == must.bit_count():
            return must
        if size == usable.bit_count():
            return usable
        if not self.exact:
            return good_set(self.score, usable, must, size, self.classes)
        few, many = self._standing_for(must), self._standing_for(usable)
        best = self.by_size[size].best(few, many)
        if len(best) > 1:
            broken_up = [self.score.left_over(many & ~mask) for mask in best]
            least = min(broken_up)
            best = [mask for mask, left in zip(best, broken_up, strict=True) if left == least]
        picks = [_picks(members, usable, must) for members in self.classes]
        return min((_real(mask, picks) for mask in best), key=positions)

    def _standing_for(self, mask: int) -> int:
        """The set in the tables that the mask is a swapped form of: of each class as many, but the lowest."""
        standing = 0
        for members in self.classes:
            standing |= mask_of(members[: sum(mask >> i & 1 for i in members)])
        return standing


def _picks(members: Sequence[int], usable: int, must: int) -> tuple[int, list[int]]:
    """A class as a mask, and the real members to take for each number of them, as masks: `must` first, then the lowest.

    Numbers that `must` rules out have all of `must`; they are not asked for.
    """
    everyone = mask_of(members)
    picks = [must & everyone] * ((must & everyone).bit_count() + 1)
    for i in positions(usable & everyone & ~must):
        picks.append(picks[-1] | 1 << i)
    return everyone, picks


def _real(standing: int, picks: Sequence[tuple[int, Sequence[int]]]) -> int:
    return sum(of_class[(standing & everyone).bit_count()] for everyone, of_class in picks)


def _ranked(score: Score, classes: Sequence[Sequence[int]], gpus: int) -> tuple[RankedSets, ...]:
    masks, costs = [0], [0]
    for members in classes:
        layer_masks, layer_costs = list(masks), list(costs)
        for member in members:
            layer_costs = [
                cost + score.added(mask, member) for mask, cost in zip(layer_masks, layer_costs, strict=True)
            ]
            layer_masks = [mask | 1 << member for mask in layer_masks]
            masks += layer_masks
            costs += layer_costs
    by_size: list[list[int]] = [[] for _ in range(gpus + 1)]
    for mask, cost in zip(masks, costs, strict=True):
        by_size[mask.bit_count()].append(cost << gpus | mask)
    return tuple(_in_order(entries, gpus) for entries in by_size)


def _in_order(entries: list[int], gpus: int) -> RankedSets:
    entries.sort()
    ranks = array("I")
    rank, before = 0, None
    for entry in entries:
        cost = entry >> gpus
        rank += before is not None and cost != before
        ranks.append(rank)
        before = cost
    everyone = (1 << gpus) - 1
    return RankedSets(array("Q", (entry & everyone for entry in entries)), ranks)
