"""The matrix of ``nvidia-smi topo -m``, from our own inventory, so that a person sees what the choice saw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuplugin.model.links import PcieLevel, pcie_level
from gpuplugin.topology.explain import ranges
from gpuplugin.topology.graph import nearest_nics

if TYPE_CHECKING:
    from gpuplugin.model.inventory import Gpu, Inventory, Nic

UNKNOWN = "N/A"

LEGEND = {
    "X": "self",
    "SYS": "across NUMA nodes",
    "NODE": "across PCIe host bridges of one NUMA node",
    "PHB": "through one PCIe host bridge",
    "PXB": "through several PCIe switches, no host bridge",
    "PIX": "through at most one PCIe switch",
    "NV#": "over # NVLinks",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One device's line. What is not known is UNKNOWN; what does not apply is empty.

    cells: one a column of the matrix · cpus, numa: its affinity, CPUs as the kernel writes them (``0-7,16-23``) ·
    switch, nics: its PCIe switch and nearest NICs, for GPUs only · fault: why it cannot be used now.
    """

    name: str
    cells: tuple[str, ...]
    cpus: str
    numa: str
    switch: str = ""
    nics: tuple[str, ...] = ()
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Matrix:
    """columns: ``GPU<index>`` for each GPU, then the NICs by their names; the rows are in the same order."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def matrix(inventory: Inventory) -> Matrix:
    """The matrix of all GPUs and NICs."""
    gpus, nics = inventory.gpus, inventory.nics
    names = (*(f"GPU{gpu.index}" for gpu in gpus), *(nic.name for nic in nics))
    devices: tuple[Gpu | Nic, ...] = (*gpus, *nics)
    cpus = {node.id: ranges(node.cpus) for node in inventory.numa_nodes}

    def cell(i: int, j: int) -> str:
        if i == j:
            return "X"
        links = inventory.nvlinks.between(i, j) if max(i, j) < len(gpus) else 0
        return f"NV{links}" if links else _level(devices[i], devices[j]).name

    def row(i: int) -> Row:
        numa = devices[i].numa
        cells = tuple(cell(i, j) for j in range(len(devices)))
        affinity = (UNKNOWN, UNKNOWN) if numa is None else (cpus.get(numa, UNKNOWN), str(numa))
        if i >= len(gpus):
            return Row(names[i], cells, *affinity)
        gpu = gpus[i]
        switch = UNKNOWN if gpu.pcie is None else gpu.pcie.switch or ""
        return Row(names[i], cells, *affinity, switch, nearest_nics(gpu, nics), gpu.fault or "")

    return Matrix(names, tuple(row(i) for i in range(len(devices))))


def _level(a: Gpu | Nic, b: Gpu | Nic) -> PcieLevel:
    return pcie_level(a.pcie, b.pcie, a.numa, b.numa)
