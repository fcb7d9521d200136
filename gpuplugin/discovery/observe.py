"""One look at the machine: NVML and sysfs merged into an Inventory, such that no sick device hides a sound one.

What cannot be read now but was read before keeps its facts and says so, because a GPU that fell off the bus is still
the device that pods hold; forgetting it would be telling kubelet that it never was there.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gpuplugin.discovery.baseboard import with_slots
from gpuplugin.discovery.findings import in_words
from gpuplugin.discovery.nvml import GpuReading
from gpuplugin.discovery.worker import Worker
from gpuplugin.errors import NvmlError, NvmlUnavailable, ObserveError, SysfsError
from gpuplugin.model.inventory import Gpu, Inventory, UnreadableGpu
from gpuplugin.model.links import NvLinks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuplugin.discovery.nvml_thread import NvmlThread
    from gpuplugin.discovery.sysfs import Sysfs
    from gpuplugin.model.ids import NumaId, PciAddress
    from gpuplugin.model.inventory import Driver, Nic, NumaNode, PciePath

MAX_WARNINGS: Final = 32


@dataclass(frozen=True, slots=True)
class _Failure:
    """A GPU that NVML counts and that could not be read. `pci` may be told all the same."""

    index: int
    pci: PciAddress | None
    reason: str


async def observe(thread: NvmlThread, sysfs: Sysfs, previous: Inventory | None) -> Inventory:
    """Look at everything and return `previous` itself when nothing differs, else an inventory with the next number.

    A GPU that cannot be read keeps the facts of `previous`, with `fault`, if it was there: by PCI address when that is
    told, else by index. Otherwise it is in `unreadable`, as is one with the UUID of a GPU before it. A GPU of
    `previous` that NVML does not count any more was unplugged, and is dropped. NICs and NUMA nodes that cannot be read
    at all are those of `previous`, with a warning.

    Opens NVML if need be. Raises NvmlUnavailable when there is no driver to talk to (NVML is then closed, so that the
    next look starts afresh) and ObserveError when NVML as a whole fails; the last good inventory then holds.
    """
    try:
        driver, answers = await _ask_nvml(thread, previous)
    except NvmlUnavailable:
        with suppress(NvmlError):
            await thread.call(thread.nvml.close)
        raise
    warnings: list[str] = []
    gpus, unreadable = _merge(answers, sysfs, previous, warnings)
    readings = {answer.index: answer for answer in answers if isinstance(answer, GpuReading)}
    gpus = with_slots(gpus, {reading.uuid: reading.module_id for reading in readings.values()}, previous)
    picture = Inventory(
        number=previous.number if previous else 1,
        driver=driver,
        gpus=gpus,
        unreadable=unreadable,
        nvlinks=_nvlinks(gpus, readings, previous),
        nics=await _nics(sysfs, thread.timeout_seconds, previous, warnings),
        numa_nodes=_numa_nodes(sysfs, previous, warnings),
    )
    picture = replace(picture, warnings=_bounded((*warnings, *sysfs.take_warnings())))
    if previous is None:
        return picture
    return previous if picture == previous else replace(picture, number=previous.number + 1)


async def _ask_nvml(thread: NvmlThread, previous: Inventory | None) -> tuple[Driver, list[GpuReading | _Failure]]:
    nvml = thread.nvml
    try:
        await thread.call(nvml.open)
        driver = await thread.call(nvml.driver)
        count = await thread.call(nvml.gpu_count)
    except NvmlUnavailable:
        raise
    except NvmlError as error:
        raise ObserveError(f"NVML does not answer: {error}") from error
    known = {gpu.index: gpu.uuid for gpu in previous.gpus} if previous else {}
    answers: list[GpuReading | _Failure] = []
    for index in range(count):
        subject = known.get(index, index)
        try:
            answers.append(await thread.call(nvml.gpu, index, gpu=subject))
        except NvmlUnavailable:
            raise
        except Exception as error:
            if thread.stuck:
                raise ObserveError(f"NVML does not answer, nor for any other GPU: {error}") from error
            pci = None
            with suppress(Exception):  # the address is only a help in telling which GPU it is
                pci = await thread.call(nvml.gpu_pci, index, gpu=subject)
            answers.append(_Failure(index, pci, _reason(error)))
    return driver, answers


def _reason(error: Exception) -> str:
    """Words that stay the same for as long as the fault does: they are part of what is compared."""
    if isinstance(error, NvmlError):
        return in_words(error)
    return f"could not be read: {type(error).__name__}: {error}"


def _merge(
    answers: Sequence[GpuReading | _Failure], sysfs: Sysfs, previous: Inventory | None, warnings: list[str]
) -> tuple[tuple[Gpu, ...], tuple[UnreadableGpu, ...]]:
    gpus: list[Gpu] = []
    unreadable: list[UnreadableGpu] = []
    taken: dict[str, int] = {}
    for reading in answers:
        if not isinstance(reading, GpuReading):
            continue
        twin = taken.setdefault(reading.uuid, reading.index)
        if twin == reading.index:
            gpus.append(_gpu(reading, *_place(sysfs, reading.pci, warnings)))
        else:
            why = f"has the UUID of GPU {twin}, {reading.uuid}: the two cannot be told apart"
            unreadable.append(UnreadableGpu(reading.index, reading.pci, why))
    for failure in answers:
        if isinstance(failure, GpuReading):
            continue
        before = _before(failure, previous)
        if before is not None and before.uuid not in taken:
            taken[before.uuid] = failure.index
            gpus.append(replace(before, index=failure.index, fault=failure.reason))
        else:
            unreadable.append(UnreadableGpu(failure.index, failure.pci, failure.reason))
    return (
        tuple(sorted(gpus, key=lambda gpu: gpu.index)),
        tuple(sorted(unreadable, key=lambda gpu: gpu.index)),
    )


def _before(failure: _Failure, previous: Inventory | None) -> Gpu | None:
    for gpu in previous.gpus if previous else ():
        same = gpu.index == failure.index if failure.pci is None else _slot(gpu.pci) == _slot(failure.pci)
        if same:
            return gpu
    return None


def _gpu(reading: GpuReading, numa: NumaId | None, pcie: PciePath | None) -> Gpu:
    return Gpu(
        index=reading.index,
        uuid=reading.uuid,
        pci=reading.pci,
        minor=reading.minor,
        model=reading.model,
        architecture=reading.architecture,
        memory_bytes=reading.memory_bytes,
        compute_capability=reading.compute_capability,
        mig=reading.mig,
        mig_devices=reading.mig_devices,
        fabric=reading.fabric,
        numa=numa,
        pcie=pcie,
        brand=reading.brand,
        addressing=reading.addressing,
    )


def _place(sysfs: Sysfs, address: PciAddress, warnings: list[str]) -> tuple[NumaId | None, PciePath | None]:
    try:
        return sysfs.pci(address)
    except SysfsError as error:
        warnings.append(str(error))
        return None, None


def _nvlinks(gpus: Sequence[Gpu], readings: Mapping[int, GpuReading], previous: Inventory | None) -> NvLinks:
    """Links as each GPU reports them; those of a GPU that could not be read are those it had."""
    column = {_slot(gpu.pci): i for i, gpu in enumerate(gpus)}
    direct: list[tuple[int, ...]] = []
    to_switch: list[int] = []
    for i, gpu in enumerate(gpus):
        if gpu.fault is None:
            ends = readings[gpu.index].nvlinks
            slots = Counter(_slot(end.pci) for end in ends if not end.to_switch and end.pci is not None)
            switched = sum(end.to_switch for end in ends)
        else:
            slots, switched = _links_before(gpu, previous)
        # A remote that is not here, or is the GPU itself, is no link between two GPUs of ours.
        row = {column[slot]: links for slot, links in slots.items() if slot in column and column[slot] != i}
        direct.append(tuple(row.get(j, 0) for j in range(len(gpus))))
        to_switch.append(switched)
    return NvLinks(tuple(direct), tuple(to_switch))


def _links_before(gpu: Gpu, previous: Inventory | None) -> tuple[Counter[tuple[int, ...]], int]:
    slots: Counter[tuple[int, ...]] = Counter()
    if previous is None:
        return slots, 0
    i = next(n for n, before in enumerate(previous.gpus) if before.uuid == gpu.uuid)
    for before, links in zip(previous.gpus, previous.nvlinks.direct[i], strict=True):
        slots[_slot(before.pci)] = links
    return slots, previous.nvlinks.to_switch[i]


def _slot(address: PciAddress) -> tuple[int, ...]:
    """(domain, bus, device): what NVML's addresses can be compared by. It writes function 0 whatever it is."""
    return tuple(int(part, 16) for part in re.split("[:.]", address)[:3])


async def _nics(sysfs: Sysfs, seconds: float, previous: Inventory | None, warnings: list[str]) -> tuple[Nic, ...]:
    """On a thread of its own, because a NIC whose firmware hangs must not stop the loop."""
    worker = Worker("sysfs")
    look = worker.run(sysfs.nics)
    worker.end()
    await asyncio.wait({look}, timeout=seconds)
    try:
        if look.done():
            return look.result()
        warnings.append(f"the RDMA NICs did not answer within {seconds:g} s")
    except SysfsError as error:
        warnings.append(str(error))
    return previous.nics if previous else ()


def _numa_nodes(sysfs: Sysfs, previous: Inventory | None, warnings: list[str]) -> tuple[NumaNode, ...]:
    try:
        return sysfs.numa_nodes()
    except SysfsError as error:
        warnings.append(str(error))
        return previous.numa_nodes if previous else ()


def _bounded(warnings: Sequence[str]) -> tuple[str, ...]:
    """Each once, in an order that does not depend on chance, and never without end."""
    once = sorted(set(warnings))
    more = len(once) - MAX_WARNINGS
    return tuple(once) if more <= 0 else (*once[:MAX_WARNINGS], f"and {more} more")
