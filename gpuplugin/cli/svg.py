"""The node as a picture: sockets, PCIe switches, GPUs, NICs and NVLinks, and who holds what.

All GPUs stand in one line, ordered by NUMA node and switch, so that a link is an arc below it: what is near in the
machine is near in the picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from math import ceil
from typing import TYPE_CHECKING, Final

from gpuplugin.cli import svg_parts as svg
from gpuplugin.topology.explain import ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpuplugin.model.ids import DeviceUuid, NumaId
    from gpuplugin.model.inventory import Gpu, Inventory, MigDevice, Nic

CARD, GAP, PAD = 112, 10, 12
TITLE, HEADING, LINE = 62, 40, 16
NIC_HEIGHT, GPU_HEIGHT = 40, 66
_ARC_LEAST, _ARC_STEP, _BELOW_CURVE = 22, 18, 0.75
_NIC_ROW: Final = 2


@dataclass(frozen=True, slots=True)
class Branch:
    """Devices under one PCIe switch, or on one host bridge without any. switch: what stands above them."""

    numa: NumaId | None
    switch: str
    gpus: tuple[int, ...]
    nics: tuple[Nic, ...]

    @property
    def columns(self) -> int:
        """How many cards stand beside each other."""
        return len(self.gpus) or min(len(self.nics), _NIC_ROW) or 1

    @property
    def nic_rows(self) -> int:
        """How many rows its NICs need."""
        return ceil(len(self.nics) / self.columns)

    @property
    def width(self) -> int:
        """Pixels."""
        return self.columns * CARD + (self.columns - 1) * GAP + 2 * PAD


def draw(inventory: Inventory, holders: Mapping[DeviceUuid, str] | None = None) -> str:
    """Give the SVG. holders: who has a GPU or MIG device, by its UUID."""
    return _Drawing(inventory, holders or {}).document()


def branches(inventory: Inventory) -> tuple[Branch, ...]:
    """Sort the devices by NUMA node (an unknown one last) and switch, switches by their first GPU."""
    gpus: dict[tuple[NumaId | None, str], list[int]] = {}
    nics: dict[tuple[NumaId | None, str], list[Nic]] = {}
    for position, gpu in enumerate(inventory.gpus):
        gpus.setdefault((gpu.numa, _above(gpu)), []).append(position)
    for nic in inventory.nics:
        nics.setdefault((nic.numa, _above(nic)), []).append(nic)
    for node in inventory.numa_nodes:
        if not any(numa == node.id for numa, _ in (*gpus, *nics)):
            nics[node.id, ""] = []
    found = [
        Branch(key[0], key[1], tuple(gpus.get(key, ())), tuple(nics.get(key, ())))
        for key in dict.fromkeys((*gpus, *nics))
    ]
    last = len(inventory.gpus)
    return tuple(
        sorted(
            found,
            key=lambda one: (one.numa is None, one.numa or 0, one.gpus[0] if one.gpus else last, one.switch),
        )
    )


def _above(device: Gpu | Nic) -> str:
    if device.pcie is None:
        return "PCIe place unknown"
    return f"switch {device.pcie.switch}" if device.pcie.switch else f"bridge {device.pcie.root.removeprefix('pci')}"


class _Drawing:
    def __init__(self, inventory: Inventory, holders: Mapping[DeviceUuid, str]) -> None:
        self._inventory, self._holders = inventory, holders
        self._branches = branches(inventory)
        instances = max((len(gpu.mig_devices) for gpu in inventory.gpus), default=0)
        self._gpu_height = GPU_HEIGHT + instances * LINE
        rows = max((branch.nic_rows for branch in self._branches), default=0)
        self._gpu_y = TITLE + HEADING + PAD + LINE + 6 + rows * (NIC_HEIGHT + 8)
        self._bottom = self._gpu_y + self._gpu_height + 2 * PAD
        self._centre: dict[int, float] = {}
        self._place: dict[int, int] = {}

    def document(self) -> str:
        parts, x = [], float(PAD)
        for numa, members in groupby(self._branches, key=lambda branch: branch.numa):
            drawn, x = self._socket(numa, list(members), x)
            parts += drawn
        links, y = self._links()
        legend, legend_width = self._legend(y + 28)
        width = max(x, legend_width, 460) + PAD - GAP
        title, description = self._words()
        models = svg.text(title, PAD + 2, 30, "strong", width=width - 2 * PAD, size=14)
        below = svg.text(description, PAD + 2, 50, "muted", width=width - 2 * PAD)
        return svg.document(width, y + 48, title, description, [models, below, *parts, *links, *legend])

    def _words(self) -> tuple[str, str]:
        inventory = self._inventory
        models: dict[str, int] = {}
        for gpu in inventory.gpus:
            models[gpu.model] = models.get(gpu.model, 0) + 1
        title = ", ".join(f"{count} x {model}" for model, count in models.items()) or "no GPU"
        held = sum(self._holder(gpu) != "" for gpu in inventory.gpus)
        words = [f"driver {inventory.driver.version}", _counted(len(inventory.nics), "NIC")]
        words += [_counted(len(inventory.numa_nodes), "NUMA node")] if inventory.numa_nodes else []
        words += [f"{held} of {len(inventory.gpus)} GPUs held"] if self._holders else []
        return title, " · ".join(words)

    def _holder(self, gpu: Gpu) -> str:
        mine: list[DeviceUuid] = [gpu.uuid, *(device.uuid for device in gpu.mig_devices)]
        owners = [self._holders.get(uuid, "") for uuid in mine]
        return ", ".join(dict.fromkeys(filter(None, owners)))

    def _socket(self, numa: NumaId | None, members: Sequence[Branch], x: float) -> tuple[list[str], float]:
        inner = sum(branch.width for branch in members) + GAP * (len(members) - 1)
        width = inner + 2 * PAD
        cpus = next((ranges(node.cpus) for node in self._inventory.numa_nodes if node.id == numa), "")
        name = "NUMA node unknown" if numa is None else f"NUMA node {numa}"
        parts = [
            svg.rect("socket", x, TITLE, width, self._bottom - TITLE),
            svg.text(name, x + PAD, TITLE + 18, "strong", width=width - 2 * PAD),
            *([svg.text(f"CPUs {cpus}", x + PAD, TITLE + 34, "muted small", width=width - 2 * PAD)] if cpus else []),
        ]
        at = x + PAD
        for branch in members:
            parts += self._branch(branch, at)
            at += branch.width + GAP
        return svg.group(f"{name}, CPUs {cpus or 'unknown'}", *parts), x + width + GAP

    def _branch(self, branch: Branch, x: float) -> Iterator[str]:
        if not (branch.gpus or branch.nics):
            yield svg.text("no GPU or NIC", x, TITLE + HEADING + PAD + 12, "muted small", width=branch.width, size=10.5)
            return
        top = TITLE + HEADING
        own = branch.switch.startswith("switch")
        yield svg.rect("switch", x, top, branch.width, self._bottom - PAD - top, dashed=not own)
        yield svg.text(branch.switch, x + PAD, top + 18, "small", width=branch.width - 2 * PAD, size=10.5)
        for number, nic in enumerate(branch.nics):
            row, column = divmod(number, branch.columns)
            yield from self._nic(nic, x + PAD + column * (CARD + GAP), top + PAD + LINE + row * (NIC_HEIGHT + 8))
        for column, position in enumerate(branch.gpus):
            yield from self._gpu(position, x + PAD + column * (CARD + GAP))

    def _nic(self, nic: Nic, x: float, y: float) -> list[str]:
        rate = (nic.rate or "").partition(" (")[0]
        facts = (nic.name, nic.link_layer, nic.rate, nic.state, nic.pci, nic.netdev)
        return svg.group(
            ", ".join(filter(None, facts)),
            svg.rect("nic", x, y, CARD, NIC_HEIGHT),
            svg.text(nic.name, x + 8, y + 17, "strong", width=CARD - 16, size=12.5),
            svg.text(rate or nic.link_layer or "NIC", x + 8, y + 32, "muted small", width=CARD - 16, size=10.5),
        )

    def _gpu(self, position: int, x: float) -> list[str]:
        gpu, y = self._inventory.gpus[position], self._gpu_y
        self._place[position] = len(self._centre)
        self._centre[position] = x + CARD / 2
        whole = self._holders.get(gpu.uuid, "")
        kind = "fault" if gpu.fault else "held" if whole else "gpu"
        ink = " on-held" if kind == "held" else ""
        state = f"✕ {gpu.fault}" if gpu.fault else _name(whole) or ("MIG" if gpu.mig and gpu.mig.current else "free")
        facts = (f"GPU {gpu.index}", gpu.model, gpu.uuid, gpu.pci, gpu.fault or "", f"held by {whole}" if whole else "")
        short = gpu.model.removeprefix("NVIDIA ").removeprefix("Tesla ")
        return svg.group(
            ", ".join(filter(None, facts)),
            svg.rect(kind, x, y, CARD, self._gpu_height),
            svg.text(f"GPU {gpu.index}", x + 8, y + 18, f"strong{ink}", width=CARD - 16, size=12.5),
            svg.text(short, x + 8, y + 35, f"small{ink}", width=CARD - 16, size=10.5),
            svg.text(state, x + 8, y + 53, f"small{ink}", width=CARD - 16, size=10.5),
            *(
                part
                for n, device in enumerate(gpu.mig_devices)
                for part in self._slice(device, x, y + GPU_HEIGHT + n * LINE)
            ),
        )

    def _slice(self, device: MigDevice, x: float, y: float) -> list[str]:
        owner = self._holders.get(device.uuid, "")
        kind, ink = ("held", " on-held") if owner else ("switch", "")
        words = f"{device.profile} {_name(owner)}".strip()
        return svg.group(
            f"MIG {device.index}, {device.profile}, {device.uuid}" + (f", held by {owner}" if owner else ""),
            svg.rect(kind, x + 5, y - 4, CARD - 10, LINE - 2),
            svg.text(words, x + 10, y + 6.5, f"small{ink}", width=CARD - 18, size=10.5),
        )

    def _links(self) -> tuple[list[str], float]:
        """Draw arcs for links from GPU to GPU, and a bar for those through switches; gives where they end below."""
        links, count = self._inventory.nvlinks, len(self._inventory.gpus)
        start = self._gpu_y + self._gpu_height
        parts: list[str] = []
        deepest = float(self._bottom)
        for i in range(count):
            for j in range(i + 1, count):
                if number := min(links.direct[i][j], links.direct[j][i]):
                    arc, low = self._arc(i, j, number, start)
                    parts += arc
                    deepest = max(deepest, low)
        joined = [i for i in range(count) if links.to_switch[i]]
        if joined:
            bar, deepest = self._bar(joined, start, deepest + 22)
            parts += bar
        return parts, deepest

    def _arc(self, i: int, j: int, number: int, start: float) -> tuple[list[str], float]:
        span = abs(self._place[i] - self._place[j])
        depth = (self._bottom - start) / _BELOW_CURVE + _ARC_LEAST + _ARC_STEP * span
        a, b = self._centre[i], self._centre[j]
        low = start + depth * _BELOW_CURVE
        along = f"M{a:g} {start:g}C{a:g} {start + depth:g} {b:g} {start + depth:g} {b:g} {start:g}"
        gpus = self._inventory.gpus
        title = f"{number} NVLinks between GPU {gpus[i].index} and GPU {gpus[j].index}"
        label = svg.text(f"{number}", (a + b) / 2, low + 4, "halo small", middle=True)
        return svg.group(title, svg.path("link", along, _thickness(number)), label), low + 8

    def _bar(self, joined: Sequence[int], start: float, top: float) -> tuple[list[str], float]:
        links, gpus = self._inventory.nvlinks, self._inventory.gpus
        centres = [self._centre[i] for i in joined]
        left, right = min(centres) - CARD / 2, max(centres) + CARD / 2
        parts = []
        for i in joined:
            x, number = self._centre[i], links.to_switch[i]
            line = svg.path("link", f"M{x:g} {start:g}V{top:g}", _thickness(number))
            label = svg.text(f"NV{number}", x + 8, top - 6, "muted small")
            parts += svg.group(f"{number} NVLinks from GPU {gpus[i].index} into the switches", line, label)
        middle = (left + right) / 2
        parts += [
            svg.rect("nvswitch", left, top, right - left, 26),
            svg.text("NVSwitch", middle, top + 17, "strong", middle=True),
        ]
        return parts, top + 26

    def _legend(self, y: float) -> tuple[list[str], float]:
        nvlinks = self._inventory.nvlinks
        linked = any(nvlinks.to_switch) or any(map(any, nvlinks.direct))
        faulty = any(gpu.fault for gpu in self._inventory.gpus)
        entries = [
            ("gpu", "GPU"),
            *([("held", "held")] if self._holders else []),
            *([("fault", "✕ fault")] if faulty else []),
            *([("nic", "NIC")] if self._inventory.nics else []),
            ("switch", "PCIe switch (dashed: host bridge)"),
        ]
        parts, x = [], float(PAD + 2)
        for kind, words in entries:
            parts += [svg.rect(kind, x, y - 10, 16, 12), svg.text(words, x + 22, y, "muted small")]
            x += 22 + len(words) * 6.6 + 20
        if linked:
            parts += [svg.path("link", f"M{x:g} {y - 4:g}h18", 3), svg.text("NVLink", x + 24, y, "muted small")]
            x += 80
        return parts, x


def _name(holders: str) -> str:
    """Pods without their namespaces, which are in the card's own words."""
    return ", ".join(holder.rpartition("/")[2] for holder in holders.split(", "))


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _thickness(links: int) -> float:
    return min(1 + 0.5 * links, 5)
