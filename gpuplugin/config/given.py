"""A value as somebody gave it, with where it came from: the one form that all sources are brought to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeVar

Scalar = str | int | float | bool | None

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.<-]{1,64}", re.ASCII)
_SHOWN = 100

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Node:
    """A value not yet checked. `source`: ``file.yaml:12``, ``environment NAME`` or ``flag --name``."""

    value: Scalar | tuple[Node, ...] | dict[str, Node]
    source: str

    def plain(self) -> object:
        """Give the value with everything in it, without sources."""
        if isinstance(self.value, dict):
            return {name: node.plain() for name, node in self.value.items()}
        if isinstance(self.value, tuple):
            return [node.plain() for node in self.value]
        return self.value


@dataclass(frozen=True, slots=True)
class Given:
    """A value that has been checked and brought to its one form (None, scalars, lists and dicts), with its source."""

    value: object
    source: str


def child(parent: str, name: str) -> str:
    """Give the path of a key below another; a key that would not print well stands in brackets."""
    if not _PLAIN_KEY.fullmatch(name):
        return f"{parent}[{clip(name)!a}]"
    return f"{parent}.{name}" if parent else name


def printable(text: str) -> str:
    """Give a name itself if it prints on one line, else escaped."""
    return text if text.isprintable() else ascii(text)


def clip(value: _T) -> _T | str:
    """Give the value itself if it is short enough for an error's line, else its beginning as text."""
    text = value if isinstance(value, str) else repr(value)
    return value if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
