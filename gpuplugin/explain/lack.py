"""What is missing of one resource on some NUMA nodes, and who has it: a sentence each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuplugin.explain.memory import amount, is_memory, size
from gpuplugin.topology.explain import ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuplugin.explain.memory import Amounts, Memory, Share
    from gpuplugin.explain.stock import Stock
    from gpuplugin.topology.affinity import Nodes


@dataclass(frozen=True, slots=True)
class Lack:
    """What is missing of one resource on a set of NUMA nodes (empty: the whole machine); memory in bytes.

    held: who has it, pieces by holder · unusable: pieces that nobody can have, by reason · rule: why what is free
    cannot be had all the same, "" where that is not so.
    """

    resource: str
    nodes: tuple[int, ...]
    wanted: int
    free: int
    held: dict[str, tuple[str, ...]]
    unusable: dict[str, tuple[str, ...]]
    rule: str = ""

    def __str__(self) -> str:
        where = f"NUMA node{'s' * (len(self.nodes) > 1)} {ranges(self.nodes)}" if self.nodes else "this node"
        free = size(self.free) if is_memory(self.resource) else self.free
        text = f"{where}: {free} of {amount(self.resource, self.wanted)} free"
        if self.rule:
            text += f", and cannot be had: {self.rule}"
        taken = [f"{who} has {', '.join(pieces)}" for who, pieces in self.held.items()]
        taken += [f"{', '.join(pieces)}: {why}" for why, pieces in self.unusable.items()]
        return f"{text}; {'; '.join(taken)}" if taken else text


def of_stock(stock: Stock, nodes: Nodes, wanted: int) -> Iterator[Lack]:
    """What is missing of it there, if anything."""
    here = stock.on(nodes) if nodes else frozenset(stock.nodes)
    free = here & stock.free
    if len(free) >= wanted:
        return
    held = stock.held_on(nodes) if nodes else stock.held_on(frozenset().union(*stock.nodes.values()))
    unusable: dict[str, list[str]] = {}
    for piece in sorted(here & stock.unusable.keys()):
        unusable.setdefault(stock.unusable[piece], []).append(piece)
    yield Lack(
        stock.name,
        tuple(sorted(nodes)),
        wanted,
        len(free),
        {who: (stock.names(pieces),) for who, pieces in held.items()},
        {why: (stock.names(pieces),) for why, pieces in unusable.items()},
    )


def of_memory(memory: Memory, nodes: Nodes, wanted: Amounts) -> Iterator[Lack]:
    """What keeps memory and huge pages from being had there, where it is known that they cannot be had."""
    place, short = nodes or None, False
    for name, count in wanted.items():
        free = memory.free(name, place)
        if free < count:
            short = True
            held = _held(share for share in memory.on(nodes) if share.resource == name)
            yield Lack(name, tuple(sorted(nodes)), count, free, held, {})
    if wanted and not short:
        name, count = max(wanted.items(), key=lambda each: each[1])
        held = _held(memory.kept_apart(nodes) or memory.on(nodes))
        yield Lack(name, tuple(sorted(nodes)), count, memory.free(name, place), held, {}, _rule(nodes))


def _held(shares: Iterable[Share]) -> dict[str, tuple[str, ...]]:
    held: dict[str, tuple[str, ...]] = {}
    for share in shares:
        held[share.who] = (*held.get(share.who, ()), str(share))
    return held


def _rule(nodes: Nodes) -> str:
    if len(nodes) == 1:
        return "kubelet gives none of one NUMA node alone while some is given out together with another's"
    return "kubelet does not join NUMA nodes of which some is given out otherwise"
