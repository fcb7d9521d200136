"""What makes one set of GPUs better than another, in one place.

From most to least important:

1. few NVLink islands: parts that the set falls into when only its own NVLinks join it. A link by way of a GPU that is
   not in the set does not count, because the container cannot use it;
2. many NVLinks between its GPUs;
3. few NUMA nodes, then near ones. An unknown node adds none, but is as far as the farthest;
4. near by PCIe: the sum of the levels of all pairs, so that GPUs under one switch come first;
5. NICs: many GPUs with a nearby NIC to themselves, counted by pool as the lesser of GPUs and NICs.

The order of 2 to 4 is that of go-gpuallocator's weights (an NVLink is worth 100, a PCIe step 10), kept strict so that
no number of PCIe steps ever outweighs a NUMA node. Sets equal in all of these differ in what they leave free, see
`Score.left_over`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplugin.topology.graph import mask_of, positions, reached

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuplugin.topology.graph import Graph

_CHUNK = 8
_BYTE = (1 << _CHUNK) - 1
_LEVEL_STEP = 10


class Score:
    """Costs of sets of one graph's GPUs. A cost is one integer, less is better, and says nothing by itself.

    Each criterion is weighted so that all below it together cannot reach one step of it: comparing integers is then
    comparing criterion by criterion.
    """

    def __init__(self, graph: Graph) -> None:
        size = len(graph.labels)
        pairs = size * (size - 1) // 2
        steps = max((level // _LEVEL_STEP for row in graph.levels for level in row), default=0)
        distance = max((max(row) for row in graph.distances), default=0)
        links = max((max(row) for row in graph.links), default=0)
        per_step = size + 1
        per_distance = per_step * (steps * pairs + 1)
        self._per_node = per_distance * (distance * pairs + 1)
        per_link = self._per_node * (size + 1)
        self._per_island = per_link * (links * pairs + 1)

        everyone = range(size)
        self.pair = tuple(
            tuple(
                per_distance * graph.distances[i][j]
                + per_step * (graph.levels[i][j] // _LEVEL_STEP)
                - per_link * graph.links[i][j]
                if i != j
                else 0
                for j in everyone
            )
            for i in everyone
        )
        self._pair_sums = tuple(_sums_by_byte(row) for row in self.pair)
        self._linked = tuple(mask_of(j for j in everyone if graph.links[i][j]) for i in everyone)
        self._all_to_all = all(
            island & ~self._linked[i] == 1 << i for island in graph.islands for i in positions(island)
        )
        self._node_of = tuple(next((node for node in graph.nodes if node >> i & 1), 0) for i in everyone)
        self._known_node = mask_of(i for i in everyone if self._node_of[i])
        pools = [next((pool for pool in graph.pools if pool.gpus >> i & 1), None) for i in everyone]
        self._pool_of = tuple((pool.gpus, pool.nics) if pool else (0, 0) for pool in pools)
        self._groups = (graph.islands, graph.nodes, graph.branches)

    def cost(self, mask: int) -> int:
        """What the set costs. Sets of different size are not to be compared."""
        total = taken = 0
        for i in positions(mask):
            total += self.added(taken, i)
            taken |= 1 << i
        return total

    def added(self, mask: int, i: int) -> int:
        """What the cost grows by when i joins the set, in time that does not depend on the number of GPUs much."""
        total = self._islands_added(mask, i) * self._per_island
        rest = mask
        for sums in self._pair_sums[i]:
            total += sums[rest & _BYTE]
            rest >>= _CHUNK
        node = self._node_of[i]
        if node and not node & mask and self._known_node & mask:
            total += self._per_node
        pool, nics = self._pool_of[i]
        if (pool & mask).bit_count() < nics:
            total -= 1
        return total

    def left_over(self, free: int) -> tuple[int, int, int]:
        """How broken up the GPUs that stay free are, by islands, then NUMA nodes, then switches; less is better.

        The negative sum of squares: it is least when what is free lies together, so a whole island is broken into only
        when nothing smaller serves.
        """
        islands, nodes, branches = (
            -sum((group & free).bit_count() ** 2 for group in groups) for groups in self._groups
        )
        return islands, nodes, branches

    def _islands_added(self, mask: int, i: int) -> int:
        touched = self._linked[i] & mask
        if not touched:
            return 1
        if self._all_to_all:
            return 0
        joined = 0
        while touched:
            touched &= ~reached(self._linked, touched & -touched, mask)
            joined += 1
        return 1 - joined


def interchangeable(graph: Graph, score: Score) -> tuple[tuple[int, ...], ...]:
    """The GPUs in classes within which swapping any two changes no set's cost and nothing that is left over.

    A set is then described by how many of each class it has, which is what keeps the search small. Being swappable is
    transitive, since a swap of i and k is three swaps by way of j.
    """
    classes: list[list[int]] = []
    for i in range(len(graph.labels)):
        for members in classes:
            if _swappable(graph, score, members[0], i):
                members.append(i)
                break
        else:
            classes.append([i])
    return tuple(map(tuple, classes))


def _swappable(graph: Graph, score: Score, i: int, j: int) -> bool:
    pools = [pool.gpus for pool in graph.pools]
    return all(score.pair[i][k] == score.pair[j][k] for k in range(len(graph.labels)) if k not in (i, j)) and all(
        _alike(groups, i, j) for groups in (graph.nodes, graph.branches, pools)
    )


def _alike(groups: Sequence[int], i: int, j: int) -> bool:
    """Whether both are in one group, both in none, or each in a group of its own.

    Two GPUs that are alone with their NICs are alike however many NICs those are: one is served either way.
    """
    mine, other = (next((group for group in groups if group >> k & 1), 0) for k in (i, j))
    return mine == other or (mine == 1 << i and other == 1 << j)


def _sums_by_byte(row: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Sums of a row's entries for every mask, cut into bytes: sums[b][m] is that of the positions 8b + (bits of m)."""
    tables = []
    for start in range(0, len(row), _CHUNK):
        sums = [0]
        for value in row[start : start + _CHUNK]:
            sums += [value + before for before in sums]
        tables.append(tuple(sums))
    return tuple(tables)
