"""Machines as inventories, written down by what bears on the choice of devices and by nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuplugin.model.ids import GpuUuid, NumaId, PciAddress
from gpuplugin.model.inventory import Driver, Gpu, Inventory, Nic, NumaNode, PciePath
from gpuplugin.model.links import NvLinks


@dataclass(frozen=True)
class Slot:
    """Where a device hangs: NUMA node, host bridge, and a switch below it (None: straight on a root port)."""

    numa: int | None = 0
    root: str = "pci0000:00"
    switch: int | None = None


def path(slot: Slot, port: int) -> PciePath:
    """`port` keeps devices apart. Switch N of a root has its own root port."""
    if slot.switch is None:
        return PciePath(slot.root, (_bridge(slot.root, 0x80 + port),))
    first = 4 * slot.switch
    return PciePath(
        slot.root, (_bridge(slot.root, first), _bridge(slot.root, first + 1), _bridge(slot.root, 0x80 + port))
    )


def _bridge(root: str, number: int) -> PciAddress:
    return PciAddress(f"0000:{root[-2:]}:{number // 8:02x}.{number % 8}")


def inventory(
    slots: Sequence[Slot],
    *,
    direct: Mapping[tuple[int, int], int] | None = None,
    to_switch: Sequence[int] | None = None,
    nics: Sequence[Slot] = (),
    distances: Mapping[int, tuple[int, ...]] | None = None,
    lost: Sequence[int] = (),
) -> Inventory:
    """direct: links both ways unless the other way is given too."""
    count = len(slots)
    links = [[0] * count for _ in slots]
    for (i, j), number in (direct or {}).items():
        links[i][j] = number
        if (j, i) not in (direct or {}):
            links[j][i] = number
    gpus = tuple(
        Gpu(
            index=i,
            uuid=GpuUuid(f"GPU-{i:08x}-0000-0000-0000-000000000000"),
            pci=PciAddress(f"0000:{i + 1:02x}:00.0"),
            minor=i,
            model="NVIDIA Test",
            architecture="hopper",
            memory_bytes=80 << 30,
            compute_capability=(9, 0),
            mig=None,
            mig_devices=(),
            fabric=None,
            numa=None if slot.numa is None else NumaId(slot.numa),
            pcie=path(slot, i),
            fault="fell off the bus" if i in lost else None,
        )
        for i, slot in enumerate(slots)
    )
    nodes = sorted({slot.numa for slot in slots if slot.numa is not None})
    return Inventory(
        number=1,
        driver=Driver("580.95.05", "13.580.95.05", (13, 0)),
        gpus=gpus,
        unreadable=(),
        nvlinks=NvLinks(tuple(map(tuple, links)), tuple(to_switch or [0] * count)),
        nics=tuple(_nic(i, slot, len(slots) + i) for i, slot in enumerate(nics)),
        numa_nodes=tuple(
            NumaNode(NumaId(node), tuple(range(8 * node, 8 * node + 8)), (distances or {}).get(node, ()))
            for node in nodes
        ),
    )


def _nic(number: int, slot: Slot, port: int) -> Nic:
    return Nic(
        name=f"mlx5_{number}",
        pci=PciAddress(f"0000:{0xA0 + number:02x}:00.0"),
        numa=None if slot.numa is None else NumaId(slot.numa),
        pcie=path(slot, port),
        link_layer="InfiniBand",
        rate="400 Gb/sec (4X NDR)",
        state="ACTIVE",
        node_guid=None,
        netdev=None,
        uverbs=None,
    )


TWO_SOCKETS = {0: (10, 21), 1: (21, 10)}


def hgx_h100() -> Inventory:
    """8 GPUs behind NVSwitches; each with a NIC on a PCIe switch and a host bridge of its own; 4 a NUMA node."""
    slots = [Slot(i // 4, f"pci0000:{0x10 + i:02x}", 0) for i in range(8)]
    return inventory(slots, to_switch=[18] * 8, nics=slots, distances=TWO_SOCKETS)


def dgx_a100() -> Inventory:
    """8 GPUs behind NVSwitches; two GPUs and two NICs a PCIe switch, two switches a NUMA node."""
    slots = [Slot(i // 4, f"pci0000:{0x10 + i // 2:02x}", 0) for i in range(8)]
    return inventory(slots, to_switch=[12] * 8, nics=slots, distances=TWO_SOCKETS)


def dgx2() -> Inventory:
    """16 GPUs behind NVSwitches; two a PCIe switch with one NIC between them, 8 a NUMA node."""
    slots = [Slot(i // 8, f"pci0000:{0x10 + i // 4:02x}", i // 2 % 2) for i in range(16)]
    return inventory(slots, to_switch=[6] * 16, nics=slots[::2], distances=TWO_SOCKETS)


def bridged_pairs() -> Inventory:
    """8 A100 PCIe in NVLink pairs, 4 a NUMA node, no switches."""
    slots = [Slot(i // 4, f"pci0000:{0x10 + i:02x}") for i in range(8)]
    return inventory(slots, direct={(i, i + 1): 12 for i in range(0, 8, 2)}, distances=TWO_SOCKETS)


def four_direct() -> Inventory:
    """A board of 4 H100 with 6 links from each to each."""
    slots = [Slot(i // 2, f"pci0000:{0x10 + i:02x}") for i in range(4)]
    return inventory(slots, direct={(i, j): 6 for i in range(4) for j in range(i)}, distances=TWO_SOCKETS)


def plain_pcie() -> Inventory:
    """8 L40S, no NVLink; two a PCIe switch, two switches a NUMA node, one NIC on the first switch of each."""
    slots = [Slot(i // 4, f"pci0000:{0x10 + i // 4:02x}", i // 2 % 2) for i in range(8)]
    return inventory(slots, nics=[slots[0], slots[4]], distances=TWO_SOCKETS)


def ring_of_16() -> Inventory:
    """16 GPUs that no symmetry of swaps makes alike: the most work there can be for the tables."""
    slots = [Slot(i // 8, f"pci0000:{0x10 + i:02x}") for i in range(16)]
    direct = {(i, (i + 1) % 16): 1 + i % 3 for i in range(16)} | {(i, (i + 5) % 16): 1 for i in range(0, 16, 3)}
    return inventory(slots, direct=direct, distances=TWO_SOCKETS)


def rtx8000() -> Inventory:
    """Four RTX 8000: NVLink bridges that cross the sockets."""
    slots = [Slot(i // 2, f"pci0000:{0x10 + i:02x}") for i in range(4)]
    return inventory(slots, direct={(0, 3): 2, (1, 2): 2}, distances=TWO_SOCKETS)


def dgx1_pascal() -> Inventory:
    """Two fully linked quads with one link across for each GPU; switch mates 0-2, 1-3, 4-6, 5-7."""
    slots = [Slot(i // 4, f"pci0000:{0x10 + i // 4:02x}", i % 2) for i in range(8)]
    quads = {(i, j): 1 for i in range(8) for j in range(i) if i // 4 == j // 4}
    return inventory(slots, direct=quads | {(i, i + 4): 1 for i in range(4)}, distances=TWO_SOCKETS)


def dgx1_volta() -> Inventory:
    """The hybrid cube mesh with doubled links; switch mates 0-1, 2-3, 4-5, 6-7."""
    slots = [Slot(i // 4, f"pci0000:{0x10 + i // 4:02x}", i // 2 % 2) for i in range(8)]
    single = {(0, 1), (0, 2), (1, 3), (4, 5), (4, 6), (5, 7), (2, 6), (3, 7)}
    double = {(0, 3), (1, 2), (2, 3), (4, 7), (5, 6), (6, 7), (0, 4), (1, 5)}
    return inventory(slots, direct=dict.fromkeys(single, 1) | dict.fromkeys(double, 2), distances=TWO_SOCKETS)


MACHINES: dict[str, Callable[[], Inventory]] = {
    made.__name__: made
    for made in (
        hgx_h100,
        dgx_a100,
        dgx2,
        bridged_pairs,
        four_direct,
        plain_pcie,
        ring_of_16,
        rtx8000,
        dgx1_pascal,
        dgx1_volta,
    )
}


def without(inventory_: Inventory, position: int) -> Inventory:
    """The same machine with that GPU lost."""
    gpus = list(inventory_.gpus)
    gpus[position] = replace(gpus[position], fault="fell off the bus")
    return replace(inventory_, gpus=tuple(gpus))
