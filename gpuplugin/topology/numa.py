"""Which requests fit into one NUMA node, because kubelet's topology manager may refuse those that do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpuplugin.model.ids import NumaId
    from gpuplugin.model.inventory import Inventory


@dataclass(frozen=True, slots=True)
class Alignment:
    """Free GPUs by NUMA node, by id, and how many are on an unknown one, which gives kubelet no hint.

    A node without a free GPU is there with 0.
    """

    free: tuple[tuple[NumaId, int], ...]
    unknown: int

    @property
    def largest(self) -> int:
        """The most GPUs that one node can still give."""
        return max((count for _, count in self.free), default=0)

    def nodes_for(self, size: int) -> tuple[NumaId, ...]:
        """The nodes that can give `size` GPUs by themselves."""
        return tuple(node for node, count in self.free if count >= size)


def alignment(inventory: Inventory, free: Collection[int]) -> Alignment:
    """What can be aligned when these positions are free. A GPU with a fault is never free."""
    usable = {i for i in free if inventory.gpus[i].fault is None}
    nodes = sorted({gpu.numa for gpu in inventory.gpus if gpu.numa is not None})
    counts = tuple((node, sum(inventory.gpus[i].numa == node for i in usable)) for node in nodes)
    return Alignment(counts, sum(inventory.gpus[i].numa is None for i in usable))
