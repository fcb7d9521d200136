"""MIG as a driver does it: the profiles of each GPU model, and what creating and destroying does to the state.

Placements are enforced: an instance fits only at one of its profile's starts and where nothing else is, so that a
layout that real hardware would refuse is refused here, too. Source: NVIDIA's MIG user guide.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID, uuid5

from gpuplugin.errors import MigRefused
from gpuplugin.sim.snapshot import MigRecord

if TYPE_CHECKING:
    from gpuplugin.sim.snapshot import GpuRecord, Snapshot


@dataclass(frozen=True, slots=True)
class Profile:
    """One GPU-instance profile.

    number: its place in NVML_GPU_INSTANCE_PROFILE_* · id: what NVML calls its id · slices: of compute, also of the
    whole-size compute instance · starts, size: in memory slices · count: how many fit · memory_mib: as NVML tells it.
    """

    number: int
    id: int
    name: str
    slices: int
    starts: tuple[int, ...]
    size: int
    count: int
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    jpegs: int
    ofas: int
    encoders: int = 0


def _seven(
    names: str, memory: tuple[int, ...], multiprocessors: tuple[int, ...], *, hopper: bool
) -> tuple[Profile, ...]:
    """Give the profiles of a GPU with 7 compute and 8 memory slices.

    names, memory (MiB), multiprocessors: in the order 1g, big 1g, 2g, 3g, 4g, 7g.
    """
    one, big, two, three, four, whole = (
        (f"{g}g.{gb}", mib, sm)
        for g, gb, mib, sm in zip((1, 1, 2, 3, 4, 7), names.split(), memory, multiprocessors, strict=True)
    )
    every, even = tuple(range(7)), (0, 2, 4)
    plain = (1, 1) if hopper else (0, 0)
    return (
        Profile(0, 19, one[0], 1, every, 1, 7, *one[1:], 1, *plain, 0),
        Profile(7, 20, f"{one[0]}+me", 1, every, 1, 1, *one[1:], 1, 1, 1, 1),
        Profile(9, 15, big[0], 1, (*even, 6), 2, 4, *big[1:], 1, 1, plain[1], 0),
        Profile(1, 14, two[0], 2, even, 2, 3, *two[1:], 2, 2 if hopper else 1, 2 * plain[1], 0),
        Profile(2, 9, three[0], 3, (0, 4), 4, 2, *three[1:], 3, 3 if hopper else 2, 3 * plain[1], 0),
        Profile(3, 5, four[0], 4, (0,), 4, 1, *four[1:], 4, 4 if hopper else 2, 4 * plain[1], 0),
        Profile(
            4, 0, whole[0], 7, (0,), 8, 1, *whole[1:], 8 if hopper else 7, 7 if hopper else 5, 7 if hopper else 1, 1
        ),
    )


_A100 = (14, 14, 28, 42, 56, 98)
_H100 = (16, 26, 32, 60, 64, 132)
_B200 = (18, 30, 36, 70, 74, 148)
_A30 = (
    Profile(0, 14, "1g.6gb", 1, (0, 1, 2, 3), 1, 4, 5836, 14, 1, 0, 0, 0),
    Profile(7, 21, "1g.6gb+me", 1, (0, 1, 2, 3), 1, 1, 5836, 14, 1, 1, 1, 1),
    Profile(1, 5, "2g.12gb", 2, (0, 2), 2, 2, 11672, 28, 2, 2, 0, 0),
    Profile(8, 6, "2g.12gb+me", 2, (0, 2), 2, 1, 11672, 28, 2, 2, 1, 1),
    Profile(3, 0, "4g.24gb", 4, (0,), 4, 1, 23344, 56, 4, 4, 1, 1),
)
_GB10, _GB20 = "10gb 20gb 20gb 40gb 40gb 80gb", "5gb 10gb 10gb 20gb 20gb 40gb"
_BY_MODEL: tuple[tuple[re.Pattern[str], tuple[Profile, ...]], ...] = tuple(
    (re.compile(pattern), table)
    for pattern, table in (
        (r"A100.*80GB", _seven(_GB10, (9856, 19968, 19968, 40192, 40192, 80384), _A100, hopper=False)),
        (r"A100.*40GB", _seven(_GB20, (4864, 9856, 9856, 19968, 19968, 40192), _A100, hopper=False)),
        (r"A30\b", _A30),
        (r"H100.*80GB", _seven(_GB10, (9984, 20096, 20096, 40448, 40448, 81152), _H100, hopper=True)),
        (
            r"H200",
            _seven("18gb 35gb 35gb 71gb 71gb 141gb", (16384, 33024, 33024, 71168, 71168, 142592), _H100, hopper=True),
        ),
        (
            r"B200",
            _seven("23gb 45gb 45gb 90gb 90gb 180gb", (22528, 45312, 45312, 91136, 91136, 182272), _B200, hopper=True),
        ),
    )
)


def profiles(model: str) -> tuple[Profile, ...]:
    """Give the profiles of a GPU by NVML's name of it, in the order of NVML_GPU_INSTANCE_PROFILE_*; empty: no MIG."""
    for pattern, table in _BY_MODEL:
        if pattern.search(model):
            return tuple(sorted(table, key=lambda profile: profile.number))
    return ()


