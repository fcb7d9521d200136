"""Prometheus's text format, version 0.0.4: what a scrape gets."""

from __future__ import annotations

import gzip
import re
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gpuplugin.metrics.series import Family

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_FAST: Final = 1
"""gzip's level: the labels repeat so much that more effort gains little."""

MOST_KEPT: Final = 2048
"""Sets of labels; a few hundred bytes each."""
_SPECIAL: Final = re.compile(r'[\\"\n]')
_ESCAPED: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
_HELP: Final = str.maketrans({"\\": "\\\\", "\n": "\\n"})


class Exposition:
    """A snapshot as text, written when it is first asked for and then kept. families: gives what it is made of."""

    def __init__(self, families: Callable[[], Iterable[Family]]) -> None:
        self._families = families

    @cached_property
    def plain(self) -> bytes:
        """The text."""
        return "".join(_lines(self._families())).encode()

    @cached_property
    def gzipped(self) -> bytes:
        """The same, compressed: a tenth of it or less."""
        return gzip.compress(self.plain, _FAST, mtime=0)


def labels(pairs: Mapping[str, str]) -> str:
    """Render a set of labels. Empty values are left out: to Prometheus they are the same as none."""
    return _rendered(tuple(pairs.items()))


@lru_cache(maxsize=MOST_KEPT)
def _rendered(pairs: tuple[tuple[str, str], ...]) -> str:
    """Most sets of labels are the same in every snapshot, and rendering them is most of the work of one."""
    inside = [f'{name}="{_escaped(value)}"' for name, value in pairs if value]
    return f"{{{','.join(inside)}}}" if inside else ""


def _escaped(value: str) -> str:
    return _SPECIAL.sub(lambda found: _ESCAPED[found[0]], value) if _SPECIAL.search(value) else value


def _lines(families: Iterable[Family]) -> Iterator[str]:
    """Families without a value are left out."""
    for series, samples in families:
        if samples:
            name = series.name
            yield f"# HELP {name} {series.help.translate(_HELP)}\n# TYPE {name} {series.kind}\n"
            yield "".join([f"{name}{suffix}{shown} {_number(value)}\n" for shown, value, suffix in samples])


def _number(value: float) -> str:
    """As Go reads it; ``inf`` and ``nan`` are what it takes as well."""
    return str(int(value)) if value == value // 1 else repr(value)
