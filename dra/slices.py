"""From what is in the machine to what the scheduler is told: devices in order of preference, cut into ResourceSlices.

Pure and repeatable: the same machine gives the same slices to the byte, so a restart has nothing to write. The
scheduler takes the first devices that fit, in the order we list them, and knows nothing of distances. So the order is
the one place where a claim for four GPUs without any constraint is given four that belong together.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from dra.attributes import OWN, gpu_attributes, gpu_capacity
from gpuplugin.kube.objects import CounterSet, Device, Meta, OwnerReference, Pool, ResourceSlice, SliceSpec, Taint
from gpuplugin.model.health import DeviceHealth, Level
from gpuplugin.topology.graph import mask_of, positions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from dra.names import Names
    from gpuplugin.model.ids import GpuUuid
    from gpuplugin.model.inventory import Inventory
    from gpuplugin.topology.allocate import Tables

DRIVER: Final = "gpu.nvidia.com"
DEVICES_A_SLICE: Final = 64
"""Not the 128 that slices without taints may have: a GPU that falls ill must not change how the rest is cut up."""
COUNTER_SETS_A_SLICE: Final = 8

_LONGEST_NAME: Final = 253
_LONGEST_LABEL: Final = 63
_UNKNOWN: Final = DeviceHealth(Level.UNKNOWN, "not looked at yet")


@dataclass(frozen=True, slots=True)
class Contents:
    """What one node offers, devices in order of preference.

    overlapping: names of devices that share hardware with others by way of counters; a server that does not keep
    counters would hand both out, so there they are not offered.
    """

    devices: tuple[Device, ...]
    counter_sets: tuple[CounterSet, ...] = ()
    overlapping: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Owner:
    """The node whose slices these are; they end with it."""

    node: str
    uid: str

    @property
    def reference(self) -> OwnerReference:
        """As it stands in a slice."""
        return OwnerReference(api_version="v1", kind="Node", name=self.node, uid=self.uid, controller=True)


def whole_gpus(
    inventory: Inventory,
    tables: Tables,
    names: Names,
    health: Mapping[GpuUuid, DeviceHealth],
    elsewhere: Collection[GpuUuid] = (),
) -> Contents:
    """Every GPU that can be given whole, tainted where it must not be given now.

    tables: of this inventory · names: of all its GPUs · health: with everything that keeps a GPU from being used; one
    that is missing in it is of unknown health · elsewhere: GPUs that the device plugin hands out: they are not here at
    all. A GPU that is cut up by MIG is not offered whole.
    """
    islands = {i: island for island in tables.graph.islands for i in positions(island)}
    devices = []
    ill = mask_of(i for i, gpu in enumerate(inventory.gpus) if not health.get(gpu.uuid, _UNKNOWN).usable)
    for i in preference(tables, ill):
        gpu = inventory.gpus[i]
        if gpu.uuid in elsewhere or (gpu.mig is not None and gpu.mig.current):
            continue
        members = (names.of(inventory.gpus[j].uuid) for j in positions(islands[i]))
        devices.append(
            Device(
                name=names.of(gpu.uuid),
                attributes=gpu_attributes(gpu, inventory.driver, min(members, key=_number)),
                capacity=gpu_capacity(gpu),
                taints=taints(health.get(gpu.uuid, _UNKNOWN)),
            )
        )
    return Contents(tuple(devices))


def preference(tables: Tables, ill: int = 0) -> tuple[int, ...]:
    """All positions such that the first 1, 2, 4, 8 … are each as good a set as there is, and so on in each half.

    ill: mask of those that must not be given now; they come last, else a claim for four would be given the three
    beside an ill one and a fourth from afar. That is no more to write, since its taint comes and goes with it.
    """
    sound = replace(tables, lost=0)

    def ordered(mask: int) -> Iterator[int]:
        size = mask.bit_count()
        if size < 2:  # noqa: PLR2004 - one is in order
            yield from positions(mask)
            return
        half = sound.choose(mask, 0, 1 << (size - 1).bit_length() - 1)
        yield from ordered(half)
        yield from ordered(mask & ~half)

    well = mask_of(range(len(tables.graph.labels))) & ~ill
    return (*ordered(well), *ordered(ill))


def taints(health: DeviceHealth) -> tuple[Taint, ...]:
    """Why a device must not be given: the key is its level, the value the reason as far as a label value can hold it.

    ``gpuplugin.io/unhealthy=XID-79-GPU-has-fallen-off-the-bus-restart-the-machine:NoSchedule``.
    """
    if health.usable:
        return ()
    words = re.sub(r"[^A-Za-z0-9_.]+", "-", health.reason)[:_LONGEST_LABEL].strip("-_.")
    return (Taint(key=f"{OWN}/{health.level.value}", value=words, effect="NoSchedule"),)


def cut(owner: Owner, contents: Contents, driver: str = DRIVER) -> tuple[ResourceSlice, ...]:
    """The slices of generation 0, ready to be given their generation; one without devices where there is nothing.

    Names follow from node and place, in the order that the scheduler reads them in; counter sets stand apart because
    the API wants that.
    """
    parts = [
        (f"{at // DEVICES_A_SLICE:02}", contents.devices[at : at + DEVICES_A_SLICE], ())
        for at in range(0, max(1, len(contents.devices)), DEVICES_A_SLICE)
    ] + [
        (f"counters-{at // COUNTER_SETS_A_SLICE:02}", (), contents.counter_sets[at : at + COUNTER_SETS_A_SLICE])
        for at in range(0, len(contents.counter_sets), COUNTER_SETS_A_SLICE)
    ]
    pool = Pool(name=owner.node, generation=0, resource_slice_count=len(parts))
    return tuple(
        ResourceSlice(
            metadata=Meta(name=_slice_name(owner.node, driver, part), owner_references=(owner.reference,)),
            spec=SliceSpec(driver=driver, pool=pool, node_name=owner.node, devices=devices, shared_counters=counters),
        )
        for part, devices, counters in parts
    )


def is_ours(one: ResourceSlice) -> bool:
    """Whether a slice has a name that we give; the helper library of drivers in Go gives five letters at random."""
    return re.search(r"-(counters-)?\d\d$", one.metadata.name) is not None


def _slice_name(node: str, driver: str, part: str) -> str:
    tail = f"-{driver}-{part}"
    if len(node) + len(tail) <= _LONGEST_NAME:
        return node + tail
    digest = hashlib.sha256(node.encode()).hexdigest()[:8]
    return f"{node[: _LONGEST_NAME - len(tail) - 9].rstrip('-.')}-{digest}{tail}"


def _number(name: str) -> tuple[int, str]:
    digits = re.search(r"\d+$", name)
    return int(digits[0]) if digits else 0, name
