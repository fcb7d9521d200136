"""What kubelet's Topology Manager decides for one container that asks one device plugin: admitted or not, and where.

Pure, and apart from the stand-in kubelet that asks it, so that the decisions can be read and tested as tables. With a
single hint provider, kubelet's merge of all permutations comes down to "the best of that provider's hints", which is
what is written here (kubelet 1.37, pkg/kubelet/cm/topologymanager and devicemanager/topology_hints.go).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from collections.abc import Set as AbstractSet

Nodes = frozenset[int]


class Policy(StrEnum):
    """The kubelet's `topologyManagerPolicy`."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


@dataclass(frozen=True, slots=True)
class Hint:
    """A set of NUMA nodes that can serve the request; preferred when no fewer nodes could on the empty machine."""

    nodes: Nodes
    preferred: bool

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Order of choice: preferred before not, then fewer nodes, then lower-numbered ones."""
        return not self.preferred, len(self.nodes), sum(1 << node for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Decision:
    """affinity: the nodes to stay on; None leaves the device manager free."""

    admitted: bool
    affinity: Nodes | None


@dataclass(frozen=True, slots=True)
class Aligned:
    """Free devices by how they sit to the affinity: on its nodes, on other nodes, on none that is known."""

    on: frozenset[str]
    off: frozenset[str]
    unknown: frozenset[str]


def decide(
    policy: Policy, machine: Collection[int], devices: Mapping[str, Nodes], free: AbstractSet[str], count: int
) -> Decision:
    """Decide on a container that asks for `count`.

    machine: all NUMA nodes · devices: every device of the resource, healthy or not, with its nodes (empty: unknown) ·
    free: those that are healthy and not held.
    """
    if policy is Policy.NONE:
        return Decision(admitted=True, affinity=None)
    everywhere = frozenset(machine)
    if not any(devices.values()):
        return _decision(policy, Hint(everywhere, preferred=True), everywhere)
    found = list(hints(everywhere, devices, free, count)) if len(free) >= count else []
    if policy is Policy.SINGLE_NUMA_NODE:
        found = [hint for hint in found if hint.preferred and len(hint.nodes) == 1]
    best = min(found, key=lambda hint: hint.rank, default=Hint(everywhere, preferred=False))
    return _decision(policy, best, everywhere)


def _decision(policy: Policy, best: Hint, everywhere: Nodes) -> Decision:
    admitted = best.preferred or policy is Policy.BEST_EFFORT
    whole_machine = policy is Policy.SINGLE_NUMA_NODE and best.nodes == everywhere
    return Decision(admitted, None if whole_machine else best.nodes)


def hints(machine: Nodes, devices: Mapping[str, Nodes], free: AbstractSet[str], count: int) -> Iterator[Hint]:
    """Every set of device-bearing nodes whose free devices suffice.

    How few nodes are preferred is counted over all devices, also held and unhealthy ones: a machine that is full on
    each node refuses rather than straddles.
    """
    bearing = sorted(machine & frozenset().union(*devices.values())) or sorted(machine)
    masks = [frozenset(nodes) for size in range(1, len(bearing) + 1) for nodes in combinations(bearing, size)]

    def within(mask: Nodes, ids: Collection[str]) -> int:
        return sum(1 for device in ids if mask & devices.get(device, frozenset()))

    fewest = min((len(mask) for mask in masks if within(mask, devices) >= count), default=len(bearing))
    for mask in masks:
        if within(mask, free) >= count:
            yield Hint(mask, len(mask) == fewest)


def align(affinity: Nodes | None, devices: Mapping[str, Nodes], free: AbstractSet[str]) -> Aligned:
    """Sort the free devices as the device manager does before it asks for a preference."""
    if affinity is None or not any(devices.values()):
        return Aligned(frozenset(), frozenset(), frozenset(free))
    on = frozenset(device for device in free if devices[device] & affinity)
    unknown = frozenset(device for device in free if not devices[device])
    return Aligned(on, frozenset(free) - on - unknown, unknown)