def set_mode(snapshot: Snapshot, gpu: int, *, enabled: bool, needs_reset: bool = False) -> Snapshot:
    """Turn MIG on or off; with `needs_reset` only the pending mode changes (`reset` then makes it current)."""
    old = snapshot.gpu(gpu)
    if old.mig_current is None:
        raise MigRefused(f"GPU {gpu} ({old.name}) has no MIG")
    if not enabled and any(record.gpu == gpu for record in snapshot.migs):
        raise MigRefused(f"GPU {gpu} has MIG devices; destroy them first")
    current = old.mig_current if needs_reset else enabled
    return _replace_gpu(snapshot, replace(old, mig_current=current, mig_pending=enabled))


def reset(snapshot: Snapshot, gpu: int) -> Snapshot:
    """Reset a GPU: a pending MIG mode becomes current, it is on the bus again and wants nothing done."""
    old = snapshot.gpu(gpu)
    recovery = None if old.recovery is None else 0
    return _replace_gpu(snapshot, replace(old, mig_current=old.mig_pending, lost=False, recovery=recovery))


def create(snapshot: Snapshot, gpu: int, profile: str, start: int | None = None) -> tuple[Snapshot, MigRecord]:
    """Create a GPU instance and a compute instance of its whole size; `start` None takes the first place that is free.

    MigRefused says why not.
    """
    parent = snapshot.gpu(gpu)
    if not parent.mig_current:
        raise MigRefused(f"GPU {gpu} ({parent.name}) does not have MIG on")
    known = {each.name: each for each in profiles(parent.name)}
    if profile not in known:
        raise MigRefused(f"one of the profiles {', '.join(known)}")
    kind = known[profile]
    here = [record for record in snapshot.migs if record.gpu == gpu]
    free = free_starts(kind, here)
    if start is None and free:
        start = free[0]
    if start not in free or start is None:
        raise MigRefused(f"{profile} at one of the starts that are free: {list(free)}")
    gi = _first_free({record.gi for record in here}, first=1)
    slot = _first_free({record.slot for record in here}, first=0)
    record = MigRecord(
        gpu=gpu,
        slot=slot,
        uuid=f"MIG-{uuid5(UUID(parent.uuid.removeprefix('GPU-')), f'{kind.id}/{start}')}",
        gi=gi,
        ci=0,
        profile_id=kind.id,
        start=start,
        size=kind.size,
        profile=kind.name,
        memory=kind.memory_mib << 20,
        multiprocessors=kind.multiprocessors,
        gi_slices=kind.slices,
        ci_slices=kind.slices,
        copy_engines=kind.copy_engines,
        decoders=kind.decoders,
        encoders=kind.encoders,
        jpegs=kind.jpegs,
        ofas=kind.ofas,
    )
    return replace(snapshot, migs=(*snapshot.migs, record)), record


def destroy(snapshot: Snapshot, gpu: int, slot: int) -> Snapshot:
    """Destroy a MIG device; the slots of the others stay as they are."""
    left = tuple(record for record in snapshot.migs if (record.gpu, record.slot) != (gpu, slot))
    if len(left) == len(snapshot.migs):
        slots = [record.slot for record in snapshot.migs if record.gpu == gpu]
        raise MigRefused(f"GPU {gpu} has no MIG device in slot {slot}; there are {slots}")
    return replace(snapshot, migs=left)


def free_starts(profile: Profile, there: list[MigRecord]) -> tuple[int, ...]:
    """Give where one more of `profile` fits beside the instances of one GPU."""
    if sum(record.profile_id == profile.id for record in there) >= profile.count:
        return ()
    taken = {at for record in there for at in range(record.start, record.start + record.size)}
    return tuple(start for start in profile.starts if taken.isdisjoint(range(start, start + profile.size)))


def _replace_gpu(snapshot: Snapshot, gpu: GpuRecord) -> Snapshot:
    return replace(snapshot, gpus=tuple(gpu if old.index == gpu.index else old for old in snapshot.gpus))


def _first_free(taken: set[int], first: int) -> int:
    return next(number for number in range(first, first + len(taken) + 1) if number not in taken)
