"""Would kubelet admit a pod now, and if not: what is in the way, who has it, and what would help.

The decision is as kubelet makes it (`topology.affinity`); added is the search for the least that would have to change.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Final

from gpuplugin.explain.lack import Lack, of_memory, of_stock
from gpuplugin.explain.memory import Memory, added_up, amount, is_memory, size
from gpuplugin.explain.stock import CPU, SYSTEM
from gpuplugin.explain.verdict import Rules, decide, order, strict_places
from gpuplugin.topology.affinity import Policy, Want, hints

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuplugin.explain.memory import Amounts
    from gpuplugin.explain.stock import Stock
    from gpuplugin.topology.affinity import Nodes

NOT_ALIGNED: Final = "TopologyAffinityError"
NOT_THERE: Final = "UnexpectedAdmissionError"
_MOST_TRIED = 3
"""Pods that may have to end, of which all sets are tried; above, the biggest ones, as few as are enough."""
_MOST_LOOKED_AT = 50
"""Sets of pods for which it is found out whether memory could be had without them: that takes a while on many nodes."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What becomes of one pod.

    reason: what kubelet refuses it with, "" where it is admitted · scheduler: why it would not even be sent here, ""
    where it would · container: which one decides · wanted: what is asked for together, memory in bytes · places: sets
    of NUMA nodes that have room, the one that kubelet takes first · never: why no such pod is ever admitted here, ""
    where one can be · in_the_way: what is missing where least is · ending: the fewest pods whose end makes room, empty
    where that does not · advice: what to do.
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
    """One container: how many pieces of which resource it wants for itself, and bytes of memory and huge pages."""

    name: str
    counts: dict[str, int]

    @property
    def amounts(self) -> dict[str, int]:
        """Bytes of memory and huge pages."""
        return {name: count for name, count in self.counts.items() if is_memory(name) and count}


@dataclass(frozen=True, slots=True)
class _Question:
    """What is decided on together: one container, or all of a pod. parts: whose memory is given in turn."""

    name: str
    wanted: dict[str, int]
    parts: tuple[tuple[str, Amounts], ...]

    @property
    def amounts(self) -> Amounts:
        return {name: count for name, count in self.wanted.items() if is_memory(name)}


@dataclass(frozen=True, slots=True)
class _Node:
    """All that there is, as the question finds it."""

    rules: Rules
    stocks: tuple[Stock, ...]
    memory: Memory

    def wants(self, asked: _Question) -> list[Want]:
        return [Want(stock.nodes, stock.free, asked.wanted[stock.name]) for stock in self.stocks]

    def ever_wants(self, asked: _Question) -> list[Want]:
        return [Want(stock.nodes, _ever(stock), asked.wanted[stock.name]) for stock in self.stocks]


def would_admit(
    rules: Rules, stocks: Mapping[str, Stock], containers: Sequence[Asked], memory: Memory | None = None
) -> Fit:
    """Decide as kubelet would, container by container, and stop at the first that is refused.

    stocks: by resource, all that the containers ask for · memory: None where the memory manager does not give it out;
    what is asked for of it does not count then.
    """
    left, fit, there = dict(stocks), None, memory or Memory({})
    for asked in _questions(rules, containers, counting_memory=memory is not None):
        node = _Node(rules, tuple(left[name] for name in asked.wanted if not is_memory(name)), there)
        fit, after = _one(node, asked)
        if not fit.admitted:
            return fit
        nodes = frozenset(fit.places[0]) if fit.places else rules.machine
        for stock in node.stocks:
            taken = _taken(stock, nodes, asked.wanted[stock.name])
            left[stock.name] = stock.without(taken, f"its own container {asked.name}")
        there = after or there
    return fit or Fit(admitted=True, reason="", scheduler="", container="", wanted={}, places=())


def _questions(rules: Rules, containers: Sequence[Asked], *, counting_memory: bool) -> list[_Question]:
    def parts(asked: Sequence[Asked]) -> tuple[tuple[str, Amounts], ...]:
        return tuple((f"its own container {each.name}", each.amounts if counting_memory else {}) for each in asked)

    def sums(asked: Sequence[Asked]) -> dict[str, int]:
        total = added_up(each.counts for each in asked)
        return {name: count for name, count in total.items() if count and (counting_memory or not is_memory(name))}

    if rules.pod_scope and rules.policy is not Policy.NONE and len(containers) > 1:
        return [_Question("all containers together", sums(containers), parts(containers))]
    return [_Question(each.name, sums([each]), parts([each])) for each in containers]


