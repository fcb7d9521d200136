"""What shall be published: resources with their devices, decided from what was observed and what people configured.

Pure, and the only place that decides whether a device is offered, so that "why not?" has one answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpuplugin.model.health import DeviceHealth, Level
from gpuplugin.model.ids import SLICE, DeviceId
from gpuplugin.plan import mps as mps_plan
from gpuplugin.plan.mps import MpsFolders, MpsNotReady
from gpuplugin.plan.sharing import Kind, shared
from gpuplugin.plan.units import Units, units

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpuplugin.config import Config
    from gpuplugin.model.ids import DeviceUuid, GpuUuid, MigUuid, NumaId, ResourceName
    from gpuplugin.model.inventory import Gpu, Inventory
    from gpuplugin.plan.health import Health
    from gpuplugin.plan.mps import MpsState
    from gpuplugin.plan.sharing import Share
    from gpuplugin.plan.units import Unit


@dataclass(frozen=True, slots=True)
class OfferedDevice:
    """One device of a resource: a GPU, or a MIG device on one.

    id: its UUID · gpu_index: NVML's · position: of its GPU in the inventory · numa: the nodes for kubelet's
    TopologyInfo, empty where unknown · mig, mig_index: None for a whole GPU · share: None where it is offered once.
    """

    id: DeviceId
    gpu: GpuUuid
    gpu_index: int
    position: int
    health: DeviceHealth
    numa: tuple[NumaId, ...]
    mig: MigUuid | None = None
    mig_index: int | None = None
    share: Share | None = None

    @property
    def uuid(self) -> DeviceUuid:
        """Its own, not its GPU's."""
        return self.mig or self.gpu

    @property
    def index(self) -> str:
        """``3``, and ``3:1`` for MIG device 1 of GPU 3."""
        return f"{self.gpu_index}" if self.mig_index is None else f"{self.gpu_index}:{self.mig_index}"

    @property
    def replicas(self) -> int:
        """How often it is offered."""
        return self.share.replicas if self.share else 1

    def has(self, replica: int | None) -> bool:
        """Whether it is offered under that number; None: under its own id."""
        if self.share is None:
            return replica is None
        return replica is not None and 0 <= replica < self.share.replicas

    @property
    def ids(self) -> Iterator[DeviceId]:
        """What kubelet calls it: by its id, or ``<id>::<n>`` for each replica."""
        if self.share is None:
            return iter((self.id,))
        return (DeviceId(f"{self.id}{SLICE}{number}") for number in range(self.share.replicas))


