"""What the node has of one kind of thing, piece by piece: where each is, and why it cannot be had, or who has it.

GPUs, NICs and CPUs alike: kubelet's managers treat them alike, and so do the questions about them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gpuplugin.topology.explain import ranges

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from gpuplugin.topology.affinity import Nodes

CPU: Final = "cpu"
SYSTEM: Final = "set aside for the system (kubelet's reserved CPUs)"
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Stock:
    """All pieces of one kind.

    name: the resource (``nvidia.com/gpu``, ``cpu``) · nodes: of each piece, empty where unknown · holders: pieces that
    a pod has, and which · unusable: pieces that nobody can have now, and why · called: what people call a piece, where
    not by its own name.
    """

    name: str
    nodes: Mapping[str, Nodes]
    holders: Mapping[str, str] = field(default_factory=lambda: _NONE)
    unusable: Mapping[str, str] = field(default_factory=lambda: _NONE)
    called: Mapping[str, str] = field(default_factory=lambda: _NONE)

    @property
    def free(self) -> frozenset[str]:
        """What a new pod can have now."""
        return frozenset(self.nodes.keys() - self.holders.keys() - self.unusable.keys())

    @property
    def pinned(self) -> bool:
        """Whether NUMA nodes of it are known at all; kubelet does not align what has none."""
        return any(self.nodes.values())

    def on(self, nodes: Nodes) -> frozenset[str]:
        """The pieces on these NUMA nodes; all of them where none are known."""
        if not self.pinned:
            return frozenset(self.nodes)
        return frozenset(piece for piece, its in self.nodes.items() if its & nodes)

    def held_on(self, nodes: Nodes) -> dict[str, list[str]]:
        """Who has how much of it there that would be free without them, pieces by holder."""
        held: dict[str, list[str]] = defaultdict(list)
        for piece in sorted(self.on(nodes), key=_natural):
            if piece in self.holders and piece not in self.unusable:
                held[self.holders[piece]].append(piece)
        return dict(held)

    def without(self, taken: Iterable[str], holder: str) -> Stock:
        """The same after `holder` has taken some."""
        holders = MappingProxyType({**self.holders, **dict.fromkeys(taken, holder)})
        return Stock(self.name, self.nodes, holders, self.unusable, self.called)

    def names(self, pieces: Collection[str]) -> str:
        """Name pieces in one phrase: ``CPUs 2-5``, ``GPU 1, GPU 3``."""
        if self.name == CPU:
            return f"CPU{'s' if len(pieces) != 1 else ''} {ranges(sorted(map(int, pieces)))}"
        return ", ".join(self.called.get(piece, piece) for piece in sorted(pieces, key=_natural))


def _natural(piece: str) -> tuple[int, str]:
    return (int(piece) if piece.isdecimal() else 0, piece)
