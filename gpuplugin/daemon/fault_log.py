"""A line in the log for each fault that comes and for each that goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from gpuplugin.plan.faults import FaultKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplugin.model.ids import GpuUuid
    from gpuplugin.plan.faults import Told
    from gpuplugin.plan.health import Health

log = structlog.get_logger()

_ELSEWHERE = frozenset({FaultKind.XID, FaultKind.NVML})
"""Kinds whose coming has a line of its own, when the XID is heard or the look fails."""


def tell(before: Health, now: Health, indexes: Mapping[GpuUuid, int]) -> None:
    """Say what has changed. indexes: NVML's, of the GPUs that are there."""
    earlier = {(told.kind, told.gpu, told.text) for told in before.told}
    current = {_identity(told) for told in now.told}
    for told in now.told:
        if told.kind not in _ELSEWHERE and (told.kind, told.gpu, told.text) not in earlier:
            log.warning("fault", **_named(told, indexes))
    for told in before.told:
        if told.kind is not FaultKind.NVML and _identity(told) not in current:
            log.info("fault ended", **_named(told, indexes))


def _identity(told: Told) -> tuple[FaultKind, GpuUuid | None, str]:
    """Of one kind a GPU has one fault, whose words may change (NVLinks that are down); of XIDs one for each code."""
    return told.kind, told.gpu, told.text if told.kind is FaultKind.XID else ""


def _named(told: Told, indexes: Mapping[GpuUuid, int]) -> dict[str, object]:
    return {
        "fault": told.kind.value,
        "policy": told.policy.value,
        "gpu": indexes.get(told.gpu) if told.gpu else None,
        "device": told.gpu,
        "reason": told.text,
    }
