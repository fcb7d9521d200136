"""Which GPU has which device name, remembered: an allocation says a name, and must mean the same GPU for ever.

The reference calls a GPU ``gpu-<minor>``, and so do we, because allocations made by it go on when we take over. But the
driver deals out minor numbers anew when it is loaded: after a reboot without one GPU, those behind it have moved up.
So a name, once given, stays with the GPU's UUID, and a new GPU that finds its name taken gets another.

Pure. What is remembered is kept by `name_file`; where that is lost, names are taken over from the records of claims and
from what we or the reference have published (`adopt`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpuplugin.model.ids import GpuUuid

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from gpuplugin.kube.objects import ResourceSlice
    from gpuplugin.model.inventory import Gpu, Inventory


@dataclass(frozen=True, slots=True)
class Names:
    """Device names by UUID, also of GPUs that are not there now. No name is given twice."""

    by_gpu: Mapping[GpuUuid, str] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, gpu: GpuUuid) -> str:
        """The name of a GPU; KeyError where it was never named."""
        return self.by_gpu[gpu]

    def gpu(self, name: str) -> GpuUuid | None:
        """The GPU that a name means."""
        return next((uuid for uuid, its in self.by_gpu.items() if its == name), None)


def adopt(names: Names, slices: Iterable[ResourceSlice]) -> Names:
    """Take over what published slices, ours or those of the driver before us, call each whole GPU; see adopt_pairs."""
    return adopt_pairs(names, _published(slices))


def _published(slices: Iterable[ResourceSlice]) -> Iterator[tuple[GpuUuid, str]]:
    for device in (device for one in slices for device in one.spec.devices):
        kind, uuid = (device.attributes.get(key) for key in ("type", "uuid"))
        if kind and kind.string == "gpu" and uuid and uuid.string:
            yield GpuUuid(uuid.string), device.name


def adopt_pairs(names: Names, pairs: Iterable[tuple[GpuUuid, str]]) -> Names:
    """Take over names for GPUs that have none yet, where the name is nobody else's; the first that says one counts."""
    known = dict(names.by_gpu)
    taken = set(known.values())
    for gpu, name in pairs:
        if gpu not in known and name not in taken:
            known[gpu] = name
            taken.add(name)
    return _same_or(names, known)


def left_behind(names: Names, inventory: Inventory) -> frozenset[str]:
    """Names that new GPUs would have by their minor numbers, and that belong to GPUs which are not there any more.

    None while a GPU is unreadable, which might be one of those.
    """
    if inventory.unreadable:
        return frozenset()
    present = {gpu.uuid for gpu in inventory.gpus}
    absent = {name for uuid, name in names.by_gpu.items() if uuid not in present}
    return frozenset(absent & {_by_minor(gpu) for gpu in inventory.gpus if gpu.uuid not in names.by_gpu})


def name_all(names: Names, inventory: Inventory, held: Collection[str] | None) -> Names:
    """Give every GPU of the inventory a name.

    A name is taken away from a GPU only when it is left behind (see there), and nothing that is allocated or prepared
    uses it (held: those names, None when that is not known).
    """
    freed = left_behind(names, inventory) - set(held) if held is not None else frozenset()
    new = [gpu for gpu in inventory.gpus if gpu.uuid not in names.by_gpu]
    known = {uuid: name for uuid, name in names.by_gpu.items() if name not in freed}
    taken = set(known.values())
    late = []
    for gpu in new:
        name = _by_minor(gpu)
        if name in taken:
            late.append(gpu)
        else:
            known[gpu.uuid] = name
            taken.add(name)
    for gpu in late:
        known[gpu.uuid] = next(name for name in _spare(inventory.gpus) if name not in taken)
        taken.add(known[gpu.uuid])
    return _same_or(names, known)


def is_whole(name: str) -> bool:
    """Whether that is the name of a whole GPU, and not of a MIG device on one (``gpu-0-mig-1g10gb-19-0``)."""
    return re.fullmatch(r"gpu-\d+", name) is not None


def _by_minor(gpu: Gpu) -> str:
    return f"gpu-{gpu.index if gpu.minor is None else gpu.minor}"


def _spare(gpus: Sequence[Gpu]) -> Iterable[str]:
    """Names beyond those that present GPUs have by their minor numbers, so that none is in a newcomer's way."""
    beyond = max((gpu.index if gpu.minor is None else gpu.minor for gpu in gpus), default=-1) + 1
    return (f"gpu-{number}" for number in count(beyond))


def _same_or(names: Names, known: Mapping[GpuUuid, str]) -> Names:
    return names if known == names.by_gpu else Names(MappingProxyType(dict(known)))
