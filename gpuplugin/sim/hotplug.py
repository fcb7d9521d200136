"""A GPU comes or goes: what that does to NVML's state, which numbers GPUs by their PCI addresses without gaps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from gpuplugin.sim.snapshot import EventRecord, GpuRecord, LinkRecord, MigRecord, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable

_OfGpu = TypeVar("_OfGpu", LinkRecord, MigRecord, EventRecord)


def without(snapshot: Snapshot, gpu: int) -> Snapshot:
    """Take a GPU out; links that others have to it go down."""
    gone = snapshot.gpu(gpu)
    return _numbered(snapshot, [other for other in snapshot.gpus if other is not gone], _ends(snapshot, gone, up=False))


def with_gpu(snapshot: Snapshot, gpu: GpuRecord, links: Iterable[LinkRecord]) -> Snapshot:
    """Put a GPU in, with its links; links that others have to it come up. ValueError when it is there already."""
    if any(other.uuid == gpu.uuid for other in snapshot.gpus):
        raise ValueError(f"{gpu.uuid} is in the machine already")
    newcomer = replace(gpu, index=-1)
    ends = (*_ends(snapshot, gpu, up=True), *(replace(link, gpu=-1) for link in links))
    return _numbered(snapshot, [*snapshot.gpus, newcomer], ends)


def _ends(snapshot: Snapshot, far: GpuRecord, *, up: bool) -> tuple[LinkRecord, ...]:
    return tuple(replace(x, active=up) if x.remote_bus_id == far.bus_id else x for x in snapshot.links)


def _numbered(snapshot: Snapshot, gpus: list[GpuRecord], links: Iterable[LinkRecord]) -> Snapshot:
    in_order = sorted(gpus, key=lambda gpu: gpu.bus_id)
    numbers = {gpu.index: number for number, gpu in enumerate(in_order)}

    def renumber(records: Iterable[_OfGpu]) -> tuple[_OfGpu, ...]:
        return tuple(replace(record, gpu=numbers[record.gpu]) for record in records if record.gpu in numbers)

    faults = (
        fault if fault.gpu is None else replace(fault, gpu=numbers[fault.gpu])
        for fault in snapshot.faults
        if fault.gpu is None or fault.gpu in numbers
    )
    return replace(
        snapshot,
        gpus=tuple(replace(gpu, index=number) for number, gpu in enumerate(in_order)),
        links=tuple(sorted(renumber(links), key=lambda link: (link.gpu, link.link))),
        migs=renumber(snapshot.migs),
        faults=tuple(faults),
        events=renumber(snapshot.events),
    )
