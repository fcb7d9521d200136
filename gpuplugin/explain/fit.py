"""Would kubelet admit a pod now, and if not: what is in the way, who has it, and what would help.

The decision is as kubelet makes it (`topology.affinity`); added is the search for the least that would have to change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Final

from gpuplugin.explain.stock import CPU, SYSTEM
from gpuplugin.topology.affinity import Policy, Want, decide_together, hints, together
from gpuplugin.topology.explain import ranges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuplugin.explain.stock import Stock
    from gpuplugin.topology.affinity import Nodes

NOT_ALIGNED: Final = "TopologyAffinityError"
NOT_THERE: Final = "UnexpectedAdmissionError"
_MOST_TRIED = 3
"""Pods that may have to end, of which all sets are tried; above, they are added one by one, the biggest first."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How kubelet decides. machine: all its NUMA nodes · pod_scope: whether a pod's containers are placed as one."""

    policy: Policy
    machine: Nodes
    pod_scope: bool = False


@dataclass(frozen=True, slots=True)
class Lack:
    """What is missing of one resource on a set of NUMA nodes (empty: the whole machine).

    held: who has it, pieces by holder · unusable: pieces that nobody can have, by reason.
    """

    resource: str
    nodes: tuple[int, ...]
    wanted: int
    free: int
    held: dict[str, tuple[str, ...]]
    unusable: dict[str, tuple[str, ...]]

    def __str__(self) -> str:
        where = f"NUMA node{'s' * (len(self.nodes) > 1)} {ranges(self.nodes)}" if self.nodes else "this node"
        text = f"{where}: {self.free} of {self.wanted} {self.resource} free"
        taken = [f"{who} has {', '.join(pieces)}" for who, pieces in self.held.items()]
        taken += [f"{', '.join(pieces)}: {why}" for why, pieces in self.unusable.items()]
        return f"{text}; {'; '.join(taken)}" if taken else text


@dataclass(frozen=True, slots=True)
class Fit:
    """What becomes of one pod.

    reason: what kubelet refuses it with, "" where it is admitted · scheduler: why it would not even be sent here, ""
    where it would · container: which one decides · wanted: what is asked for together · places: sets of NUMA nodes that
    have room, the one that kubelet takes first · never: why no such pod is ever admitted here, "" where one can be ·
    in_the_way: what is missing where least is · ending: the fewest pods whose end makes room, empty where that does
    not · advice: what to do.
    """

    admitted: bool
    reason: str
    scheduler: str
    container: str
    wanted: dict[str, int]
    places: tuple[tuple[int, ...], ...]
    never: str = ""
    in_the_way: tuple[Lack, ...] = ()
    ending: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """One container: how many pieces of which resource it wants for itself."""

    name: str
    counts: dict[str, int]


def would_admit(rules: Rules, stocks: Mapping[str, Stock], containers: Sequence[Asked]) -> Fit:
    """Decide as kubelet would, container by container, and stop at the first that is refused.

    stocks: by resource; one that a container asks for and that is not there counts as having no piece at all.
    """
    if rules.pod_scope and len(containers) > 1:
        everything = {name for asked in containers for name in asked.counts}
        total = {name: sum(asked.counts.get(name, 0) for asked in containers) for name in sorted(everything)}
        containers = (Asked("all containers together", total),)
    left, fit = dict(stocks), None
    for asked in containers:
        fit = _container(rules, left, asked)
        if not fit.admitted:
            return fit
        nodes = frozenset(fit.places[0]) if fit.places else rules.machine
        for name, count in asked.counts.items():
            left[name] = left[name].without(_taken(left[name], nodes, count), f"its own container {asked.name}")
    return fit or Fit(admitted=True, reason="", scheduler="", container="", wanted={}, places=())


def _taken(stock: Stock, nodes: Nodes, count: int) -> list[str]:
    near = stock.on(nodes)
    return sorted(stock.free, key=lambda piece: (piece not in near, piece.zfill(6)))[:count]


