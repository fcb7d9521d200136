"""dcgm-exporter's list of what to expose: comma-separated lines of field, type and help.

People have such files, and mount them into the exporter that we replace. What we do not have is said and left out, so
that a list that is good there is good here.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuplugin.errors import CollectorsInvalid
from gpuplugin.metrics.registry import DEVICE_SERIES
from gpuplugin.metrics.series import Kind

if TYPE_CHECKING:
    from gpuplugin.metrics.series import Series

_KNOWN = {series.name: series for series in DEVICE_SERIES}
_PRESENT_LABELS = frozenset({"DCGM_FI_DRIVER_VERSION"})
_COLUMNS = 3
_LABEL = "label"


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a list asks for: the series that we have, in its order, and the names of those that we do not have."""

    series: tuple[Series, ...]
    missing: tuple[str, ...]


def read(text: str, source: str) -> Chosen:
    """Read a list. Type and help are taken from it. Raises CollectorsInvalid, which names `source` and line."""
    series: dict[str, Series] = {}
    missing: list[str] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        cells = [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True))]
        if len(cells) != _COLUMNS:
            raise CollectorsInvalid(
                f"{source}: line {number}: {line.strip()!r} has {len(cells)} columns; allowed: field, type, help"
            )
        name, kind, text_of_help = cells
        if kind == _LABEL:
            if name not in _PRESENT_LABELS:
                missing.append(name)
        elif kind not in (Kind.GAUGE, Kind.COUNTER):
            raise CollectorsInvalid(
                f"{source}: line {number}: type {kind!r} is not allowed; allowed: gauge, counter, label"
            )
        elif name not in _KNOWN:
            missing.append(name)
        else:
            series[name] = replace(_KNOWN[name], kind=Kind(kind), help=text_of_help)
    return Chosen(tuple(series.values()), tuple(dict.fromkeys(missing)))
