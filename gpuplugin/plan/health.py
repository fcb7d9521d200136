"""What is wrong with which GPU, kept as a level: faults come from XIDs and probes, and go when probes say so.

Pure: time is an argument (seconds of a monotonic clock), and each function returns a new state. A device is given back
only with evidence and after a while (hysteresis): several probes in a row must find nothing, and the driver must say
that nothing is left to do (recovery action NONE). A GPU that fell off the bus, or whose XID calls for a reset, must
have been quiet for a time as well, since that it answers again proves nothing; and so must one whose driver cannot say
what it wants (field 230 not supported). What begins and ends each kind is in `faults.TABLE`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from gpuplugin.model.health import HEALTHY, DeviceHealth, Level
from gpuplugin.model.xid import kind as xid_kind
from gpuplugin.plan.faults import BLINDING, NEEDS_QUIET, TABLE, WISHES, FaultKind, Policy, Told

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuplugin.model.health import XidEvent
    from gpuplugin.model.ids import GpuUuid

_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Scope:
    """What a fault takes away: a whole GPU, or one MIG device of it."""

    gpu: GpuUuid
    gpu_instance: int | None = None
    compute_instance: int | None = None

    def covers(self, gpu: GpuUuid, gpu_instance: int | None, compute_instance: int | None) -> bool:
        """Whether a device is affected. A whole GPU is affected by a fault of any of its instances."""
        if gpu != self.gpu:
            return False
        if self.gpu_instance is None or gpu_instance is None:
            return True
        return self.gpu_instance == gpu_instance and self.compute_instance in (None, compute_instance)


@dataclass(frozen=True, slots=True)
class Key:
    """Which fault it is. xid: its code, so that an XID does not take the place of another; 0 for other kinds."""

    scope: Scope
    kind: FaultKind
    xid: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that holds. seen: when it was found last · passes: how many probes in a row have not found it since."""

    text: str
    policy: Policy
    since: float
    seen: float
    passes: int = 0


@dataclass(frozen=True, slots=True)
class Recovery:
    """When a fault ends: `passes` clean probes in a row, and `quiet_seconds` where those alone prove nothing."""

    passes: int
    quiet_seconds: float


@dataclass(frozen=True, slots=True)
class Finding:
    """What one probe found: each thing that is wrong, in words. told: whether the driver says what it wants done."""

    found: Mapping[FaultKind, str] = field(default_factory=lambda: MappingProxyType({}))
    told: bool = True


@dataclass(frozen=True, slots=True)
class Health:
    """All faults of a node. `unknown`: why nothing is known at all (NVML is gone or stuck); then nothing is offered.

    suspected: what was found, though not often enough in a row to be a fault.
    """

    faults: Mapping[Key, Fault] = field(default_factory=lambda: MappingProxyType({}))
    suspected: Mapping[Key, int] = field(default_factory=lambda: MappingProxyType({}))
    unknown: str = ""
    unknown_since: float = 0.0

    def of(self, gpu: GpuUuid, gpu_instance: int | None = None, compute_instance: int | None = None) -> DeviceHealth:
        """Level and reason of one device. A healthy one has a reason where there is something to warn of."""
        if self.unknown:
            return DeviceHealth(Level.UNKNOWN, self.unknown)
        here = [fault for key, fault in self.faults.items() if key.scope.covers(gpu, gpu_instance, compute_instance)]
        if not here:
            return HEALTHY
        ill = any(fault.policy.withdraws for fault in here)
        reasons = dict.fromkeys(fault.text for fault in here if fault.policy.withdraws or not ill)
        return DeviceHealth(Level.UNHEALTHY if ill else Level.HEALTHY, "; ".join(reasons))

    @property
    def told(self) -> tuple[Told, ...]:
        """Every fault as others tell of it, in the order they came."""
        faults = tuple(
            Told(key.kind, fault.policy, key.scope.gpu, fault.text, fault.since) for key, fault in self.faults.items()
        )
        if not self.unknown:
            return faults
        return (Told(FaultKind.NVML, Policy.UNHEALTHY, None, self.unknown, self.unknown_since), *faults)

    def with_unknown(self, reason: str, now: float = 0.0) -> Health:
        """Say that nothing is known, or ("") that NVML answers again."""
        return self if reason == self.unknown else replace(self, unknown=reason, unknown_since=now)