@dataclass(frozen=True, slots=True)
class OfferedResource:
    """A resource as kubelet shall see it, devices in a stable order (by GPU index, then MIG index).

    mps: the folders of its MPS control daemon, None where it has none.
    """

    name: ResourceName
    devices: tuple[OfferedDevice, ...]
    mps: MpsFolders | None = None

    @property
    def size(self) -> int:
        """How many kubelet counts."""
        return sum(device.replicas for device in self.devices)

    @property
    def usable(self) -> int:
        """How many may be handed out now."""
        return sum(device.replicas for device in self.devices if device.health.usable)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the node beside what is in it.

    injection: devices that a container could not be given now, and why (a device node is missing, the CDI file cannot
    be written) · mps: how each control daemon stands; one that is not in it is not ready · held: GPUs and MIG devices
    that must not be handed out by the device plugin yet, and why (a claim has them, or a pod, as offered before).
    """

    health: Health
    injection: Mapping[DeviceUuid, str] = field(default_factory=lambda: MappingProxyType({}))
    mps: Mapping[ResourceName, MpsState] = field(default_factory=lambda: MappingProxyType({}))
    held: Mapping[DeviceUuid, str] = field(default_factory=lambda: MappingProxyType({}))


def all_units(inventory: Inventory, config: Config) -> Units:
    """Give every device with its resource and its share, and remarks for people, a line each.

    GPUs that are handed out by claims have none: the device plugin knows their resources' names alone.
    """
    found = units(inventory, config)
    ours = tuple(unit for unit in found.units if not config.dra.includes(unit.gpu))
    sharing, remarks = shared(ours, config.sharing)
    names = {unit.resource for unit in shared(found.units, config.sharing)[0]}
    remarks = (*found.remarks, *remarks, *unmatched_for_claims(inventory, config))
    return Units(sharing, remarks, tuple(sorted(names - {unit.resource for unit in sharing})))


def unmatched_for_claims(inventory: Inventory, config: Config) -> tuple[str, ...]:
    """Say of each entry of `dra.gpus` that it means no GPU here: misspelt, it would silently leave all as they were."""
    unused = config.dra.unused(inventory.gpus)
    return tuple(f"dra.gpus: {entry!r} matches no GPU of this node" for entry in unused)


def desired(found: Units, facts: Facts, earlier: Iterable[ResourceName] = ()) -> tuple[OfferedResource, ...]:
    """Offer the devices, resources in order of name.

    earlier: resources that kubelet has been told of; one that has no device any more is offered empty, since kubelet
    would otherwise go on counting what it was told last. So is one whose devices claims hand out: a device plugin
    before us may have told kubelet of it. Kubelet keeps that plugin's devices for minutes, or as long as a pod has one,
    and its Topology Manager refuses pods that have theirs by a claim, since none of the old ones is free. And the Node
    goes on counting what a kubelet has lost its memory of: pods are then admitted, and run without a GPU. A device that
    cannot be used stays in the list, unhealthy, so that kubelet keeps count of it.
    """
    devices: dict[ResourceName, list[OfferedDevice]] = {name: [] for name in (*found.emptied, *earlier)}
    for unit in found.units:
        devices.setdefault(unit.resource, []).append(_device(unit, facts))
    return tuple(OfferedResource(name, tuple(devices[name]), _folders(facts.mps.get(name))) for name in sorted(devices))


def _folders(state: MpsState | None) -> MpsFolders | None:
    return state if isinstance(state, MpsFolders) else None


def _device(unit: Unit, facts: Facts) -> OfferedDevice:
    gpu, mig = unit.gpu, unit.mig
    return OfferedDevice(
        id=DeviceId(unit.uuid),
        gpu=gpu.uuid,
        gpu_index=gpu.index,
        position=unit.position,
        health=_health(unit, facts),
        numa=() if gpu.numa is None else (gpu.numa,),
        mig=mig.uuid if mig else None,
        mig_index=mig.index if mig else None,
        share=unit.share,
    )


def _health(unit: Unit, facts: Facts) -> DeviceHealth:
    mig = unit.mig
    instances = (mig.gpu_instance, mig.compute_instance) if mig else (None, None)
    known = facts.health.of(unit.gpu.uuid, *instances)
    if known.level is Level.UNKNOWN:
        return known
    return _unless(
        known,
        unit.isolated,
        "" if not known.usable else unit.gpu.fault or "",
        facts.injection.get(unit.uuid, ""),
        "" if unit.isolated else mps_trouble(unit, facts.mps),
        facts.held.get(unit.uuid, ""),
        facts.held.get(unit.gpu.uuid, ""),
    )


def for_claims(gpu: Gpu, facts: Facts, withheld: str) -> DeviceHealth:
    """Say how a whole GPU is that claims hand out. withheld: why it must not be handed out yet, "" where it may."""
    known = facts.health.of(gpu.uuid)
    if known.level is Level.UNKNOWN:
        return known
    return _unless(known, "" if not known.usable else gpu.fault or "", facts.injection.get(gpu.uuid, ""), withheld)


def _unless(known: DeviceHealth, *texts: str) -> DeviceHealth:
    """Say how a device is whose GPU is so, and that is kept back for what the texts say."""
    reasons = dict.fromkeys(text for text in (known.reason if not known.usable else "", *texts) if text)
    return DeviceHealth(Level.UNHEALTHY, "; ".join(reasons)) if reasons else known


def mps_trouble(unit: Unit, states: Mapping[ResourceName, MpsState]) -> str:
    """Say why a device that is shared by MPS cannot be had, "" where it can or is shared otherwise."""
    if unit.share is None or unit.share.kind is not Kind.MPS:
        return ""
    if unfit := mps_plan.unfit(unit):
        return unfit
    state = states.get(unit.resource, MpsNotReady("its MPS control daemon has not been looked for yet"))
    return state.reason if isinstance(state, MpsNotReady) else ""