def _taken(stock: Stock, nodes: Nodes, count: int) -> list[str]:
    near = stock.on(nodes)
    return sorted(stock.free, key=lambda piece: (piece not in near, piece.zfill(6)))[:count]


def _one(node: _Node, asked: _Question) -> tuple[Fit, Memory | None]:
    decision = decide(node.rules, node.wants(asked), node.memory, asked.parts)
    short = [stock for stock in node.stocks if len(stock.free) < asked.wanted[stock.name]]
    there = not short and decision.memory is not None
    fit = Fit(
        admitted=decision.aligned and there,
        reason=NOT_ALIGNED if not decision.aligned else "" if there else NOT_THERE,
        scheduler=_scheduler(short, asked.wanted),
        container=asked.name,
        wanted=asked.wanted,
        places=tuple(tuple(sorted(nodes)) for nodes in sorted(decision.places, key=order)),
    )
    return (fit, decision.memory) if fit.admitted else (_explained(fit, node, asked), None)


def _scheduler(short: Sequence[Stock], wanted: Mapping[str, int]) -> str:
    lacks = [f"{wanted[stock.name]} {stock.name} wanted, {len(stock.free)} free" for stock in short]
    return f"the scheduler does not send it here, it stays Pending: {'; '.join(lacks)}" if lacks else ""


def _explained(fit: Fit, node: _Node, asked: _Question) -> Fit:
    for name, count in asked.wanted.items():
        own = [stock for stock in node.stocks if stock.name == name]
        most = len(_ever(own[0])) if own else node.memory.total(name)
        if most < count:
            bytes_of = size if is_memory(name) else str
            why = f"this node has {amount(name, most)} in all, and {bytes_of(count)} are wanted"
            return replace(fit, never=why, advice=(f"ask for at most {bytes_of(most)}, or use a larger node",))
    if not node.rules.strict:
        return _with_lacks(fit, node, asked, [frozenset()])
    candidates = strict_places(node.rules, node.ever_wants(asked), node.memory.empty(), asked.amounts)
    if not candidates:
        never, advice = _never(node, asked)
        return replace(fit, never=never, advice=advice)
    return _with_lacks(fit, node, asked, sorted(candidates, key=sorted))


def _ever(stock: Stock) -> frozenset[str]:
    """What could be had if no pod were there and nothing were broken."""
    return frozenset(piece for piece in stock.nodes if stock.unusable.get(piece) != SYSTEM)


def _with_lacks(fit: Fit, node: _Node, asked: _Question, candidates: Sequence[Nodes]) -> Fit:
    by_place = {
        nodes: [
            *(lack for stock in node.stocks for lack in of_stock(stock, nodes, asked.wanted[stock.name])),
            *(() if _memory_fits(node, asked, nodes, ()) else of_memory(node.memory, nodes, asked.amounts)),
        ]
        for nodes in candidates
    }
    helping = {nodes: _fewest(node, asked, nodes) for nodes in candidates}

    def effort(nodes: Nodes) -> tuple[bool, int, int, float]:
        missing = sum(lack.wanted - lack.free for lack in by_place[nodes] if not is_memory(lack.resource))
        bytes_missing = sum(lack.wanted - lack.free for lack in by_place[nodes] if is_memory(lack.resource))
        return not helping[nodes], len(helping[nodes]), missing, bytes_missing

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


