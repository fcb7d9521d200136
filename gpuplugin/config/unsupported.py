"""What can be said but not yet done: refused in plain words, so that no setting is ever silently without effect.

Whoever builds one of these deletes its row. A value that asks for nothing (the row's `fine`) is accepted, so files of
the reference that spell out defaults load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gpuplugin.config.given import clip
from gpuplugin.config.rules import seconds
from gpuplugin.config.settings import GfdFlags
from gpuplugin.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpuplugin.config.given import Given

_VERSION = "not supported by this version of gpuplugin"
_NOTHING = "leaving it out"


class Unsupported(NamedTuple):
    """`fine`: whether a (checked) value asks for nothing · `allowed`: those values in words · `what`: what it needs."""

    key: str
    fine: Callable[[Any], bool]
    allowed: str
    what: str


def _empty(key: str, what: str) -> Unsupported:
    return Unsupported(key, lambda value: not value, _NOTHING, what)


UNSUPPORTED: tuple[Unsupported, ...] = (
    Unsupported(
        "flags.deviceDiscoveryStrategy",
        lambda value: value in ("auto", "nvml"),
        "auto, nvml",
        "Finding devices without NVML is",
    ),
    Unsupported(
        "flags.gfd.sleepInterval",
        lambda value: seconds(value) == seconds(GfdFlags().sleep_interval),
        f"{GfdFlags().sleep_interval}",
        "Labels are written when they change, found out every rescanSeconds; another rhythm for them is",
    ),
    _empty("cdi.featureFlags", "Switching parts of the CDI specification is"),
)


def problems(given: Mapping[str, Given]) -> Iterator[Problem]:
    """Say what of the given settings this version cannot do."""
    for row in UNSUPPORTED:
        found = given.get(row.key)
        if found is not None and not row.fine(found.value):
            yield Problem(found.source, row.key, clip(found.value), row.allowed, f"{row.what} {_VERSION}")
