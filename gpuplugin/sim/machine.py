"""A machine to simulate, worked out from its file: every GPU, NIC and bridge with its address, every NVLink.

A file says what hangs where (`schema` has its form); addresses, UUIDs and the ends of links follow from that, the same
every time, so that a file is short and cannot contradict itself where it need not.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID, uuid5

from gpuplugin.errors import MachineFileError, MigRefused
from gpuplugin.model.ids import NumaId, PciAddress
from gpuplugin.model.inventory import Nic, NumaNode
from gpuplugin.sim import mig, pcie, schema
from gpuplugin.sim.nvlinks import link_records
from gpuplugin.sim.snapshot import DriverRecord, GpuRecord, Loaded, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuplugin.model.inventory import PciePath

_FOLDER = Path(__file__).with_name("machines")
_NAMESPACE = UUID("5d3f2a0e-6a52-4c1f-9f0b-2c9f6f1a7f10")
_GPU = re.compile(r"gpu(\d+)")


@dataclass(frozen=True, slots=True)
class SimGpu:
    """A GPU as it stands in the machine: what NVML says of it, and where it hangs. `pci_device`: ``0x2330``."""

    record: GpuRecord
    pci: PciAddress
    pcie: PciePath
    numa: NumaId | None
    pci_device: str


@dataclass(frozen=True, slots=True)
class SimNic:
    """A NIC: the facts that a look at it must bring, where it hangs. `state_line`: as sysfs has it, ``4: ACTIVE``."""

    facts: Nic
    place: pcie.Leaf
    pci_device: str
    state_line: str


@dataclass(frozen=True, slots=True)
class Machine:
    """All of it, consistent. `seed` keeps the UUIDs of two nodes of one kind apart.

    memory_gib: in the order of numa_nodes · tree: everything on PCIe, bridges and other devices, too · snapshot: NVML's
    state when the machine starts.
    """

    name: str
    seed: str
    about: str
    numa_nodes: tuple[NumaNode, ...]
    memory_gib: tuple[int, ...]
    gpus: tuple[SimGpu, ...]
    nics: tuple[SimNic, ...]
    tree: pcie.Tree
    snapshot: Snapshot


def names() -> tuple[str, ...]:
    """Give the machines that come with the package, sorted."""
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.yaml")))


def load(name_or_path: str | Path, seed: str = "") -> Machine:
    """Load one of `names()`, or a file of one's own (anything with a ``/`` or a suffix ``.yaml`` or ``.yml``).

    MachineFileError names file, key, value and what is allowed.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or "/" in text or text.endswith((".yaml", ".yml")):
        file = Path(name_or_path)
    elif text in names():
        file = _FOLDER / f"{text}.yaml"
    else:
        raise MachineFileError(
            f"no simulated machine is called {text!r}; there are {', '.join(names())}, or give the path of a YAML file"
        )
    return _build(file, schema.read(file), seed)


def _build(file: Path, form: schema.MachineForm, seed: str) -> Machine:
    numa_nodes = _numa(file, form)
    for number, root in enumerate(form.pcie):
        if root.numa is not None and root.numa >= len(numa_nodes):
            allowed = f"null, or a NUMA node: 0 to {len(numa_nodes) - 1}"
            raise schema.wrong(file, f"pcie[{number}].numa", root.numa, allowed)
    tree = pcie.lay_out(file, form.pcie)
    gpus = _gpus(file, form, tree, f"{file.stem}/{seed}")
    version, (major, minor) = form.driver.version, map(int, form.driver.cuda.split("."))
    snapshot = Snapshot(
        DriverRecord(Loaded.YES, version, f"{major}.{version}", major * 1000 + minor * 10),
        tuple(gpu.record for gpu in gpus),
        link_records(file, form.nvlink, [gpu.record.bus_id for gpu in gpus]),
    )
    return Machine(
        name=file.stem,
        seed=seed,
        about=form.about.strip(),
        numa_nodes=numa_nodes,
        memory_gib=tuple(node.memory_gib for node in form.numa),
        gpus=gpus,
        nics=_nics(file, form, tree, f"{file.stem}/{seed}"),
        tree=tree,
        snapshot=_with_mig(file, form, snapshot),
    )


def _numa(file: Path, form: schema.MachineForm) -> tuple[NumaNode, ...]:
    if not form.numa:
        raise schema.wrong(file, "numa", [], "at least one node")
    nodes = []
    for number, node in enumerate(form.numa):
        key = f"numa[{number}]"
        if len(node.distances) != len(form.numa) or node.distances[number] != 10:  # noqa: PLR2004 (ACPI's own node)
            allowed = f"{len(form.numa)} distances, 10 to the node itself"
            raise schema.wrong(file, f"{key}.distances", list(node.distances), allowed)
        for other, distance in enumerate(node.distances):
            back = form.numa[other].distances
            if len(back) > number and back[number] != distance:
                allowed = f"what numa[{other}] says of this node: {back[number]}"
                raise schema.wrong(file, f"{key}.distances[{other}]", distance, allowed)
        nodes.append(NumaNode(NumaId(number), cpu_list(node.cpus), node.distances))
    cpus = Counter(cpu for node in nodes for cpu in node.cpus)
    if twice := sorted(cpu for cpu, count in cpus.items() if count > 1):
        raise schema.wrong(file, "numa", twice, "each CPU once")
    return tuple(nodes)