def _container(rules: Rules, stocks: Mapping[str, Stock], asked: Asked) -> Fit:
    wanted = {name: count for name, count in asked.counts.items() if count}
    ours = [stocks[name] for name in wanted]
    wants = [Want(stock.nodes, stock.free, wanted[stock.name]) for stock in ours]
    decision = decide_together(rules.policy, rules.machine, wants)
    short = [stock for stock in ours if len(stock.free) < wanted[stock.name]]
    aligned = rules.policy in (Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE)
    fit = Fit(
        admitted=decision.admitted and not short,
        reason="" if decision.admitted and not short else NOT_THERE if decision.admitted else NOT_ALIGNED,
        scheduler=_scheduler(short, wanted),
        container=asked.name,
        wanted=wanted,
        places=_ordered(together(rules.policy, rules.machine, wants)) if aligned else (),
    )
    return fit if fit.admitted else _explained(fit, rules, ours, aligned=aligned)


def _scheduler(short: Sequence[Stock], wanted: Mapping[str, int]) -> str:
    lacks = [f"{wanted[stock.name]} {stock.name} wanted, {len(stock.free)} free" for stock in short]
    return f"the scheduler does not send it here, it stays Pending: {'; '.join(lacks)}" if lacks else ""


def _explained(fit: Fit, rules: Rules, stocks: Sequence[Stock], *, aligned: bool) -> Fit:
    wanted = fit.wanted
    all_free = [Want(stock.nodes, _ever(stock), wanted[stock.name]) for stock in stocks]
    if too_few := [stock for stock in stocks if len(_ever(stock)) < wanted[stock.name]]:
        stock = too_few[0]
        most = len(_ever(stock))
        why = f"this node has {most} {stock.name} in all, and {wanted[stock.name]} are wanted"
        return replace(fit, never=why, advice=(f"ask for at most {most}, or use a larger node",))
    if not aligned:
        return _with_lacks(fit, stocks, [frozenset()])
    candidates = together(rules.policy, rules.machine, all_free)
    if not candidates:
        never, advice = _never(rules, stocks, wanted)
        return replace(fit, never=never, advice=advice)
    return _with_lacks(fit, stocks, sorted(candidates, key=sorted))


def _ever(stock: Stock) -> frozenset[str]:
    """What could be had if no pod were there and nothing were broken."""
    return frozenset(piece for piece in stock.nodes if stock.unusable.get(piece) != SYSTEM)


def _with_lacks(fit: Fit, stocks: Sequence[Stock], candidates: Sequence[Nodes]) -> Fit:
    wanted = fit.wanted
    by_place = {
        nodes: [lack for stock in stocks if (lack := _lack(stock, nodes, wanted[stock.name]))] for nodes in candidates
    }
    helping = {nodes: _fewest(stocks, wanted, nodes) for nodes in candidates}

    def effort(nodes: Nodes) -> tuple[bool, int, int]:
        missing = sum(lack.wanted - lack.free for lack in by_place[nodes])
        return not helping[nodes], len(helping[nodes]), missing

    ordered = sorted(candidates, key=effort)
    ending = helping[ordered[0]]
    broken = {
        f"{', '.join(pieces)}: {why}": None
        for nodes in ordered
        for lack in by_place[nodes]
        for why, pieces in lack.unusable.items()
    }
    advice = []
    if ending:
        advice.append(f"wait for {_and(ending)} to end, or end {'it' if len(ending) == 1 else 'them'}: that makes room")
    if broken:
        advice.append(f"see why with `gpuplugin explain <GPU>` and have it mended: {'; '.join(broken)}")
    if not ending and not broken:
        advice.append("ask for less, or use another node")
    in_the_way = tuple(lack for nodes in ordered for lack in by_place[nodes])
    return replace(fit, in_the_way=in_the_way, ending=tuple(ending), advice=tuple(advice))


