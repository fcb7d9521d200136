"""PCI addresses for what hangs where: bus numbers dealt out depth first, as firmware does.

A switch is an upstream port, and below it one downstream port for each device, each with a bus of its own; that is what
the kernel shows, and what levels such as PIX and PXB are read from.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuplugin.model.ids import NumaId, PciAddress
from gpuplugin.model.inventory import PciePath
from gpuplugin.sim.schema import RootForm, SwitchForm, wrong

if TYPE_CHECKING:
    from pathlib import Path

_FIRST_SLOT = 1
_SLOTS = 32
_BUSES = 256


@dataclass(frozen=True, slots=True)
class Leaf:
    """A device, or a bridge (`name` is then empty). `pcie` is where it hangs, itself not included."""

    name: str
    pci: PciAddress
    pcie: PciePath
    numa: NumaId | None


@dataclass(frozen=True, slots=True)
class Tree:
    """Everything on PCIe, in the order of the file. Roots as sysfs names them, with their NUMA node."""

    roots: tuple[tuple[str, NumaId | None], ...]
    bridges: tuple[Leaf, ...]
    leaves: tuple[Leaf, ...]


def nvml_bus_id(pci: PciAddress) -> str:
    """Write an address as NVML does: ``0000:1b:00.0`` becomes ``00000000:1B:00.0``."""
    return f"0000{pci.upper()}"


def lay_out(file: Path, forms: tuple[RootForm, ...]) -> Tree:
    """Number all buses. MachineFileError when buses run out or clash, or a name is there twice."""
    roots, bridges, leaves = [], [], []
    for number, form in enumerate(forms):
        layout = _Root(file, f"pcie[{number}]", form)
        layout.fill()
        roots.append((layout.name, layout.numa))
        bridges += layout.bridges
        leaves += layout.leaves
    for what, values in (
        ("an address that is free", [leaf.pci for leaf in (*bridges, *leaves)]),
        ("each device once", [leaf.name for leaf in leaves]),
        ("each root once", [name for name, _ in roots]),
    ):
        if twice := [value for value, count in Counter(values).items() if count > 1]:
            raise wrong(file, "pcie", twice[0], what, "Leave room between the first buses of roots of one domain.")
    return Tree(tuple(roots), tuple(bridges), tuple(leaves))


class _Root:
    """One root complex while its buses are dealt out."""

    def __init__(self, file: Path, key: str, form: RootForm) -> None:
        self.file, self.key, self.form = file, key, form
        self.domain, first = form.root.split(":")
        self.bus = self.last_bus = int(first, 16)
        self.name = f"pci{form.root}"
        self.numa = None if form.numa is None else NumaId(form.numa)
        self.bridges: list[Leaf] = []
        self.leaves: list[Leaf] = []

    def fill(self) -> None:
        slots = len(self.form.ports) + len(self.form.devices)
        if slots > _SLOTS - _FIRST_SLOT:
            allowed = f"at most {_SLOTS - _FIRST_SLOT} ports and devices on one root"
            raise wrong(self.file, self.key, slots, allowed)
        for slot, node in enumerate(self.form.ports, _FIRST_SLOT):
            port = self._bridge(self.bus, slot, ())
            self._hang(node, self._next_bus(), (port,))
        for slot, name in enumerate(self.form.devices, _FIRST_SLOT + len(self.form.ports)):
            self._leaf(name, self.bus, slot, ())

    def _hang(self, node: str | SwitchForm, bus: int, above: tuple[PciAddress, ...]) -> None:
        if isinstance(node, str):
            self._leaf(node, bus, 0, above)
            return
        if len(node.switch) > _SLOTS:
            raise wrong(self.file, self.key, len(node.switch), f"at most {_SLOTS} entries below a switch")
        upstream = self._bridge(bus, 0, above)
        inner = self._next_bus()
        for slot, below in enumerate(node.switch):
            downstream = self._bridge(inner, slot, (*above, upstream))
            self._hang(below, self._next_bus(), (*above, upstream, downstream))

    def _bridge(self, bus: int, slot: int, above: tuple[PciAddress, ...]) -> PciAddress:
        address = self._address(bus, slot)
        self.bridges.append(Leaf("", address, PciePath(self.name, above), self.numa))
        return address

    def _leaf(self, name: str, bus: int, slot: int, above: tuple[PciAddress, ...]) -> None:
        self.leaves.append(Leaf(name, self._address(bus, slot), PciePath(self.name, above), self.numa))

    def _address(self, bus: int, slot: int) -> PciAddress:
        return PciAddress(f"{self.domain}:{bus:02x}:{slot:02x}.0")

    def _next_bus(self) -> int:
        self.last_bus += 1
        if self.last_bus >= _BUSES:
            raise wrong(self.file, self.key, self.form.root, "a first bus that leaves room for all below it, up to ff")
        return self.last_bus