def _fewest(node: _Node, asked: _Question, nodes: Nodes) -> list[str]:
    """Find the fewest holders without whom there is room on these nodes; empty where there is none even so."""
    needs: dict[str, int] = {}
    gains: dict[str, dict[str, int]] = {}
    for stock in node.stocks:
        place = nodes or frozenset().union(*stock.nodes.values())
        here = stock.on(place) if nodes else frozenset(stock.nodes)
        needs[stock.name] = asked.wanted[stock.name] - len(here & stock.free)
        for who, pieces in stock.held_on(place).items():
            gains.setdefault(who, {})[stock.name] = len(pieces)

    tried = 0

    def enough(holders: Sequence[str]) -> bool:
        nonlocal tried
        has = all(sum(gains.get(who, {}).get(name, 0) for who in holders) >= need for name, need in needs.items())
        tried += has and bool(asked.amounts)
        return has and _memory_fits(node, asked, nodes, holders)

    useful = {who for who, its in gains.items() if any(needs[name] > 0 for name in its)}
    if not _memory_fits(node, asked, nodes, ()):
        useful |= {share.who for share in node.memory.on(nodes)}
    if not enough(sorted(useful)):
        return []
    for many in range(1, min(_MOST_TRIED, len(useful)) + 1):
        for holders in combinations(sorted(useful), many):
            if tried < _MOST_LOOKED_AT and enough(holders):
                return list(holders)

    def gain(who: str) -> tuple[int, int]:
        pieces = sum(min(count, max(needs[name], 0)) for name, count in gains.get(who, {}).items())
        return pieces, sum(share.size for share in node.memory.on(nodes) if share.who == who)

    ordered = sorted(sorted(useful), key=gain, reverse=True)
    fewest = bisect_left(range(1, len(ordered) + 1), True, key=lambda many: enough(ordered[:many]))  # noqa: FBT003
    return ordered[: fewest + 1]


def _memory_fits(node: _Node, asked: _Question, nodes: Nodes, gone: Sequence[str]) -> bool:
    """Whether its memory could be had on these nodes without those holders; anywhere for the empty set."""
    if not asked.amounts:
        return True
    memory = node.memory.without(gone)
    if nodes:
        return any(hint.nodes == nodes for hint in memory.hints(asked.amounts))
    stocks = [
        replace(stock, holders={k: who for k, who in stock.holders.items() if who not in gone}) for stock in node.stocks
    ]
    return (
        decide(node.rules, _Node(node.rules, tuple(stocks), memory).wants(asked), memory, asked.parts).memory
        is not None
    )


def _never(node: _Node, asked: _Question) -> tuple[str, tuple[str, ...]]:
    """Say why no set of NUMA nodes suits all that is asked for, were everything free, and what to do."""
    rules = node.rules
    sizes = {
        amount(stock.name, asked.wanted[stock.name]): _nodes_needed(rules, stock, asked.wanted[stock.name])
        for stock in node.stocks
        if stock.pinned
    }
    mosts = {
        amount(stock.name, asked.wanted[stock.name]): f"{max(len(stock.on(frozenset({n}))) for n in rules.machine)}"
        for stock in node.stocks
    }
    for name, count in asked.amounts.items():
        sizes[amount(name, count)] = node.memory.least({name: count}) or len(rules.machine)
        mosts[amount(name, count)] = size(max(node.memory.total(name, {n}) for n in rules.machine))
    big = next((each for each, nodes in sizes.items() if nodes > 1), None)
    if rules.policy is Policy.SINGLE_NUMA_NODE and big is not None:
        never = (
            f"no NUMA node has {big}, the most is {mosts[big]}, and topologyManagerPolicy {rules.policy} admits "
            "nothing that needs two"
        )
        return never, (f"ask for at most {mosts[big]}", "or set topologyManagerPolicy to restricted or best-effort")
    if len(set(sizes.values())) > 1:
        parts = [f"{each} need {nodes} NUMA node{'s' * (nodes > 1)}" for each, nodes in sizes.items()]
        never = (
            f"{' and '.join(parts)}: topologyManagerPolicy {rules.policy} admits a pod only where all that it asks for "
            "needs the same nodes"
        )
        return never, (
            "ask for amounts that need as many NUMA nodes",
            "or for CPUs that are no whole number, which kubelet does not pin",
            "or set topologyManagerPolicy to best-effort",
        )
    fewer = "ask for fewer CPUs, or reserve fewer for the system" if CPU in asked.wanted else "ask for fewer"
    return (
        "no set of NUMA nodes has all of it, even with nothing running",
        (fewer, "or set topologyManagerPolicy to best-effort"),
    )


def _nodes_needed(rules: Rules, stock: Stock, count: int) -> int:
    found = hints(rules.machine, stock.nodes, frozenset(stock.nodes), count)
    return min((len(hint.nodes) for hint in found), default=len(rules.machine))


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
