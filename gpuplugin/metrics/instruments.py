"""What is counted while it happens, by those to whom it happens; one of each in the process.

Their labels are names of ours (calls, resources, classes of errors), so there are few; should there ever be many, those
beyond the limit are counted together, since a scrape must not grow without end.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from gpuplugin.metrics import registry
from gpuplugin.metrics.exposition import labels
from gpuplugin.metrics.series import Family, Sample, Series

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gpuplugin.model.health import XidEvent
    from gpuplugin.model.ids import GpuUuid

MOST_LABEL_SETS: Final = 500
OTHER: Final = "other"

_ADMISSION_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_NVML_SECONDS = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


class Counter:
    """Counts events by label values, in the order of the series' labels."""

    def __init__(self, series: Series) -> None:
        self.series = series
        self._counts: dict[tuple[str, ...], int] = {}

    def inc(self, *values: str) -> None:
        """Count one."""
        key = _bounded(self._counts, values)
        self._counts[key] = self._counts.get(key, 0) + 1

    def count(self, *values: str) -> int:
        """How many so far."""
        return self._counts.get(values, 0)

    def family(self) -> Family:
        """All counts."""
        return Family(
            self.series, [Sample(_labels(self.series, key), count) for key, count in sorted(self._counts.items())]
        )


class Histogram:
    """Counts durations by label values, and by the first of `bounds` (seconds, ascending) that they do not exceed."""

    def __init__(self, series: Series, bounds: Sequence[float]) -> None:
        self.series = series
        self._bounds = tuple(bounds)
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}

    def observe(self, seconds: float, *values: str) -> None:
        """Count one."""
        key = _bounded(self._counts, values)
        counts = self._counts.setdefault(key, [0] * (len(self._bounds) + 1))
        counts[bisect_left(self._bounds, seconds)] += 1
        self._sums[key] = self._sums.get(key, 0.0) + seconds

    def family(self) -> Family:
        """All buckets, each with what is in those before it."""
        samples: list[Sample] = []
        for key, counts in sorted(self._counts.items()):
            pairs, total = dict(zip(self.series.labels, key, strict=True)), 0
            for bound, count in zip((*map(str, self._bounds), "+Inf"), counts, strict=True):
                total += count
                samples.append(Sample(labels({**pairs, "le": bound}), total, "_bucket"))
            samples.append(Sample(labels(pairs), self._sums[key], "_sum"))
            samples.append(Sample(labels(pairs), total, "_count"))
        return Family(self.series, samples)


class XidCounts:
    """XIDs by GPU, instance and code, and when each was last seen."""

    def __init__(self) -> None:
        self.last: dict[tuple[GpuUuid, int | None], int] = {}
        self._counts: dict[tuple[str, ...], int] = {}
        self._seen: dict[tuple[str, ...], float] = {}

    def saw(self, event: XidEvent, index: int | None) -> None:
        """Count one. index: NVML's of its GPU, None where that is not known."""
        instance = "" if event.gpu_instance is None else f"{event.gpu_instance}"
        values = ("" if index is None else f"{index}", event.gpu, instance, f"{event.xid}")
        key = _bounded(self._counts, values)
        self._counts[key] = self._counts.get(key, 0) + 1
        self._seen[key] = time.time()
        self.last[event.gpu, event.gpu_instance] = event.xid

    def families(self) -> tuple[Family, Family]:
        """Counts and times."""
        return (
            Family(registry.XIDS, [Sample(_labels(registry.XIDS, key), n) for key, n in self._counts.items()]),
            Family(registry.XID_LAST_SEEN, [Sample(_labels(registry.XIDS, key), at) for key, at in self._seen.items()]),
        )


def reason(error: BaseException) -> str:
    """Give the class of an error as a label's value: ``device_held``."""
    return _WORD.sub("_", type(error).__name__).lower()


def _bounded(known: Collection[tuple[str, ...]], values: tuple[str, ...]) -> tuple[str, ...]:
    if values in known or len(known) < MOST_LABEL_SETS:
        return values
    return (OTHER,) * len(values)


def _labels(series: Series, values: tuple[str, ...]) -> str:
    return labels(dict(zip(series.labels, values, strict=True)))


ALLOCATIONS = Counter(registry.ALLOCATIONS)
ALLOCATION_ERRORS = Counter(registry.ALLOCATION_ERRORS)
ADMISSION = Histogram(registry.ADMISSION, _ADMISSION_SECONDS)
PREPARE_ERRORS = Counter(registry.PREPARE_ERRORS)
NVML_CALLS = Histogram(registry.NVML_CALLS, _NVML_SECONDS)
NVML_ERRORS = Counter(registry.NVML_ERRORS)
XIDS = XidCounts()


def nvml_called(call: str, seconds: float, error: BaseException | None) -> None:
    """Count a call of NVML. error: what it raised, None where it did not."""
    NVML_CALLS.observe(seconds, call)
    if error is not None:
        NVML_ERRORS.inc(call, reason(error))


def families() -> tuple[Family, ...]:
    """All that has been counted in this process."""
    counted = (ALLOCATIONS, ALLOCATION_ERRORS, ADMISSION, PREPARE_ERRORS, NVML_CALLS, NVML_ERRORS)
    return (*(one.family() for one in counted), *XIDS.families())
