"""Fields that a server may not know, or may have switched off: it then drops them without a word.

What that means differs. A taint that is dropped lets an ill GPU be handed out; counters that are dropped let one GPU be
handed out twice. So what such a server is told must be something that is right without those fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from dra.slices import Contents

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpuplugin.kube.objects import SliceSpec

TAINTS: Final = "devices[].taints"
USES: Final = "devices[].consumesCounters"
COUNTERS: Final = "sharedCounters"
VITAL: Final = frozenset({TAINTS, USES, COUNTERS})
"""Fields that keep devices from being handed out wrongly; what else is dropped only says less."""


def used(spec: SliceSpec) -> frozenset[str]:
    """The vital fields that a slice makes use of."""
    return frozenset(
        name
        for name, present in (
            (TAINTS, any(device.taints for device in spec.devices)),
            (USES, any(device.consumes_counters for device in spec.devices)),
            (COUNTERS, bool(spec.shared_counters)),
        )
        if present
    )


def dropped(written: SliceSpec, answer: SliceSpec) -> frozenset[str]:
    """The fields that were written and are not in the answer, by path; a value that is another is no such field."""
    return frozenset(_lacking("", msgspec.to_builtins(written), msgspec.to_builtins(answer)))


def without(contents: Contents, lacks: Collection[str]) -> Contents:
    """What can be offered on a server that lacks these fields, so that nothing is handed out that must not be.

    Without taints, devices that have one are left out, and come back when it is lifted. Without counters, the devices
    that share hardware with others are left out.
    """
    devices, counter_sets = contents.devices, contents.counter_sets
    if TAINTS in lacks:
        devices = tuple(device for device in devices if all(taint.effect == "None" for taint in device.taints))
        devices = tuple(msgspec.structs.replace(device, taints=()) for device in devices)
    if not {USES, COUNTERS}.isdisjoint(lacks):
        counter_sets = ()
        devices = tuple(device for device in devices if device.name not in contents.overlapping)
        devices = tuple(msgspec.structs.replace(device, consumes_counters=()) for device in devices)
    return Contents(devices, counter_sets, contents.overlapping)


def _lacking(path: str, written: Any, answer: Any) -> set[str]:
    if isinstance(written, dict):
        has = answer if isinstance(answer, dict) else {}
        found: set[str] = set()
        for name, value in written.items():
            where = f"{path}.{name}" if path else name
            found |= _lacking(where, value, has[name]) if name in has else {where}
        return found
    if isinstance(written, list | tuple):
        has_items = answer if isinstance(answer, list | tuple) else ()
        if len(has_items) < len(written):
            return {f"{path}[]"}
        pairs = zip(written, has_items, strict=False)
        return set().union(*(_lacking(f"{path}[]", one, other) for one, other in pairs))
    return set()
