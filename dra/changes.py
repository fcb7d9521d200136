"""The least that must be written to bring the slices that are there to those that are wanted, in an order that is safe.

The scheduler looks at the slices of the highest generation only, and at none unless all of them are there. So a pool
can be changed in two ways. In place, slice by slice: then it must be right after each single write. Or with a new
generation, which every slice is written for: then the pool is not used from the first write to the last, and nothing
in between matters. The first is taken where it is safe, because it writes less and leaves the pool usable.

Wherever the process is stopped in the middle, the next one starts from what it finds, and ends at the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuplugin.kube.objects import Meta

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpuplugin.kube.objects import Device, ResourceSlice, SliceSpec

FIRST_GENERATION: Final = 1


@dataclass(frozen=True, slots=True)
class Changes:
    """What to do, in this order. writes: to create without a resource version, to replace with one · deletes: after."""

    writes: tuple[ResourceSlice, ...] = ()
    deletes: tuple[ResourceSlice, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.writes or self.deletes)


@dataclass(frozen=True, slots=True)
class Taken:
    """What the server made of a spec of ours where that is not the same: a default, or an admission policy's doing."""

    written: SliceSpec
    answer: SliceSpec


def changes(
    wanted: Sequence[ResourceSlice],
    there: Iterable[ResourceSlice],
    taken: Mapping[str, Taken],
    last_generation: int = 0,
) -> Changes:
    """Work out what to do.

    wanted: all slices of the pool · there: all slices of this driver and node, whoever made them · taken: by name, so
    that a server's own mind is not argued with for ever · last_generation: the highest that this process has seen.
    """
    places = {one.metadata.name: one for one in wanted}
    pool = wanted[0].spec.pool
    ours, others = {}, []
    for one in there:
        if one.metadata.name in places and one.spec.pool.name == pool.name:
            ours[one.metadata.name] = one
        else:
            others.append(one)
    deletes = tuple(one for one in others if one.metadata.deletion_timestamp is None)
    in_pool = [one for one in (*ours.values(), *others) if one.spec.pool.name == pool.name]
    if not in_pool:
        generation = max(FIRST_GENERATION, last_generation)
        return Changes(tuple(_written(one, None, generation) for one in wanted), deletes)

    newest = max(one.spec.pool.generation for one in in_pool)
    current = {name: one for name, one in ours.items() if one.spec.pool.generation == newest}
    stale = [one for one in wanted if not _stands(one, current.get(one.metadata.name), taken)]
    if not stale:
        return Changes((), deletes)
    rivals = any(one.spec.pool.generation == newest for one in others if one.spec.pool.name == pool.name)
    counts_fit = all(one.spec.pool.resource_slice_count == len(wanted) for one in current.values())
    if not rivals and counts_fit and (len(current) < len(wanted) or _safe_in_place(stale, current)):
        stale.sort(key=lambda one: one.metadata.name not in current)  # those that complete the pool come last
        return Changes(_all_written(stale, ours, newest), deletes)
    return Changes(_all_written(wanted, ours, newest + 1), deletes)


def bare(spec: SliceSpec) -> SliceSpec:
    """A spec without what comes from the server or from the moment: generation, and when a taint was added."""
    devices = tuple(
        replace(device, taints=tuple(replace(t, time_added=None) for t in device.taints)) for device in spec.devices
    )
    return replace(spec, pool=replace(spec.pool, generation=0), devices=devices)


def _stands(wanted: ResourceSlice, there: ResourceSlice | None, taken: Mapping[str, Taken]) -> bool:
    if there is None or not set(wanted.metadata.owner_references) <= set(there.metadata.owner_references):
        return False
    if bare(there.spec) == bare(wanted.spec):
        return True
    known = taken.get(wanted.metadata.name)
    return known is not None and (known.written, known.answer) == (bare(wanted.spec), bare(there.spec))


def _safe_in_place(stale: Sequence[ResourceSlice], current: Mapping[str, ResourceSlice]) -> bool:
    """Whether the pool is right after each of several writes: no device changes slices, and no counters change."""
    if len(stale) == 1:
        return True
    now_in = {device.name: name for name, one in current.items() for device in one.spec.devices}
    for one in stale:
        name = one.metadata.name
        before = {device.name: device for device in current[name].spec.devices}
        if one.spec.shared_counters or current[name].spec.shared_counters:
            return False
        for device in one.spec.devices:
            if now_in.get(device.name, name) != name:
                return False
            if device.consumes_counters != _uses(before.get(device.name)):
                return False
    return True


def _uses(device: Device | None) -> object:
    return device.consumes_counters if device is not None else ()


def _all_written(
    some: Iterable[ResourceSlice], ours: Mapping[str, ResourceSlice], generation: int
) -> tuple[ResourceSlice, ...]:
    return tuple(_written(one, ours.get(one.metadata.name), generation) for one in some)


def _written(wanted: ResourceSlice, there: ResourceSlice | None, generation: int) -> ResourceSlice:
    """The slice to send. What others have put on its metadata stays; a taint that stays keeps its time."""
    spec = replace(wanted.spec, pool=replace(wanted.spec.pool, generation=generation))
    if there is None:
        return replace(wanted, spec=spec)
    since = {
        (device.name, taint.key, taint.value, taint.effect): taint.time_added
        for device in there.spec.devices
        for taint in device.taints
    }
    devices = tuple(
        replace(
            device,
            taints=tuple(
                replace(taint, time_added=since.get((device.name, taint.key, taint.value, taint.effect)))
                for taint in device.taints
            ),
        )
        for device in spec.devices
    )
    foreign = tuple(
        owner for owner in there.metadata.owner_references if owner.kind != "Node" and owner.controller is not True
    )
    meta = Meta(
        name=wanted.metadata.name,
        uid=there.metadata.uid,
        resource_version=there.metadata.resource_version,
        labels=there.metadata.labels,
        annotations=there.metadata.annotations,
        owner_references=(*wanted.metadata.owner_references, *foreign),
        finalizers=there.metadata.finalizers,
    )
    return replace(wanted, metadata=meta, spec=replace(spec, devices=devices))