def _lack(stock: Stock, nodes: Nodes, wanted: int) -> Lack | None:
    here = stock.on(nodes) if nodes else frozenset(stock.nodes)
    free = here & stock.free
    if len(free) >= wanted:
        return None
    held = stock.held_on(nodes) if nodes else stock.held_on(frozenset().union(*stock.nodes.values()))
    unusable: dict[str, list[str]] = {}
    for piece in sorted(here & stock.unusable.keys()):
        unusable.setdefault(stock.unusable[piece], []).append(piece)
    return Lack(
        stock.name,
        tuple(sorted(nodes)),
        wanted,
        len(free),
        {who: (stock.names(pieces),) for who, pieces in held.items()},
        {why: (stock.names(pieces),) for why, pieces in unusable.items()},
    )


def _fewest(stocks: Sequence[Stock], wanted: Mapping[str, int], nodes: Nodes) -> list[str]:
    """Find the fewest holders without whom there is room on these nodes; empty where there is none even so."""
    needs: dict[str, int] = {}
    gains: dict[str, dict[str, int]] = {}
    for stock in stocks:
        place = nodes or frozenset().union(*stock.nodes.values())
        here = stock.on(place) if nodes else frozenset(stock.nodes)
        needs[stock.name] = wanted[stock.name] - len(here & stock.free)
        for who, pieces in stock.held_on(place).items():
            gains.setdefault(who, {})[stock.name] = len(pieces)

    def enough(holders: Sequence[str]) -> bool:
        return all(sum(gains[who].get(name, 0) for who in holders) >= need for name, need in needs.items())

    useful = sorted(who for who, its in gains.items() if any(needs[name] > 0 for name in its))
    if not enough(useful):
        return []
    for size in range(1, min(_MOST_TRIED, len(useful)) + 1):
        for holders in combinations(useful, size):
            if enough(holders):
                return list(holders)
    useful.sort(key=lambda who: -sum(min(count, max(needs[name], 0)) for name, count in gains[who].items()))
    return next((useful[:size] for size in range(_MOST_TRIED, len(useful) + 1) if enough(useful[:size])), [])


def _never(rules: Rules, stocks: Sequence[Stock], wanted: Mapping[str, int]) -> tuple[str, tuple[str, ...]]:
    """Say why no set of NUMA nodes suits all that is asked for, were everything free, and what to do."""
    sizes = {stock.name: _nodes_needed(rules, stock, wanted[stock.name]) for stock in stocks if stock.pinned}
    big = next((stock for stock in stocks if sizes.get(stock.name, 1) > 1), None)
    if rules.policy is Policy.SINGLE_NUMA_NODE and big is not None:
        most = max(len(big.on(frozenset({node}))) for node in rules.machine)
        never = (
            f"no NUMA node has {wanted[big.name]} {big.name}, the most is {most}, and topologyManagerPolicy "
            f"{rules.policy} admits nothing that needs two"
        )
        return never, (f"ask for at most {most}", "or set topologyManagerPolicy to restricted or best-effort")
    if len(set(sizes.values())) > 1:
        parts = [f"{wanted[name]} {name} need {size} NUMA node{'s' * (size > 1)}" for name, size in sizes.items()]
        never = (
            f"{' and '.join(parts)}: topologyManagerPolicy {rules.policy} admits a pod only where all that it asks for "
            "needs the same nodes"
        )
        return never, (
            "ask for amounts that need as many NUMA nodes",
            "or for CPUs that are no whole number, which kubelet does not pin",
            "or set topologyManagerPolicy to best-effort",
        )
    fewer = "ask for fewer CPUs, or reserve fewer for the system" if CPU in wanted else "ask for fewer"
    return (
        "no set of NUMA nodes has all of it, even with nothing running",
        (fewer, "or set topologyManagerPolicy to best-effort"),
    )


def _nodes_needed(rules: Rules, stock: Stock, count: int) -> int:
    found = hints(rules.machine, stock.nodes, frozenset(stock.nodes), count)
    return min((len(hint.nodes) for hint in found), default=len(rules.machine))


def _ordered(places: frozenset[Nodes]) -> tuple[tuple[int, ...], ...]:
    """Order them as kubelet prefers: fewer nodes first, then lower-numbered ones."""
    first = sorted(places, key=lambda nodes: (len(nodes), sum(1 << node for node in nodes)))
    return tuple(tuple(sorted(nodes)) for nodes in first)


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
