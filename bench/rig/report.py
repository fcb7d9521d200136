"""The table that every bench prints: what | ours p50 / p99 | budget | reference.

Over budget is said, and is no failure: these are times of a machine that also does other things, so its load is said
too. The reference is NVIDIA's device plugin v0.20, measured with a mock of 8 H100 on two cores.
"""

from __future__ import annotations

import os
from statistics import median, quantiles
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTHS = (76, 28, 20)


def title(text: str) -> None:
    """Begin a table."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    print(f"\n{_columns(f'{text} · load {load:.1f} on {cores} cores', 'ours p50 / p99', 'budget')}  reference")


def times(
    what: str,
    milliseconds: Sequence[float],
    budget: tuple[float, float] | None = None,
    reference: str = "",
    *,
    unit: str = "ms",
) -> None:
    """One line of measured times. budget: for the median and for the 99th percentile; few times give their maximum."""
    p50, high = median(milliseconds), percentile(milliseconds, 99)
    name = "" if len(milliseconds) >= 100 else f" (max of {len(milliseconds)})"
    allowed = f"{budget[0]:g} / {budget[1]:g} {unit}" if budget else ""
    over = budget is not None and (p50 > budget[0] or high > budget[1])
    _line(what, f"{_short(p50)} / {_short(high)} {unit}{name}", allowed + " OVER" * over, reference)


def value(what: str, ours: float, unit: str, budget: float | None = None, reference: str = "") -> None:
    """One line of a single figure, of which more is worse."""
    allowed = "" if budget is None else f"{budget:g} {unit}"
    over = budget is not None and ours > budget
    _line(what, f"{_short(ours)} {unit}", allowed + " OVER" * over, reference)


def percentile(values: Sequence[float], percent: int) -> float:
    """The maximum where there are too few values for a percentile."""
    return quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) >= 100 else max(values)


def _line(what: str, ours: str, budget: str, reference: str) -> None:
    print(f"{_columns(what, ours, budget)}  {reference}".rstrip(), flush=True)


def _columns(*texts: str) -> str:
    return " ".join(text.ljust(width) for text, width in zip(texts, _WIDTHS, strict=True))


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"