def _gpus(file: Path, form: schema.MachineForm, tree: pcie.Tree, seed: str) -> tuple[SimGpu, ...]:
    forms = [group for group in form.gpus for _ in range(group.count)]
    minors = form.minors or tuple(range(len(forms)))
    if len(minors) != len(forms) or len(set(minors)) != len(minors):
        raise schema.wrong(file, "minors", list(minors), f"{len(forms)} different numbers, one a GPU")
    module_ids = form.module_ids or (None,) * len(forms)
    if len(module_ids) != len(forms):
        raise schema.wrong(file, "module_ids", list(module_ids), f"{len(forms)} numbers, one a GPU")
    placed = {int(match[1]): leaf for leaf in tree.leaves if (match := _GPU.fullmatch(leaf.name))}
    if sorted(placed) != list(range(len(forms))):
        allowed = f"each of gpu0 to gpu{len(forms) - 1} (`gpus` has {len(forms)}) exactly once"
        raise schema.wrong(file, "pcie", [f"gpu{index}" for index in sorted(placed)], allowed)
    in_address_order = sorted(placed, key=lambda index: placed[index].pci)
    if in_address_order != sorted(placed):
        allowed = "GPUs in the order of their PCI addresses, as NVML numbers them"
        raise schema.wrong(file, "pcie", [f"gpu{index}" for index in in_address_order], allowed)
    return tuple(
        SimGpu(
            _gpu_record(index, minors[index], module_ids[index], group, placed[index].pci, seed),
            placed[index].pci,
            placed[index].pcie,
            placed[index].numa,
            group.pci_device,
        )
        for index, group in enumerate(forms)
    )


def _gpu_record(
    index: int, minor: int, module_id: int | None, form: schema.GpuForm, pci: PciAddress, seed: str
) -> GpuRecord:
    major_cc, minor_cc = map(int, form.compute_capability.split("."))
    has_mig = False if mig.profiles(form.model) else None
    fabric = form.fabric or schema.FabricForm()
    return GpuRecord(
        index=index,
        uuid=f"GPU-{uuid5(_NAMESPACE, f'{seed}/gpu/{index}')}",
        minor=minor,
        bus_id=pcie.nvml_bus_id(pci),
        name=form.model,
        architecture=schema.ARCHITECTURES[form.architecture],
        memory=None if form.memory_mib is None else form.memory_mib << 20,
        cc_major=major_cc,
        cc_minor=minor_cc,
        mig_current=has_mig,
        mig_pending=has_mig,
        fabric_state=None if form.fabric is None else fabric.state,
        fabric_cluster=fabric.cluster.replace("-", ""),
        fabric_clique=fabric.clique,
        fabric_status=fabric.status,
        fabric_health=fabric.health,
        recovery=0 if form.recovery else None,
        module_id=module_id,
        addressing=None if form.addressing is None else schema.ADDRESSING_MODES[form.addressing],
    )


def _nics(file: Path, form: schema.MachineForm, tree: pcie.Tree, seed: str) -> tuple[SimNic, ...]:
    placed = {leaf.name: leaf for leaf in tree.leaves}
    named = [(name, group) for group in form.nics for name in group.names]
    _once(file, "nics", (name for name, _ in named))
    nics = []
    for number, (name, group) in enumerate(named):
        if name not in placed:
            raise schema.wrong(file, "nics", name, "a name that hangs somewhere in `pcie`")
        leaf, guid = placed[name], uuid5(_NAMESPACE, f"{seed}/nic/{name}").hex
        facts = Nic(
            name=name,
            pci=leaf.pci,
            numa=leaf.numa,
            pcie=leaf.pcie,
            link_layer=group.link_layer,
            rate=group.rate,
            state=group.state.partition(": ")[2],
            node_guid=":".join(guid[at : at + 4] for at in range(0, 16, 4)),
            netdev=f"{'ib' if group.link_layer == 'InfiniBand' else 'eth'}{number}",
            uverbs=f"uverbs{number}",
        )
        nics.append(SimNic(facts, leaf, group.pci_device, group.state))
    return tuple(nics)


def _with_mig(file: Path, form: schema.MachineForm, snapshot: Snapshot) -> Snapshot:
    for index, wanted in form.mig.items():
        key = f"mig.{index}"
        if index not in range(len(snapshot.gpus)) or snapshot.gpu(index).mig_current is None:
            able = [gpu.index for gpu in snapshot.gpus if gpu.mig_current is not None]
            raise schema.wrong(file, key, list(wanted), f"GPUs that have MIG: {able}")
        snapshot = mig.set_mode(snapshot, index, enabled=True)
        for text in wanted:
            profile, _, start = text.partition("@")
            if not start.isdecimal():
                raise schema.wrong(file, key, text, "profile@start, such as 3g.40gb@4")
            try:
                snapshot, _ = mig.create(snapshot, index, profile, int(start))
            except MigRefused as refused:
                raise schema.wrong(file, key, text, str(refused)) from refused
    return snapshot


def _once(file: Path, key: str, values: Iterable[str]) -> None:
    if twice := [value for value, count in Counter(values).items() if count > 1]:
        raise schema.wrong(file, key, twice[0], "each name once")


def cpu_list(text: str) -> tuple[int, ...]:
    """Read the kernel's list notation, ``0-3,8``: ascending, each once."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(cpus))
