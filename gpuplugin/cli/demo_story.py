"""The demo's words: what a machine is like, what a pod was given and why. No I/O, but for reading CDI files."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

import msgspec

from cdi.spec import Spec
from gpuplugin.cli.output import Cell, Page
from gpuplugin.topology.allocate import Tables
from gpuplugin.topology.explain import explain, ranges
from gpuplugin.topology.graph import mask_of
from gpuplugin.topology.numa import alignment

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from gpuplugin.model.inventory import Inventory
    from gpuplugin.sim.dialled_plugin import Call
    from gpuplugin.sim.kubelet import Admission

_LABEL = 9


@dataclass(frozen=True)
class Teller:
    """Tells of one machine. cdi: the folder that the daemon writes specifications to."""

    inventory: Inventory
    cdi: Path

    @cached_property
    def _tables(self) -> Tables:
        return Tables.build(self.inventory)

    def machine(self) -> Page:
        """What the machine is, short: models, and GPUs by NUMA node and PCIe switch with the NICs beside them."""
        gpus, nics = self.inventory.gpus, self.inventory.nics
        page = Page()
        models = Counter(gpu.model for gpu in gpus)
        page.line("  ", ", ".join(f"{n} {model}" for model, n in models.items()), f", {self._nvlink()}")
        numas = sorted({gpu.numa for gpu in gpus}, key=lambda numa: (numa is None, numa))
        for numa in numas:
            switches: dict[object, list[int]] = {}
            for gpu in gpus:
                if gpu.numa == numa:
                    switches.setdefault(gpu.pcie.switch if gpu.pcie else None, []).append(gpu.index)
            name = "no NUMA node" if numa is None else f"NUMA node {numa}"
            pieces = " | ".join(f"GPU {ranges(indices)}" for indices in switches.values())
            names = [nic.name for nic in nics if nic.numa == numa]
            page.line(f"  {name}: ", pieces, f"   NICs {', '.join(names)}" if names else "")
        return page

    def given(self, admission: Admission, free: Collection[str], asked: Call | None) -> Page:
        """What a pod got, why, and what its container finds. free: devices before; asked: the preference call."""
        page = Page()
        places = self._places(admission.ids)
        node = f" on NUMA node {ranges(admission.affinity)}" if admission.affinity is not None else ""
        choice = f"; kubelet left {len(asked['available'])} to choose from" if asked else ""
        self._say(page, "gets", Cell(f"GPU {self._ranges(admission.ids)}", "bold green"), f"{node}{choice}")
        reasons = explain(self._tables.graph, mask_of(places), mask_of(self._places(free)), exact=self._tables.exact)
        self._say(page, "why", str(reasons))
        if injected := self._injected(admission):
            self._say(page, "CDI", injected[0])
            self._say(page, "", injected[1])
        return page

    def refused(self, admission: Admission, free: Collection[str]) -> Page:
        """That a pod was refused, in kubelet's words and in ours."""
        page = Page()
        self._say(page, "refused", Cell(admission.refusal, "yellow"))
        left = alignment(self.inventory, self._places(free))
        counts = ", ".join(f"node {node} has {count}" for node, count in left.free)
        self._say(page, "why", f"no NUMA node has {admission.count} free GPUs ({counts})")
        advice = f"ask for {left.largest}, or let kubelet's Topology Manager be best-effort"
        self._say(page, "instead", advice if left.largest else "wait until a GPU is free")
        return page

    def _nvlink(self) -> str:
        count = len(self.inventory.gpus)
        pairs = [self.inventory.nvlinks.between(i, j) for i, j in combinations(range(count), 2)]
        linked = [links for links in pairs if links]
        if not linked:
            return "no NVLink"
        least, most = min(linked), max(linked)
        links = f"NV{least}" if least == most else f"NV{least} to NV{most}"
        return f"{links} between {'every two' if len(linked) == len(pairs) else f'{len(linked)} of {len(pairs)} pairs'}"

    def _places(self, ids: Collection[str]) -> list[int]:
        return [place for place, gpu in enumerate(self.inventory.gpus) if gpu.uuid in ids]

    def _ranges(self, ids: Collection[str]) -> str:
        return ranges([self.inventory.gpus[place].index for place in self._places(ids)])

    def _injected(self, admission: Admission) -> tuple[str, str] | None:
        """The first qualified name, and what the specification adds to a container that asks for all of them."""
        names = [device.name for device in admission.response.cdi_devices] if admission.response else []
        kind = names[0].partition("=")[0] if names else ""
        spec = next((spec for spec in map(_spec, sorted(self.cdi.glob("*.json"))) if spec.kind == kind), None)
        if spec is None:
            return None
        wanted = {name.partition("=")[2] for name in names}
        edits = (spec.container_edits, *(device.container_edits for device in spec.devices if device.name in wanted))
        mounts = {mount.container_path: mount.host_path for edit in edits for mount in edit.mounts}
        nodes = {node.path for edit in edits for node in edit.device_nodes}
        nodes |= {path for path in mounts if path.startswith("/dev/")}  # what stands for a node on a simulated host
        files = {host for path, host in mounts.items() if path not in nodes}
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return f"{names[0]}{more}", f"{' '.join(sorted(nodes, key=_natural))}, {len(files)} files of the driver"

    @staticmethod
    def _say(page: Page, label: str, *pieces: str | Cell) -> None:
        page.line("  ", Cell(label.ljust(_LABEL), "dim"), *pieces)


def _spec(file: Path) -> Spec:
    return msgspec.json.decode(file.read_bytes(), type=Spec)


def _natural(path: str) -> tuple[str, int]:
    stem = path.rstrip("0123456789")
    return stem, int(path[len(stem) :] or -1)