def after_xid(health: Health, event: XidEvent, text: str, now: float, policy: Policy = Policy.UNHEALTHY) -> Health:
    """Take the event's scope away; a repeat starts the way to recovery afresh."""
    key = Key(Scope(event.gpu, event.gpu_instance, event.compute_instance), FaultKind.XID, event.xid)
    known = health.faults.get(key)
    return _with(health, key, Fault(text, policy, known.since if known else now, now))


def after_probe(
    health: Health,
    gpu: GpuUuid,
    finding: Finding,
    now: float,
    recovery: Recovery,
    policy: Callable[[FaultKind], Policy] = lambda _: Policy.UNHEALTHY,
) -> Health:
    """Count a probe of one GPU towards the end of each of its faults, or start or keep what it has found."""
    policies = {kind: policy(kind) for kind in finding.found}
    found = {kind: text for kind, text in finding.found.items() if policies[kind] is not Policy.IGNORE}
    if any(Key(Scope(gpu), kind) in health.faults for kind in BLINDING):
        found.pop(FaultKind.UNREADABLE, None)  # the look met the same trouble, and has not been repeated since
    for kind, text in found.items():
        health = _found(health, Key(Scope(gpu), kind), Fault(text, policies[kind], now, now))
    blind, wished = not found.keys().isdisjoint(BLINDING), not found.keys().isdisjoint(WISHES)
    for key, fault in [(key, fault) for key, fault in health.faults.items() if key.scope.gpu == gpu]:
        if key.kind in found or key.kind is FaultKind.CORDONED:
            continue
        if blind or (wished and key.kind is FaultKind.XID):
            health = _with(health, key, replace(fault, passes=0))
        else:
            health = _passed(health, key, fault, now, recovery, told=finding.told)
    past = {key for key in health.suspected if key.scope.gpu == gpu and key.kind not in found}
    return replace(health, suspected=_without(health.suspected, past)) if past else health


def with_cordons(health: Health, cordons: Mapping[GpuUuid, str], now: float) -> Health:
    """Have exactly these GPUs cordoned, each with the reason that was given."""
    for key in [key for key in health.faults if key.kind is FaultKind.CORDONED and key.scope.gpu not in cordons]:
        health = replace(health, faults=_without(health.faults, {key}))
    for gpu, reason in cordons.items():
        key, text = Key(Scope(gpu), FaultKind.CORDONED), f"cordoned: {reason}"
        known = health.faults.get(key)
        if known is None or known.text != text:
            health = _with(health, key, Fault(text, Policy.UNHEALTHY, now, now))
    return health


def forget(health: Health, present: frozenset[GpuUuid]) -> Health:
    """Drop the faults of GPUs that are no longer there: one that is plugged in again starts clean."""
    gone = {key for key in (*health.faults, *health.suspected) if key.scope.gpu not in present}
    if not gone:
        return health
    return replace(health, faults=_without(health.faults, gone), suspected=_without(health.suspected, gone))


def _found(health: Health, key: Key, fault: Fault) -> Health:
    known = health.faults.get(key)
    if known is not None:
        return _with(health, key, replace(fault, since=known.since))
    times = health.suspected.get(key, 0) + 1
    if times < TABLE[key.kind].begins:
        return replace(health, suspected=MappingProxyType({**health.suspected, key: times}))
    return _with(replace(health, suspected=_without(health.suspected, {key})), key, fault)


def _passed(health: Health, key: Key, fault: Fault, now: float, recovery: Recovery, *, told: bool) -> Health:
    passes = fault.passes + 1
    quiet = not _needs_quiet(key, told=told) or now - fault.seen >= recovery.quiet_seconds
    if passes >= recovery.passes and quiet:
        return replace(health, faults=_without(health.faults, {key}))
    return _with(health, key, replace(fault, passes=passes))


def _needs_quiet(key: Key, *, told: bool) -> bool:
    if key.kind is FaultKind.XID:
        return not told or xid_kind(key.xid) in NEEDS_QUIET
    return TABLE[key.kind].quiet


def _with(health: Health, key: Key, fault: Fault) -> Health:
    return replace(health, faults=MappingProxyType({**health.faults, key: fault}))


def _without(mapping: Mapping[Key, _V], keys: set[Key]) -> Mapping[Key, _V]:
    return MappingProxyType({key: value for key, value in mapping.items() if key not in keys})
