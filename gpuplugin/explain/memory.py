"""What kubelet's memory manager (policy Static) would give of memory and huge pages, and who has what.

It gives a container all its memory, of every kind, from one set of NUMA nodes. A node from which something was given
alone is not joined with others until all that is gone, nor is one given alone that was joined; a set that was joined
stays as it is. So memory can be free and still not be had (kubelet 1.37, pkg/kubelet/cm/memorymanager).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gpuplugin.topology.affinity import Hint

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from gpuplugin.topology.affinity import Nodes

    Amounts = Mapping[str, int]  # bytes by resource

MEMORY: Final = "memory"
HUGE_PAGES: Final = "hugepages-"
_UNITS: Final = ("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)


def is_memory(resource: str) -> bool:
    """Whether it is counted in bytes, and given out by the memory manager."""
    return resource == MEMORY or resource.startswith(HUGE_PAGES)


def amount(resource: str, count: int) -> str:
    """Say how much of it: ``4 nvidia.com/gpu``, ``64Gi memory``."""
    return f"{size(count) if is_memory(resource) else count} {resource}"


def added_up(wanted: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Give how much of each resource all want together."""
    total: dict[str, int] = {}
    for each in wanted:
        for name, count in each.items():
            total[name] = total.get(name, 0) + count
    return total


def size(count: int) -> str:
    """Write bytes as Kubernetes does: in the largest unit that leaves nothing over, tenths of it from 16 Mi on."""
    exact = next((f"{count // unit}{name}" for name, unit in _UNITS if count >= unit and count % unit == 0), f"{count}")
    if len(exact) < len("10240Mi"):
        return exact
    return next(f"{count / unit:.1f}{name}" for name, unit in _UNITS if count >= unit)


@dataclass(frozen=True, slots=True)
class Share:
    """A block that somebody has: bytes, from these NUMA nodes together."""

    who: str
    resource: str
    nodes: tuple[int, ...]
    size: int

    def __str__(self) -> str:
        where = f" of NUMA nodes {', '.join(map(str, self.nodes))}" if len(self.nodes) > 1 else ""
        return f"{amount(self.resource, self.size)}{where}"


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """What has been given of one NUMA node. group: nodes that it is given out with · assignments: blocks on it."""

    free: Mapping[str, int]
    assignments: int
    group: frozenset[int]


