"""What a series is: its name and everything that is promised of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuplugin.model.telemetry import Quantity


class Kind(StrEnum):
    """Prometheus's word for how its values move."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Series:
    """A family of time series, one for each set of values of its labels.

    quantity: what is measured, where it is a device's · scale: what that is multiplied by.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    quantity: Quantity | None = None
    scale: float = 1

    @property
    def sample_names(self) -> tuple[str, ...]:
        """What queries may call it."""
        if self.kind is Kind.HISTOGRAM:
            return tuple(f"{self.name}{suffix}" for suffix in ("_bucket", "_sum", "_count"))
        return (self.name,)


class Sample(NamedTuple):
    """One value. labels: rendered by `exposition.labels`, with the braces; "" for none · suffix: ``_bucket``."""

    labels: str
    value: float
    suffix: str = ""


class Family(NamedTuple):
    """A series with its values at one moment."""

    series: Series
    samples: Sequence[Sample]
