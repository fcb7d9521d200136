"""A simulated machine's /sys, in the kernel's shape: devices where they hang, buses and classes that link to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuplugin.model.ids import PciAddress
    from gpuplugin.model.inventory import PciePath
    from gpuplugin.sim.machine import Machine, SimGpu, SimNic
    from gpuplugin.sim.pcie import Leaf
    from gpuplugin.sim.tree import HostTree

DRM_MAJOR, FIRST_RENDER = 226, 128
VERBS_MAJOR, FIRST_VERBS = 231, 192
_NVIDIA, _MELLANOX, _INTEL, _BROADCOM = "0x10de", "0x15b3", "0x8086", "0x1000"
_BRIDGE, _3D, _ETHERNET, _INFINIBAND, _NVME = "0x060400", "0x030200", "0x020000", "0x020700", "0x010802"


@dataclass(frozen=True, slots=True)
class _Identity:
    """What a PCI function says it is; `driver` is the kernel's that has it."""

    vendor: str
    device: str
    kind: str
    driver: str


def write(tree: HostTree, machine: Machine) -> None:
    """Write everything but the GPUs."""
    _write_nodes(tree, machine)
    for name, _ in machine.tree.roots:
        tree.folder(f"sys/devices/{name}")
    for bridge in machine.tree.bridges:
        vendor = _BROADCOM if bridge.pcie.bridges else _INTEL
        _write_function(tree, machine, bridge, _Identity(vendor, "0xc030", _BRIDGE, "pcieport"))
    known = {gpu.pci for gpu in machine.gpus} | {nic.facts.pci for nic in machine.nics}
    for leaf in machine.tree.leaves:
        if leaf.pci not in known:
            is_nvme = leaf.name.startswith("nvme")
            identity = (
                _Identity("0x1d0f", "0x8061", _NVME, "nvme")
                if is_nvme
                else _Identity("0x1d0f", "0xec20", _ETHERNET, "ena")
            )
            _write_function(tree, machine, leaf, identity)
    for number, nic in enumerate(machine.nics):
        _write_nic(tree, machine, number, nic)


def write_gpu(tree: HostTree, machine: Machine, gpu: SimGpu) -> None:
    """Write a GPU's PCI function and its DRM devices."""
    folder = _write_function(tree, machine, gpu, _Identity(_NVIDIA, gpu.pci_device, _3D, "nvidia"))
    for name, minor in drm_nodes(machine, gpu).items():
        tree.text(f"{folder}/drm/{name}/dev", f"{DRM_MAJOR}:{minor}")
        tree.link(f"{folder}/drm/{name}/device", folder)
        tree.link(f"sys/class/drm/{name}", f"{folder}/drm/{name}")


def remove_gpu(tree: HostTree, machine: Machine, gpu: SimGpu) -> None:
    """Remove what `write_gpu` wrote."""
    tree.remove(
        *(f"sys/class/drm/{name}" for name in drm_nodes(machine, gpu)),
        f"sys/bus/pci/drivers/nvidia/{gpu.pci}",
        f"sys/bus/pci/devices/{gpu.pci}",
        _folder(gpu.pcie, gpu.pci),
    )


def drm_nodes(machine: Machine, gpu: SimGpu) -> dict[str, int]:
    """Give the GPU's names under /dev/dri, with their minor numbers; card0 is the board's own display adapter."""
    number = machine.gpus.index(gpu) + 1
    return {f"card{number}": number, f"renderD{FIRST_RENDER + number}": FIRST_RENDER + number}


def list_notation(numbers: tuple[int, ...]) -> str:
    """Write ascending numbers as the kernel does: ``0-3,8``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _write_nodes(tree: HostTree, machine: Machine) -> None:
    base = "sys/devices/system/node"
    tree.text(f"{base}/online", list_notation(tuple(node.id for node in machine.numa_nodes)))
    for node, gib in zip(machine.numa_nodes, machine.memory_gib, strict=True):
        total = gib << 20
        tree.text(f"{base}/node{node.id}/cpulist", list_notation(node.cpus))
        tree.text(f"{base}/node{node.id}/distance", " ".join(map(str, node.distances)))
        tree.text(
            f"{base}/node{node.id}/meminfo",
            "\n".join(
                f"Node {node.id} {name + ':':<15} {kib:>9} kB"
                for name, kib in (
                    ("MemTotal", total),
                    ("MemFree", total * 9 // 10),
                    ("MemUsed", total - total * 9 // 10),
                )
            ),
        )


def _folder(path: PciePath, pci: PciAddress) -> str:
    return "/".join(("sys/devices", path.root, *path.bridges, pci))


def _write_function(tree: HostTree, machine: Machine, place: Leaf | SimGpu, identity: _Identity) -> str:
    folder = _folder(place.pcie, place.pci)
    cpus = [cpu for node in machine.numa_nodes if place.numa in {None, node.id} for cpu in node.cpus]
    for name, text in {
        "class": identity.kind,
        "vendor": identity.vendor,
        "device": identity.device,
        "subsystem_vendor": identity.vendor,
        "subsystem_device": "0x0000",
        "numa_node": "-1" if place.numa is None else str(place.numa),
        "local_cpulist": list_notation(tuple(sorted(cpus))),
        "uevent": f"DRIVER={identity.driver}\nPCI_SLOT_NAME={place.pci}",
    }.items():
        tree.text(f"{folder}/{name}", text)
    tree.folder("sys/bus/pci/drivers")
    tree.link(f"{folder}/subsystem", "sys/bus/pci")
    tree.link(f"{folder}/driver", f"sys/bus/pci/drivers/{identity.driver}")
    tree.link(f"sys/bus/pci/drivers/{identity.driver}/{place.pci}", folder)
    tree.link(f"sys/bus/pci/devices/{place.pci}", folder)
    return folder


def _write_nic(tree: HostTree, machine: Machine, number: int, nic: SimNic) -> None:
    facts = nic.facts
    kind = _INFINIBAND if facts.link_layer == "InfiniBand" else _ETHERNET
    identity = _Identity(_MELLANOX, nic.pci_device, kind, "mlx5_core")
    folder = _write_function(tree, machine, nic.place, identity)
    rdma = f"{folder}/infiniband/{facts.name}"
    tree.text(f"{rdma}/node_guid", str(facts.node_guid))
    for name, text in (("link_layer", facts.link_layer), ("rate", facts.rate), ("state", nic.state_line)):
        tree.text(f"{rdma}/ports/1/{name}", str(text))
    verbs = f"{folder}/infiniband_verbs/{facts.uverbs}"
    tree.text(f"{verbs}/ibdev", facts.name)
    tree.text(f"{verbs}/dev", f"{VERBS_MAJOR}:{FIRST_VERBS + number}")
    net = f"{folder}/net/{facts.netdev}"
    tree.text(f"{net}/operstate", "up")
    for device, subsystem in ((rdma, "infiniband"), (verbs, "infiniband_verbs"), (net, "net")):
        tree.link(f"{device}/device", folder)
        tree.link(f"sys/class/{subsystem}/{device.rpartition('/')[2]}", device)
