"""How two devices reach each other: the level of their PCIe paths and the NVLinks between them.

The words are those of ``nvidia-smi topo -m``, because that is the matrix people know.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuplugin.model.ids import NumaId
    from gpuplugin.model.inventory import PciePath


class PcieLevel(IntEnum):
    """nvmlGpuTopologyLevel_t, nearest first; its name is what the matrix shows."""

    SELF = 0
    PIX = 10
    """At most one PCIe switch between them."""
    PXB = 20
    """Several switches, no host bridge."""
    PHB = 30
    """One PCIe host bridge."""
    NODE = 40
    """Several host bridges in one NUMA node."""
    SYS = 50
    """Across NUMA nodes."""


@dataclass(frozen=True, slots=True)
class NvLinks:
    """Active NVLinks of the GPUs, in inventory order.

    direct[i][j]: links of i whose far end is j, as i reports them · to_switch[i]: links of i into NVSwitches.
    """

    direct: tuple[tuple[int, ...], ...]
    to_switch: tuple[int, ...]

    def between(self, i: int, j: int) -> int:
        """Links that i and j can use together, as in ``NV18``: direct ones plus, through switches, the lesser bundle.

        A link works only when both ends have it up, so where the ends disagree the smaller number counts.
        """
        return min(self.direct[i][j], self.direct[j][i]) + min(self.to_switch[i], self.to_switch[j]) if i != j else 0


def pcie_level(a: PciePath | None, b: PciePath | None, numa_a: NumaId | None, numa_b: NumaId | None) -> PcieLevel:
    """How near two different devices are by PCIe.

    Different known NUMA nodes are SYS. An unknown node does not count as different. An unknown path is as far as the
    NUMA nodes leave open: NODE when they are the same known one, else SYS.
    """
    if numa_a is not None and numa_b is not None and numa_a != numa_b:
        return PcieLevel.SYS
    if a is None or b is None:
        return PcieLevel.NODE if numa_a is not None and numa_a == numa_b else PcieLevel.SYS
    if a.root != b.root:
        return PcieLevel.NODE
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a.bridges, b.bridges, strict=False)))
    if shared == 0:
        return PcieLevel.PHB
    below = max(len(a.bridges), len(b.bridges)) - shared
    return PcieLevel.PIX if below <= 1 else PcieLevel.PXB
