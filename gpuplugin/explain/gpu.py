"""Why a GPU is not offered, or that it is and who has it: every cause, each with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gpuplugin.errors import NothingToExplain
from gpuplugin.model.ids import pci_address, without_replica
from gpuplugin.plan.desired import all_units, desired, for_claims, mps_trouble
from gpuplugin.plan.faults import FaultKind, Policy, Told

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpuplugin.config import Config
    from gpuplugin.model.ids import PciAddress
    from gpuplugin.model.inventory import Gpu, Inventory, UnreadableGpu
    from gpuplugin.plan.desired import Facts, OfferedResource

_LOOK: Final = "look for NVRM lines in the kernel's log (`dmesg`), and run `nvidia-smi` on the node"


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that keeps a GPU or a device of it from being handed out. do: what a person can do."""

    why: str
    do: str


@dataclass(frozen=True, slots=True)
class DeviceAnswer:
    """One device of a resource. offered: how often it may be handed out, 0 where not · held_by: a pod each."""

    resource: str
    id: str
    offered: int
    held_by: tuple[str, ...] = ()
    health: str = ""


@dataclass(frozen=True, slots=True)
class GpuAnswer:
    """All there is to say of one GPU. index: NVML's · offered: whether any device of it may be handed out now.

    warnings: what is wrong with it and leaves it in service · holders_known: whether kubelet has said who has what ·
    notes: what the Node object adds, or why it was not looked at.
    """

    index: int
    uuid: str | None
    pci: str | None
    model: str | None
    numa: int | None
    offered: bool
    by: str
    devices: tuple[DeviceAnswer, ...] = ()
    causes: tuple[Cause, ...] = ()
    warnings: tuple[Cause, ...] = ()
    holders_known: bool = True
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Known:
    """What answers are made of. holders: who has which device of which resource; None where kubelet does not say.

    unregistered: why kubelet does not know a resource, by resource.
    """

    inventory: Inventory
    config: Config
    facts: Facts
    holders: Mapping[tuple[str, str], str] | None = None
    unregistered: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def why(known: Known, name: str) -> GpuAnswer:
    """Answer for the GPU of that index, UUID or PCI address, or of that MIG device. Raises NothingToExplain."""
    gpu = _find(known.inventory, name)
    if gpu is None:
        return _unreadable(known.inventory, name)
    devices = tuple(_devices(known, gpu))
    faults = [told for told in known.facts.health.told if told.gpu in (None, gpu.uuid)]
    causes = (*_causes(known, gpu, faults), *_unregistered(known, devices))
    by_claims = known.config.dra.includes(gpu)
    offered = _by_claims(known, gpu) if by_claims else any(_can_be_had(known, device) for device in devices)
    return GpuAnswer(
        index=gpu.index,
        uuid=gpu.uuid,
        pci=gpu.pci,
        model=gpu.model,
        numa=gpu.numa,
        offered=offered,
        by="claims" if by_claims else "device plugin",
        devices=devices,
        causes=causes,
        warnings=tuple(_fault_cause(gpu, told) for told in faults if not told.policy.withdraws),
        holders_known=known.holders is not None,
    )


def offers(known: Known) -> tuple[OfferedResource, ...]:
    """What the device plugin offers, as decided from what is known."""
    return desired(all_units(known.inventory, known.config), known.facts)


def _by_claims(known: Known, gpu: Gpu) -> bool:
    excluded = known.config.devices.excluding(gpu) is not None
    return not excluded and for_claims(gpu, known.facts, "").usable


def _find(inventory: Inventory, name: str) -> Gpu | None:
    wanted = name.strip()
    for gpu in inventory.gpus:
        own = {str(gpu.index), f"GPU{gpu.index}", gpu.uuid, *(mig.uuid for mig in gpu.mig_devices)}
        if wanted in own or without_replica(wanted)[0] in own or _pci(wanted) == gpu.pci:
            return gpu
        if wanted.partition(":")[0] == str(gpu.index) and wanted.partition(":")[2].isdecimal():
            return gpu
    return None


def _pci(text: str) -> PciAddress | None:
    try:
        return pci_address(text)
    except ValueError:
        return None


