"""Which devices there are to offer, and under which names: whole GPUs, MIG devices, or both, as the MIG strategy says.

A GPU that does not fit the strategy is isolated, with the reason, and the others are offered all the same: one GPU that
somebody is just setting up must not take the node away from everybody.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuplugin.config.settings import GPU_RESOURCE
from gpuplugin.model.ids import ResourceName

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuplugin.config import Config
    from gpuplugin.config.settings import Resources
    from gpuplugin.model.ids import DeviceUuid
    from gpuplugin.model.inventory import Gpu, Inventory, MigDevice
    from gpuplugin.plan.sharing import Share

WHOLE = ""
"""The layout of a GPU that is not in MIG mode."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A device of a resource, whatever its health.

    position: of its GPU in the inventory · mig: None for a whole GPU · isolated: why the strategy cannot use it, ""
    when it can · share: how often it is offered, None for once.
    """

    resource: ResourceName
    gpu: Gpu
    position: int
    mig: MigDevice | None = None
    isolated: str = ""
    share: Share | None = None

    @property
    def uuid(self) -> DeviceUuid:
        """Its own, not its GPU's."""
        return self.mig.uuid if self.mig else self.gpu.uuid

    @property
    def index(self) -> str:
        """As people and runtimes count: ``3``, and ``3:1`` for MIG device 1 of GPU 3."""
        return f"{self.gpu.index}:{self.mig.index}" if self.mig else f"{self.gpu.index}"


@dataclass(frozen=True, slots=True)
class Units:
    """All devices, by GPU index and MIG index, and what people should know of GPUs that have none: a line each.

    emptied: resources whose devices are all handed out by claims.
    """

    units: tuple[Unit, ...]
    remarks: tuple[str, ...]
    emptied: tuple[ResourceName, ...] = ()


def units(inventory: Inventory, config: Config) -> Units:
    """Apply filters, MIG strategy and names."""
    remarks: list[str] = []
    present = list(_included(inventory, config, remarks))
    strategy = config.flags.mig_strategy
    layout = _prevailing(gpu for _, gpu in present) if strategy == "single" else None
    found: list[Unit] = []
    for position, gpu in present:
        in_mig = gpu.mig is not None and gpu.mig.current
        if strategy == "none" or not in_mig:
            isolated = _unfit_whole(gpu, strategy, layout)
            found.append(Unit(config.resources.gpu(gpu.model), gpu, position, isolated=isolated))
            continue
        isolated = _unfit_layout(gpu, layout) if strategy == "single" else ""
        if not gpu.mig_devices:
            remarks.append(f"{_called(gpu)} is not offered: MIG is on, and it has no instances")
        for device in sorted(gpu.mig_devices, key=lambda device: device.index):
            name = mig_resource(config.resources, strategy, device.profile)
            found.append(Unit(name, gpu, position, device, isolated))
    return Units(tuple(found), tuple(remarks))


def mig_resource(resources: Resources, strategy: str, profile: str) -> ResourceName:
    """Name the resource of MIG devices of a profile: by pattern, else as the strategy does."""
    usual = GPU_RESOURCE if strategy == "single" else ResourceName(f"nvidia.com/mig-{profile.replace('+', '.')}")
    return resources.mig_device(profile) or usual


def _included(inventory: Inventory, config: Config, remarks: list[str]) -> Iterator[tuple[int, Gpu]]:
    unused = dict.fromkeys(config.devices.exclude)
    for position, gpu in enumerate(inventory.gpus):
        entry = config.devices.excluding(gpu)
        if gpu.only_for_display:
            remarks.append(f"{_called(gpu)} is not offered: it is there for the screen")
        elif entry is None:
            yield position, gpu
        else:
            unused.pop(entry, None)
            remarks.append(f"{_called(gpu)} is not offered: devices.exclude has {entry!r}")
    remarks += (f"devices.exclude: {entry!r} matches no GPU of this node" for entry in unused)


def _layout(gpu: Gpu) -> str | None:
    """Give the one profile of all its instances, WHOLE without MIG, None for no or several profiles."""
    if gpu.mig is None or not gpu.mig.current:
        return WHOLE
    profiles = {device.profile for device in gpu.mig_devices}
    return profiles.pop() if len(profiles) == 1 else None


def _prevailing(gpus: Iterable[Gpu]) -> str | None:
    """Give the layout of most GPUs; where two are as frequent, one of MIG, then the one with more devices."""
    counted: Counter[str] = Counter()
    devices: Counter[str] = Counter()
    for gpu in gpus:
        layout = _layout(gpu)
        if layout is not None:
            counted[layout] += 1
            devices[layout] += len(gpu.mig_devices)
    return max(counted, key=lambda layout: (counted[layout], layout != WHOLE, devices[layout], layout), default=None)


def _unfit_whole(gpu: Gpu, strategy: str, layout: str | None) -> str:
    if strategy == "none" and gpu.mig is not None and gpu.mig.current:
        return (
            "MIG is on, and flags.migStrategy none offers whole GPUs, on which no CUDA program runs then; set it to "
            "single or mixed, or turn MIG off"
        )
    if strategy == "single" and layout not in (WHOLE, None):
        return (
            f"MIG is off, and flags.migStrategy single offers the {layout} of the other GPUs; turn MIG on for it, or "
            "set flags.migStrategy to mixed"
        )
    return ""


def _unfit_layout(gpu: Gpu, layout: str | None) -> str:
    mine = _layout(gpu)
    if mine is not None and mine == layout:
        return ""
    profiles = ", ".join(dict.fromkeys(device.profile for device in gpu.mig_devices))
    others = "whole GPUs" if layout == WHOLE else layout or "one profile on all GPUs"
    return (
        f"its MIG layout ({profiles}) differs: flags.migStrategy single offers {others}; give it that layout, or set "
        "flags.migStrategy to mixed"
    )


def _called(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.uuid}, {gpu.model})"
