"""The machine as the choice of devices sees it: who is linked to whom, and which GPUs share what.

Everything is by position, a GPU's place in `Inventory.gpus`, and a set of GPUs is a bit mask of positions: the search
looks at thousands of sets, and a mask makes membership, intersection and size one machine operation each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuplugin.model.links import PcieLevel, pcie_level

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from gpuplugin.model.ids import NumaId, PciAddress
    from gpuplugin.model.inventory import Gpu, Inventory, Nic, NumaNode

NEARBY = PcieLevel.PXB
"""A NIC further away than this is reached through a host bridge: GPUDirect gains little there."""


def positions(mask: int) -> tuple[int, ...]:
    """The positions in a mask, ascending."""
    return tuple(_bits(mask))


def mask_of(chosen: Iterable[int]) -> int:
    """The mask with these positions."""
    mask = 0
    for position in chosen:
        mask |= 1 << position
    return mask


@dataclass(frozen=True, slots=True)
class NicPool:
    """GPUs (a mask) whose nearest NICs are the same or overlap, and how many NICs they have between them."""

    gpus: int
    nics: int


@dataclass(frozen=True, slots=True)
class Graph:
    """What of an inventory bears on the choice; equal graphs give equal choices.

    labels: the GPUs' NVML indices, for people · links[i][j]: NVLinks that both ends have up · levels[i][j]: PCIe ·
    distances[i][j]: between their NUMA nodes, as the kernel says; the greatest known where it does not say, 0 without
    any table · numa, switches: None where unknown or none · nics: names of each GPU's nearest NICs within NEARBY.
    islands, nodes, branches: masks of the GPUs joined by NVLinks (directly or through others), in one NUMA node, under
    one PCIe switch; GPUs with an unknown node or without a switch are in none.
    """

    labels: tuple[int, ...]
    links: tuple[tuple[int, ...], ...]
    levels: tuple[tuple[PcieLevel, ...], ...]
    distances: tuple[tuple[int, ...], ...]
    numa: tuple[NumaId | None, ...]
    switches: tuple[PciAddress | None, ...]
    nics: tuple[tuple[str, ...], ...]
    islands: tuple[int, ...]
    nodes: tuple[int, ...]
    branches: tuple[int, ...]
    pools: tuple[NicPool, ...]

    @classmethod
    def of(cls, inventory: Inventory) -> Graph:
        """Read the graph off an inventory. Never fails: what is not known makes GPUs look alike."""
        gpus = inventory.gpus
        everyone = range(len(gpus))
        links = tuple(tuple(inventory.nvlinks.between(i, j) for j in everyone) for i in everyone)
        numa = tuple(gpu.numa for gpu in gpus)
        switches = tuple(gpu.pcie.switch if gpu.pcie else None for gpu in gpus)
        nics = tuple(nearest_nics(gpu, inventory.nics) for gpu in gpus)
        return cls(
            labels=tuple(gpu.index for gpu in gpus),
            links=links,
            levels=tuple(tuple(_level(gpus[i], gpus[j]) for j in everyone) for i in everyone),
            distances=_distances(numa, inventory.numa_nodes),
            numa=numa,
            switches=switches,
            nics=nics,
            islands=components(tuple(mask_of(j for j in everyone if row[j]) for row in links), (1 << len(gpus)) - 1),
            nodes=_sharing(numa),
            branches=_sharing(switches),
            pools=_pools(nics),
        )


def nearest_nics(gpu: Gpu, nics: Sequence[Nic]) -> tuple[str, ...]:
    """Names of the NICs nearest to a GPU, in the order given; empty when none is within NEARBY."""
    levels = [pcie_level(gpu.pcie, nic.pcie, gpu.numa, nic.numa) for nic in nics]
    nearest = min(levels, default=PcieLevel.SYS)
    if nearest > NEARBY:
        return ()
    return tuple(nic.name for nic, level in zip(nics, levels, strict=True) if level == nearest)


def components(neighbours: Sequence[int], within: int) -> tuple[int, ...]:
    """The connected parts of `within`, as masks, by lowest position. neighbours[i]: mask of those joined to i."""
    parts = []
    while within:
        part = reached(neighbours, within & -within, within)
        parts.append(part)
        within &= ~part
    return tuple(parts)


def reached(neighbours: Sequence[int], start: int, within: int) -> int:
    """Everything in `within` that can be reached from the one position in `start`, itself included."""
    seen = frontier = start
    while frontier:
        lowest = frontier & -frontier
        found = neighbours[lowest.bit_length() - 1] & within & ~seen
        seen |= found
        frontier = frontier ^ lowest | found
    return seen


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _level(a: Gpu, b: Gpu) -> PcieLevel:
    return PcieLevel.SELF if a is b else pcie_level(a.pcie, b.pcie, a.numa, b.numa)


def _distances(numa: Sequence[NumaId | None], nodes: Sequence[NumaNode]) -> tuple[tuple[int, ...], ...]:
    known = {
        (node.id, other.id): distance for node in nodes for other, distance in zip(nodes, node.distances, strict=False)
    }
    far = max(known.values(), default=0)

    def between(a: NumaId | None, b: NumaId | None) -> int:
        if a is None or b is None:
            return far
        return max(known.get((a, b), far), known.get((b, a), far))

    return tuple(tuple(between(a, b) for b in numa) for a in numa)


def _sharing(what: Sequence[Hashable | None]) -> tuple[int, ...]:
    groups: dict[Hashable, int] = {}
    for position, value in enumerate(what):
        if value is not None:
            groups[value] = groups.get(value, 0) | 1 << position
    return tuple(groups.values())


def _pools(nics: Sequence[tuple[str, ...]]) -> tuple[NicPool, ...]:
    having = mask_of(i for i, mine in enumerate(nics) if mine)
    shared = tuple(mask_of(j for j, theirs in enumerate(nics) if set(mine) & set(theirs)) for mine in nics)
    return tuple(
        NicPool(gpus, len({name for i in positions(gpus) for name in nics[i]})) for gpus in components(shared, having)
    )
