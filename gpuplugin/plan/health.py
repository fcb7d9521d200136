"""What is wrong with which GPU, kept as a level: faults come from XIDs and probes, and go when probes say so.

Pure: time is an argument (seconds of a monotonic clock), and each function returns a new state. A device is given back
only with evidence and after a while (hysteresis): several probes in a row must find nothing, and the driver must say
that nothing is left to do (recovery action NONE). Where the driver cannot say (field 230 not supported), a quiet time
without a new XID stands in for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpuplugin.model.health import HEALTHY, DeviceHealth, Level

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplugin.model.health import XidEvent
    from gpuplugin.model.ids import GpuUuid


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
class Fault:
    """Why a scope is not offered, since when, how many probes in a row have found nothing, and what the driver asks."""

    reason: str
    since: float
    passes: int = 0
    asks: str = ""

    def __str__(self) -> str:
        return f"{self.reason}; the driver asks for: {self.asks}" if self.asks else self.reason


@dataclass(frozen=True, slots=True)
class Recovery:
    """When a fault ends: `passes` clean probes in a row, and `quiet_seconds` where the driver cannot tell."""

    passes: int
    quiet_seconds: float


@dataclass(frozen=True, slots=True)
class Finding:
    """What one probe found: why the GPU cannot be used (empty: it can), and what the driver wants done before.

    asks: None when the driver cannot tell, "" when it asks for nothing.
    """

    trouble: str = ""
    asks: str | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """All faults of a node. `unknown`: why nothing is known at all (NVML is gone or stuck); then nothing is offered."""

    faults: Mapping[Scope, Fault] = field(default_factory=lambda: MappingProxyType({}))
    unknown: str = ""

    def of(self, gpu: GpuUuid, gpu_instance: int | None = None, compute_instance: int | None = None) -> DeviceHealth:
        """Level and reason of one device."""
        if self.unknown:
            return DeviceHealth(Level.UNKNOWN, self.unknown)
        reasons = [
            str(fault) for scope, fault in self.faults.items() if scope.covers(gpu, gpu_instance, compute_instance)
        ]
        return DeviceHealth(Level.UNHEALTHY, "; ".join(reasons)) if reasons else HEALTHY

    def with_unknown(self, reason: str) -> Health:
        """Say that nothing is known, or ("") that NVML answers again."""
        return self if reason == self.unknown else replace(self, unknown=reason)


def after_xid(health: Health, event: XidEvent, text: str, now: float) -> Health:
    """Take the event's scope away; a repeat starts the way to recovery afresh."""
    scope = Scope(event.gpu, event.gpu_instance, event.compute_instance)
    return _with(health, scope, Fault(text, now))


def after_probe(health: Health, gpu: GpuUuid, finding: Finding, now: float, recovery: Recovery) -> Health:
    """Count a probe of one GPU towards recovery, or start or keep its faults."""
    own = {scope: fault for scope, fault in health.faults.items() if scope.gpu == gpu}
    if not finding.trouble and not finding.asks:
        for scope, fault in own.items():
            health = _passed(health, scope, fault, now, recovery, told=finding.asks is not None)
        return health
    asks = finding.asks or ""
    if Scope(gpu) not in own:
        own[Scope(gpu)] = Fault(finding.trouble or "the driver wants it out of use", now)
    for scope, fault in own.items():
        health = _with(health, scope, replace(fault, passes=0, asks=asks))
    return health


def forget(health: Health, present: frozenset[GpuUuid]) -> Health:
    """Drop the faults of GPUs that are no longer there: one that is plugged in again starts clean."""
    kept = {scope: fault for scope, fault in health.faults.items() if scope.gpu in present}
    return health if len(kept) == len(health.faults) else replace(health, faults=MappingProxyType(kept))


def _passed(health: Health, scope: Scope, fault: Fault, now: float, recovery: Recovery, *, told: bool) -> Health:
    passes = fault.passes + 1
    quiet = told or now - fault.since >= recovery.quiet_seconds
    if passes >= recovery.passes and quiet:
        return replace(health, faults=MappingProxyType({s: f for s, f in health.faults.items() if s != scope}))
    return _with(health, scope, replace(fault, passes=passes, asks=""))


def _with(health: Health, scope: Scope, fault: Fault) -> Health:
    if health.faults.get(scope) == fault:
        return health
    return replace(health, faults=MappingProxyType({**health.faults, scope: fault}))