@dataclass(frozen=True)
class Memory:
    """All memory that containers may have for themselves, and who has what.

    allocatable: bytes by NUMA node and resource · shares: in the order in which they were given · now: what kubelet
    itself says has been given; empty where that is to follow from the shares.
    """

    allocatable: Mapping[int, Mapping[str, int]]
    shares: tuple[Share, ...] = ()
    now: Mapping[int, NodeMemory] = field(default_factory=lambda: MappingProxyType({}))

    @cached_property
    def given(self) -> Mapping[int, NodeMemory]:
        """Each NUMA node as it stands."""
        if self.now:
            return self.now
        nodes = {node: NodeMemory(own, 0, frozenset({node})) for node, own in self.allocatable.items()}
        for share in self.shares:
            _give(nodes, share)
        return nodes

    @property
    def resources(self) -> tuple[str, ...]:
        """All kinds that there are: ``memory``, ``hugepages-2Mi``."""
        return tuple(dict.fromkeys(name for own in self.allocatable.values() for name in own))

    def total(self, resource: str, nodes: Collection[int] | None = None) -> int:
        """How much these NUMA nodes have for pods, were nothing given out; None: all of them."""
        return sum(own.get(resource, 0) for node, own in self.allocatable.items() if nodes is None or node in nodes)

    def free(self, resource: str, nodes: Collection[int] | None = None) -> int:
        """How much of it is left there."""
        return sum(own.free.get(resource, 0) for node, own in self.given.items() if nodes is None or node in nodes)

    def least(self, wanted: Amounts) -> int | None:
        """How few NUMA nodes would be enough, were nothing given out; None where all of them would not."""
        return next((len(nodes) for nodes in self._sets if self._has(nodes, wanted)), None)

    def hints(self, wanted: Amounts) -> tuple[Hint, ...]:
        """Every set of NUMA nodes that it can be had from now; preferred where no fewer would be enough when empty."""
        least = self.least(wanted)
        return tuple(
            Hint(nodes, len(nodes) == least)
            for nodes in self._sets
            if self._may_be_given(nodes) and self._has_free(nodes, wanted)
        )

    def placed(self, affinity: Nodes | None, wanted: Amounts) -> Nodes | None:
        """Where the memory manager takes it from, when kubelet has decided on these NUMA nodes (None: on none).

        None: nowhere, and the container is refused.
        """
        found = self.hints(wanted)
        if affinity is None or not self._has_free(affinity, wanted):
            found = tuple(hint for hint in found if hint.nodes >= (affinity or frozenset()))
            affinity = min(found, key=lambda hint: hint.rank).nodes if found else None
        if affinity is None or not (len(affinity) == 1 or self._may_be_given(affinity)):
            return None
        return affinity

    def with_(self, who: str, nodes: Nodes, wanted: Amounts) -> Memory:
        """The same after somebody was given that."""
        own = tuple(Share(who, name, tuple(sorted(nodes)), count) for name, count in wanted.items())
        after = dict(self.given)
        for share in own:
            _give(after, share)
        return Memory(self.allocatable, (*self.shares, *own), after)

    def without(self, holders: Collection[str]) -> Memory:
        """The same after these have ended, each share taken back as kubelet does."""
        left = tuple(share for share in self.shares if share.who not in holders)
        if len(left) == len(self.shares):
            return self
        after = dict(self.given)
        for share in self.shares:
            if share.who in holders:
                _take_back(after, share, self.allocatable)
        return Memory(self.allocatable, left, after)

    def empty(self) -> Memory:
        """The same with nothing given out."""
        return Memory(self.allocatable)

    def on(self, nodes: Nodes) -> tuple[Share, ...]:
        """What has been given of these NUMA nodes, or of some of them; of all for the empty set."""
        return tuple(share for share in self.shares if not nodes or nodes & frozenset(share.nodes))

    def kept_apart(self, nodes: Nodes) -> tuple[Share, ...]:
        """What keeps these NUMA nodes from being given together, or one from being given alone."""
        if not nodes or self._may_be_given(nodes):
            return ()
        return tuple(share for share in self.on(nodes) if frozenset(share.nodes) != nodes)

    @cached_property
    def _sets(self) -> tuple[Nodes, ...]:
        """All sets of NUMA nodes, small ones first."""
        every = sorted(self.allocatable)
        return tuple(frozenset(nodes) for number in range(1, len(every) + 1) for nodes in combinations(every, number))

    def _has(self, nodes: Nodes, wanted: Amounts) -> bool:
        return all(sum(self.allocatable[node].get(name, 0) for node in nodes) >= n for name, n in wanted.items())

    def _has_free(self, nodes: Nodes, wanted: Amounts) -> bool:
        given = self.given
        return all(
            sum(given[n].free.get(name, 0) for n in nodes if n in given) >= size for name, size in wanted.items()
        )

    def _may_be_given(self, nodes: Nodes) -> bool:
        own = [self.given[node] for node in nodes if node in self.given]
        if len(nodes) == 1:
            return all(len(each.group) == 1 for each in own)
        return all(each.assignments == 0 or (len(each.group) > 1 and each.group == nodes) for each in own)


def _give(nodes: dict[int, NodeMemory], share: Share) -> None:
    """Take a block from its NUMA nodes, the first ones first."""
    left, group = share.size, frozenset(share.nodes)
    for node in share.nodes:
        if node in nodes:
            own = nodes[node]
            taken = min(left, own.free.get(share.resource, 0))
            left -= taken
            free = {**own.free, share.resource: own.free.get(share.resource, 0) - taken}
            nodes[node] = NodeMemory(free, own.assignments + 1, group)


def _take_back(nodes: dict[int, NodeMemory], share: Share, allocatable: Mapping[int, Mapping[str, int]]) -> None:
    """Give a block back to its NUMA nodes, the first ones first; one that nothing lies on any more stands alone."""
    left, name = share.size, share.resource
    for node in share.nodes:
        if node in nodes:
            own = nodes[node]
            back = min(left, allocatable[node].get(name, 0) - own.free.get(name, 0))
            left -= back
            free = {**own.free, name: own.free.get(name, 0) + back}
            number = own.assignments - 1
            nodes[node] = NodeMemory(free, number, own.group if number else frozenset({node}))
