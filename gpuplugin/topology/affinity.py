"""What kubelet's Topology Manager decides for one container: admitted or not, and on which NUMA nodes.

Pure, and apart from those who ask (the stand-in kubelet, `gpuplugin explain`), so that the decisions can be read and
tested as tables. With a single hint provider, kubelet's merge of all permutations comes down to "the best of that
provider's hints"; with several, to the best node set that each of them prefers, where there is one: kubelet calls a
permutation preferred only when all its hints are, and name the same nodes (kubelet 1.37, pkg/kubelet/cm:
topologymanager, devicemanager/topology_hints.go, cpumanager/policy_static.go).
"""

from __future__ import annotations

from collections import Counter
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


@dataclass(frozen=True, slots=True)
class Want:
    """So many pieces of one kind: devices of a resource, or CPUs. nodes, free: as in `decide`."""

    nodes: Mapping[str, Nodes]
    free: AbstractSet[str]
    count: int


def decide_together(policy: Policy, machine: Collection[int], wants: Collection[Want]) -> Decision:
    """Decide on a container that asks for several kinds of things at once.

    For a strict policy. Where `best-effort` puts what nobody prefers hangs on the order in which kubelet tries, and is
    not told: the affinity is then the whole machine.
    """
    if policy is Policy.NONE:
        return Decision(admitted=True, affinity=None)
    everywhere = frozenset(machine)
    common = together(policy, everywhere, wants)
    best = min((Hint(nodes, preferred=True) for nodes in common), key=lambda hint: hint.rank, default=None)
    return _decision(policy, best or Hint(everywhere, preferred=False), everywhere)


def together(policy: Policy, machine: Nodes, wants: Collection[Want]) -> frozenset[Nodes]:
    """Every node set that all of them prefer; the whole machine where none of them cares."""
    choices = [
        frozenset(
            hint.nodes
            for hint in (hints(machine, want.nodes, want.free, want.count) if len(want.free) >= want.count else ())
            if hint.preferred and (policy is not Policy.SINGLE_NUMA_NODE or len(hint.nodes) == 1)
        )
        for want in wants
        if any(want.nodes.values())
    ]
    return frozenset.intersection(*choices) if choices else frozenset({machine})


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
    every, there = Counter(devices.values()), Counter(devices.get(device, frozenset()) for device in free)

    def within(mask: Nodes, places: Counter[Nodes]) -> int:
        return sum(number for nodes, number in places.items() if mask & nodes)

    fewest = next((len(mask) for mask in masks if within(mask, every) >= count), len(bearing))
    for mask in masks:
        if within(mask, there) >= count:
            yield Hint(mask, len(mask) == fewest)


def align(affinity: Nodes | None, devices: Mapping[str, Nodes], free: AbstractSet[str]) -> Aligned:
    """Sort the free devices as the device manager does before it asks for a preference."""
    if affinity is None or not any(devices.values()):
        return Aligned(frozenset(), frozenset(), frozenset(free))
    on = frozenset(device for device in free if devices[device] & affinity)
    unknown = frozenset(device for device in free if not devices[device])
    return Aligned(on, frozenset(free) - on - unknown, unknown)
