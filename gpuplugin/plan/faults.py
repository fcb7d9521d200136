"""Everything that can be wrong with a GPU, in one table: how it begins, how it ends, and what is said of it where.

Whoever tells of a fault (device plugin, claims, the Node's condition, Events, metrics, the log) takes the words from
`cells`, so that no two of them can say different things, and so that a test can assert each cell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gpuplugin.model.xid import XidKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplugin.config.settings import Health as HealthSettings
    from gpuplugin.model.ids import GpuUuid

LONGEST_LABEL: Final = 63


class FaultKind(StrEnum):
    """What is wrong; the value is the label ``fault`` of the metric and the log's ``fault``."""

    XID = "xid"
    LOST = "lost"
    HUNG = "hung"
    SILENT = "silent"
    UNREADABLE = "unreadable"
    RESET_WANTED = "reset-wanted"
    REBOOT_WANTED = "reboot-wanted"
    ACTION_WANTED = "action-wanted"
    ECC_UNCORRECTABLE = "ecc-uncorrectable"
    ROW_REMAP_PENDING = "row-remap-pending"
    ROW_REMAP_FAILED = "row-remap-failed"
    NVLINK = "nvlink"
    FABRIC = "fabric"
    THERMAL = "thermal"
    POWER_BRAKE = "power-brake"
    CORDONED = "cordoned"
    NVML = "nvml"


class Policy(StrEnum):
    """What is made of a fault, from nothing to asking for a reboot."""

    IGNORE = "ignore"
    WARN = "warn"
    UNHEALTHY = "unhealthy"
    RESET = "reset"
    REBOOT = "reboot"

    @property
    def withdraws(self) -> bool:
        """Whether the GPU leaves service."""
        return self in (Policy.UNHEALTHY, Policy.RESET, Policy.REBOOT)


class Surface(Enum):
    """Where a fault is told of."""

    DEVICE_PLUGIN = "device plugin health"
    TAINT = "DRA taint"
    STREAM = "DRA health stream"
    CONDITION = "Node condition"
    EVENT = "Event"
    METRIC = "metric"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of fault.

    reason: the Event's and the condition's, in CamelCase · begins: findings in a row that make it a fault ·
    quiet: whether clean probes are not enough, and `health.quietSeconds` without it must pass as well ·
    ends: what its end takes, for people · log: the event of its line in the log.
    """

    reason: str
    ends: str
    begins: int = 1
    quiet: bool = False
    log: str = "fault"


_PROBES = "good probes in a row (health.recoveryProbes)"
_QUIET = "good probes in a row, and health.quietSeconds without it"

TABLE: Final[Mapping[FaultKind, Row]] = MappingProxyType(
    {
        FaultKind.XID: Row(
            "GpuXid",
            f"{_PROBES}, the driver asking for nothing; for XIDs that call for a reset or a restart, and where the "
            "driver does not say what it wants, health.quietSeconds as well",
            log="XID",
        ),
        FaultKind.LOST: Row("GpuLost", _QUIET, quiet=True),
        FaultKind.HUNG: Row("GpuHung", f"the call that hung comes back; {_PROBES}"),
        FaultKind.SILENT: Row("GpuSilent", _PROBES),
        FaultKind.UNREADABLE: Row("GpuUnreadable", f"a look that can read the GPU; {_PROBES}", begins=2),
        FaultKind.RESET_WANTED: Row("GpuResetWanted", f"the driver asks for nothing: {_PROBES}"),
        FaultKind.REBOOT_WANTED: Row("GpuRebootWanted", f"the driver asks for nothing: {_PROBES}"),
        FaultKind.ACTION_WANTED: Row("GpuActionWanted", f"the driver asks for nothing: {_PROBES}"),
        FaultKind.ECC_UNCORRECTABLE: Row("GpuEccErrors", f"the counter is zero again, as after a reset: {_PROBES}"),
        FaultKind.ROW_REMAP_PENDING: Row("GpuRowRemapPending", f"nothing pending, as after a reset: {_PROBES}"),
        FaultKind.ROW_REMAP_FAILED: Row("GpuRowRemapFailed", f"the driver takes it back: {_PROBES}"),
        FaultKind.NVLINK: Row("GpuNvlink", _QUIET, quiet=True),
        FaultKind.FABRIC: Row("GpuFabric", _PROBES, begins=3),
        FaultKind.THERMAL: Row("GpuHot", _QUIET, begins=3, quiet=True),
        FaultKind.POWER_BRAKE: Row("GpuPowerBrake", _QUIET, begins=3, quiet=True),
        FaultKind.CORDONED: Row("GpuCordoned", "gpuplugin uncordon"),
        FaultKind.NVML: Row("NvmlUnknown", "NVML answers again", log="the GPUs cannot be looked at: trying again"),
    }
)

WISHES: Final = frozenset({FaultKind.RESET_WANTED, FaultKind.REBOOT_WANTED, FaultKind.ACTION_WANTED})
"""What the driver asks for; while it does, no fault of an XID ends."""

BLINDING: Final = frozenset({FaultKind.LOST, FaultKind.HUNG, FaultKind.SILENT})
"""With these, nothing else can be said of the GPU."""

NEEDS_QUIET: Final = frozenset({XidKind.RESET_GPU, XidKind.RESTART_MACHINE, XidKind.RESTART_VM, XidKind.MECHANICAL})
"""XIDs after which a GPU that merely answers again has proved nothing."""

_BY_XID: Final = {XidKind.RESET_GPU: Policy.RESET, XidKind.RESTART_MACHINE: Policy.REBOOT}


def policy(kind: FaultKind, settings: HealthSettings, xid: XidKind | None = None) -> Policy:
    """Return what is made of a fault: as configured, for an XID otherwise what the catalogue advises."""
    if kind in (FaultKind.CORDONED, FaultKind.NVML):
        return Policy.UNHEALTHY
    set_to: str | None = getattr(settings.policies, kind.name.lower())
    if set_to is not None:
        return Policy(set_to)
    return _BY_XID.get(xid, Policy.UNHEALTHY) if xid else Policy.UNHEALTHY


@dataclass(frozen=True, slots=True)
class Told:
    """A fault as others tell of it. gpu: None where all are meant · text: for people · since: monotonic seconds."""

    kind: FaultKind
    policy: Policy
    gpu: GpuUuid | None
    text: str
    since: float

    @property
    def row(self) -> Row:
        """Its row of the table."""
        return TABLE[self.kind]


def cells(told: Told) -> Mapping[Surface, str]:
    """Say what each surface says of a fault; one that is not in it says nothing.

    Device plugin: the level. Taint: ``key=value``. Stream: the device's message. Condition: its reason. Event:
    ``type reason``. Metric: the label ``fault``. Log: the line's event. The message of condition and Event is the text.
    """
    if told.policy is Policy.IGNORE:
        return {}
    level = "unknown" if told.kind is FaultKind.NVML else "unhealthy"
    said = {
        Surface.STREAM: told.text,
        Surface.CONDITION: told.row.reason,
        Surface.EVENT: f"Warning {told.row.reason}",
        Surface.METRIC: told.kind.value,
        Surface.LOG: told.row.log,
    }
    if told.policy.withdraws:
        said |= {Surface.DEVICE_PLUGIN: level, Surface.TAINT: f"gpuplugin.io/{level}={as_label(told.text)}"}
    return said


def as_label(text: str) -> str:
    """Write a text as a label's value: what it may not hold becomes a dash, and the rest is cut off."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text)[:LONGEST_LABEL].strip("-_.")
