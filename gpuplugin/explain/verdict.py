"""What kubelet decides on one container that wants devices, CPUs, memory and huge pages at once.

For strict policies it comes down to the NUMA nodes that all of them prefer (`topology.affinity.together`). Memory makes
two things more complicated. Where none can be had anywhere, the memory manager has no hint, which the Topology Manager
takes for "anywhere"; the container is then refused when memory is to be given. And under best-effort that hangs on
which NUMA nodes were decided on, so all combinations of hints are gone through as kubelet does: its order of them
(topologymanager/policy.go) is total, so that the one in which it tries does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuplugin.explain.memory import added_up
from gpuplugin.topology.affinity import Hint, Policy, Want, decide_together, hints, together

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpuplugin.explain.memory import Amounts, Memory
    from gpuplugin.topology.affinity import Nodes

ANYWHERE = 0
"""In the place of a hint's NUMA nodes: they do not matter."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How kubelet decides. machine: all its NUMA nodes · pod_scope: whether a pod's containers are placed as one."""

    policy: Policy
    machine: Nodes
    pod_scope: bool = False

    @property
    def strict(self) -> bool:
        """Whether what is not aligned is refused."""
        return self.policy in (Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of it.

    aligned: whether the Topology Manager lets it pass · places: sets of NUMA nodes that would do, under a strict
    policy · memory: all of it after each container was given its own in turn; None where it cannot be given.
    """

    aligned: bool
    places: frozenset[Nodes]
    memory: Memory | None


def decide(rules: Rules, wants: Sequence[Want], memory: Memory, parts: Sequence[tuple[str, Amounts]]) -> Verdict:
    """Decide. parts: memory that is wanted, with for whom, a container each; decided on together, and given in turn."""
    total = added_up(wanted for _, wanted in parts)
    if rules.strict:
        found = strict_places(rules, wants, memory, total)
        best = min(found, key=order, default=None)
        whole = rules.policy is Policy.SINGLE_NUMA_NODE and best == rules.machine
        return Verdict(bool(found), found, _given(memory, None if whole else best, parts))
    aligned = decide_together(rules.policy, rules.machine, wants).admitted
    affinity = None
    if rules.policy is Policy.BEST_EFFORT:
        affinity = _best_effort(rules.machine, wants, memory.hints(total), len(total)) if total else rules.machine
    return Verdict(aligned, frozenset(), _given(memory, affinity, parts))


def strict_places(rules: Rules, wants: Sequence[Want], memory: Memory, wanted: Amounts) -> frozenset[Nodes]:
    """Every set of NUMA nodes that all of them prefer, under a strict policy; the whole machine where none cares."""
    found = memory.hints(wanted) if wanted else ()
    places = together(rules.policy, rules.machine, wants)
    if not found:
        return places
    single = rules.policy is Policy.SINGLE_NUMA_NODE
    preferred = frozenset(hint.nodes for hint in found if hint.preferred and (not single or len(hint.nodes) == 1))
    return preferred & places if any(any(want.nodes.values()) for want in wants) else preferred


def order(nodes: Nodes) -> tuple[int, int]:
    """Kubelet's order of NUMA nodes: fewer first, then lower-numbered ones."""
    return len(nodes), _mask(nodes)


def _given(memory: Memory, affinity: Nodes | None, parts: Iterable[tuple[str, Amounts]]) -> Memory | None:
    for who, wanted in parts:
        if wanted:
            nodes = memory.placed(affinity, wanted)
            if nodes is None:
                return None
            memory = memory.with_(who, nodes, wanted)
    return memory


Merged = tuple[int, int, bool]
"""NUMA nodes in common so far; those that all have named alike, if they have; whether all is preferred yet. Sets of
NUMA nodes are masks here, as there are thousands of combinations."""


def _best_effort(machine: Nodes, wants: Sequence[Want], memory: Sequence[Hint], kinds: int) -> Nodes:
    """Give the NUMA nodes that kubelet decides on under best-effort. kinds: of memory, which have those hints each."""
    providers = [list(_hints(machine, want)) for want in wants if any(want.nodes.values())]
    providers += [[(_mask(hint.nodes), hint.preferred) for hint in memory]] * kinds if memory else []
    narrowest = [min((nodes.bit_count() for nodes, _ in own if nodes), default=0) for own in providers]
    enough = max(narrowest, default=0)
    everywhere = _mask(machine)
    merged: set[Merged] = {(everywhere, ANYWHERE, True)}
    for own in providers:
        merged = {_merge(one, nodes, preferred=preferred) for one in merged for nodes, preferred in own}

    def rank(one: Merged) -> tuple[int, int, int, int]:
        nodes, _, preferred = one
        many = nodes.bit_count()
        if preferred:
            return 0, 0, many, nodes
        return (1, enough - many, many, nodes) if many <= enough else (2, 0, many, nodes)

    best, _, _ = min((one for one in merged if one[0]), key=rank, default=(everywhere, ANYWHERE, False))
    return frozenset(node for node in machine if best >> node & 1)


def _hints(machine: Nodes, want: Want) -> Iterator[tuple[int, bool]]:
    if len(want.free) < want.count:
        yield ANYWHERE, False
    else:
        yield from ((_mask(hint.nodes), hint.preferred) for hint in hints(machine, want.nodes, want.free, want.count))


def _merge(one: Merged, nodes: int, *, preferred: bool) -> Merged:
    common, named, so_far = one
    if nodes == ANYWHERE:
        return common, named if so_far and preferred else ANYWHERE, so_far and preferred
    alike = so_far and preferred and named in {ANYWHERE, nodes}
    return common & nodes, nodes if alike else ANYWHERE, alike


def _mask(nodes: Iterable[int]) -> int:
    return sum(1 << node for node in nodes)