def _unreadable(inventory: Inventory, name: str) -> GpuAnswer:
    found = next((gpu for gpu in inventory.unreadable if _names(name.strip(), gpu)), None)
    if found is None:
        here = [f"{gpu.index} ({gpu.uuid}, {gpu.pci})" for gpu in inventory.gpus]
        here += [f"{gpu.index} ({gpu.pci or 'no address'}, unreadable)" for gpu in inventory.unreadable]
        raise NothingToExplain(f"no GPU is called {name!r}; there are: {', '.join(here) or 'none'}")
    cause = Cause(f"it cannot be read, and has never told who it is: {found.reason}", _LOOK)
    return GpuAnswer(found.index, None, found.pci, None, None, offered=False, by="nobody", causes=(cause,))


def _names(name: str, gpu: UnreadableGpu) -> bool:
    return name in (str(gpu.index), f"GPU{gpu.index}") or (gpu.pci is not None and _pci(name) == gpu.pci)


def _devices(known: Known, gpu: Gpu) -> Iterator[DeviceAnswer]:
    holders = known.holders or {}
    for resource in offers(known):
        for device in resource.devices:
            if device.gpu == gpu.uuid:
                held = [holders[resource.name, each] for each in device.ids if (resource.name, each) in holders]
                usable = device.health.usable
                said = "" if usable else device.health.reason
                yield DeviceAnswer(resource.name, device.id, device.replicas * usable, tuple(held), said)


def _causes(known: Known, gpu: Gpu, faults: list[Told]) -> Iterator[Cause]:
    yield from _configured(known.config, gpu)
    yield from (_fault_cause(gpu, told) for told in faults if told.policy.withdraws)
    if gpu.fault and gpu.fault not in {told.text for told in faults}:
        yield Cause(gpu.fault, _LOOK)
    yield from _of_devices(known, gpu)
    if held := known.facts.held.get(gpu.uuid):
        yield Cause(held, "end what holds it, or wait: it is handed out again by itself")


def _can_be_had(known: Known, device: DeviceAnswer) -> bool:
    return device.offered > 0 and device.resource not in known.unregistered


def _unregistered(known: Known, devices: Iterable[DeviceAnswer]) -> Iterator[Cause]:
    for resource in sorted({device.resource for device in devices} & known.unregistered.keys()):
        do = "see that kubelet runs, and that its device-plugins folder is mounted here"
        yield Cause(f"{resource} is not registered with kubelet: {known.unregistered[resource]}", do)


def _configured(config: Config, gpu: Gpu) -> Iterator[Cause]:
    entry = config.devices.excluding(gpu)
    if entry is not None:
        yield Cause(f"devices.exclude has {entry!r}", "take that entry out of the configuration to have it offered")
    elif config.dra.includes(gpu):
        yield Cause(
            "the device plugin does not have it: dra.gpus names it, so claims hand it out",
            "ask for it with a ResourceClaim, or take it out of dra.gpus",
        )
    elif gpu.mig is not None and gpu.mig.current and not gpu.mig_devices and config.flags.mig_strategy != "none":
        yield Cause("MIG is on, and it has no instances", "make instances on it, or turn MIG off")


def _of_devices(known: Known, gpu: Gpu) -> Iterator[Cause]:
    for unit in all_units(known.inventory, known.config).units:
        if unit.gpu.uuid != gpu.uuid:
            continue
        if unit.isolated:
            yield Cause(f"{unit.resource}, device {unit.index}: {unit.isolated}", "no restart is needed after that")
        if missing := known.facts.injection.get(unit.uuid):
            yield Cause(missing, "`gpuplugin cdi check` says what a container would be given, and what is missing")
        if trouble := mps_trouble(unit, known.facts.mps):
            yield Cause(trouble, "see that `gpuplugin mps-control` runs on this node (it has a DaemonSet of its own)")


def _fault_cause(gpu: Gpu, told: Told) -> Cause:
    if told.kind is FaultKind.CORDONED:
        return Cause(told.text, f"`gpuplugin uncordon {gpu.index}` puts it back")
    if told.kind is FaultKind.NVML:
        return Cause(told.text, f"all GPUs are affected: {_LOOK}")
    ends = f"it comes back by itself with: {told.row.ends}"
    if told.policy is Policy.RESET:
        return Cause(told.text, f"end what uses it, and reset it (`nvidia-smi --gpu-reset -i {gpu.uuid}`); {ends}")
    if told.policy is Policy.REBOOT:
        return Cause(told.text, f"drain the node and reboot it; {ends}")
    if told.policy is Policy.WARN:
        return Cause(told.text, "it stays in service (health.policies)")
    return Cause(told.text, ends)
