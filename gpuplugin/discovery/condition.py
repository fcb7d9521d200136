"""A GPU's condition out of NVML, with few calls: it is asked with every probe, every other second.

What one call does not tell is left out; a GPU that cannot say how it is is not ill for that. That the GPU or the driver
is gone raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuplugin.discovery import nvml_decode as decode
from gpuplugin.discovery.nvml import Probe, RecoveryAction
from gpuplugin.errors import GpuLost, NvmlError, NvmlNotSupported, NvmlUnavailable
from gpuplugin.model.condition import Condition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gpuplugin.model.inventory import Fabric

RECOVERY_ACTION: Final = 230
ECC_UNCORRECTABLE, ROWS_PENDING, ROWS_FAILED, NVLINK_RECOVERIES = 4, 144, 145, 59
"""NVML_FI_DEV_ECC_DBE_VOL_TOTAL, _REMAPPED_PENDING, _REMAPPED_FAILURE, _NVLINK_RECOVERY_ERROR_COUNT_TOTAL."""
_FIELDS: Final = (RECOVERY_ACTION, ECC_UNCORRECTABLE, ROWS_PENDING, ROWS_FAILED, NVLINK_RECOVERIES)

SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x20, 0x40, 0x80
"""nvmlClocksEventReason*."""

_SUCCESS, _DISABLED = 0, 0
_UNSIGNED_LONG, _UNSIGNED_LONG_LONG = 2, 3


def probe(
    ask: Callable[..., Any], handle: Any, links: Collection[int], fabric: Callable[[Any], Fabric | None]
) -> Probe:
    """Ask how a GPU is. ask: makes a call of pynvml's by name · links: NVLinks that have been up · fabric: reads it.

    Raises NvmlError when the driver's wish cannot be told though the driver has that field: something is wrong then.
    """
    values = _fields(ask, handle)
    reasons = _clock_reasons(ask, handle)
    return Probe(
        _recovery(values.get(RECOVERY_ACTION)),
        Condition(
            ecc_uncorrectable=_number(values.get(ECC_UNCORRECTABLE)),
            rows_pending=_flag(values.get(ROWS_PENDING)),
            rows_failed=_flag(values.get(ROWS_FAILED)),
            nvlink_recoveries=_number(values.get(NVLINK_RECOVERIES)),
            links_down=tuple(link for link in sorted(links) if _down(ask, handle, link)),
            fabric=_if_told(fabric, handle),
            hot=None if reasons is None else bool(reasons & (SW_THERMAL | HW_THERMAL)),
            braked=None if reasons is None else bool(reasons & POWER_BRAKE),
        ),
    )


def _fields(ask: Callable[..., Any], handle: Any) -> dict[int, Any]:
    try:
        return dict(zip(_FIELDS, ask("nvmlDeviceGetFieldValues", handle, _FIELDS), strict=True))
    except NvmlNotSupported:
        return {}


def _recovery(value: Any | None) -> RecoveryAction | None:
    if value is None:
        return None
    return decode.recovery_action("nvmlDeviceGetFieldValues", value.nvmlReturn, value.value.uiVal)


def _number(value: Any | None) -> int | None:
    if value is None or value.nvmlReturn != _SUCCESS:
        return None
    wide = value.valueType in (_UNSIGNED_LONG, _UNSIGNED_LONG_LONG)
    return int(value.value.ullVal if wide else value.value.uiVal)


def _flag(value: Any | None) -> bool | None:
    number = _number(value)
    return None if number is None else bool(number)


def _clock_reasons(ask: Callable[..., Any], handle: Any) -> int | None:
    for call in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        reasons: int | None = _if_told(ask, call, handle)
        if reasons is not None:
            return reasons
    return None


def _down(ask: Callable[..., Any], handle: Any, link: int) -> bool:
    state: int | None = _if_told(ask, "nvmlDeviceGetNvLinkState", handle, link)
    return state == _DISABLED


def _if_told(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except (GpuLost, NvmlUnavailable):
        raise
    except NvmlError:
        return None
