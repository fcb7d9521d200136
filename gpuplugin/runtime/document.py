"""One configuration file as text, and changes to it that leave every other byte alone.

The postcondition is checked, not trusted: what comes out, read by an independent parser, is what went in with our keys
set, and no line is gone but those of our keys. Where that cannot be had the file is refused.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuplugin.errors import RuntimeConfigRefused

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Value = bool | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """A configuration file: its path on the host, and its text, None where there is no such file."""

    path: Path
    text: str | None


@dataclass(frozen=True, slots=True)
class Edit:
    """A file to be written: `before` is None where it is new; `reasons` say what changes, one sentence each."""

    path: Path
    before: str | None
    after: str
    reasons: tuple[str, ...]

    def diff(self) -> str:
        """The change as `diff -u` shows it."""
        lines = difflib.unified_diff(
            (self.before or "").splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            str(self.path) if self.before is not None else "/dev/null",
            str(self.path),
        )
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a runtime's files say, and what they should.

    enabled: whether they switch CDI on, the release's default included; None where that depends on the release, which
    is not known · folders: where they make the runtime look for CDI documents · edits: what to change, empty when all
    is as it should be · notes: what else should be known.
    """

    enabled: bool | None
    folders: tuple[str, ...]
    edits: tuple[Edit, ...]
    notes: tuple[str, ...] = ()


def plain(values: Mapping[str, Value]) -> dict[str, Any]:
    """Values as a parser gives them."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def read_bool(path: Path, text: str, table: Mapping[str, Any], key: str) -> bool | None:
    """A setting that is true or false, None where it is not set."""
    value = table.get(key)
    if value is None or isinstance(value, bool):
        return value
    raise _wrong_type(path, text, key, value, "true or false")


def read_folders(path: Path, text: str, table: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    """A setting that is a list of folders, None where it is not set."""
    value = table.get(key)
    if value is None:
        return None
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    raise _wrong_type(path, text, key, value, "a list of folders")


def line_of(text: str, key: str) -> int | None:
    """The first line that sets a key, from 1."""
    return next((number for number, line in enumerate(text.splitlines(), 1) if key in line.partition("#")[0]), None)


def _wrong_type(path: Path, text: str, key: str, value: object, allowed: str) -> RuntimeConfigRefused:
    return RuntimeConfigRefused(
        path, f"{key} is {value!r}, allowed is {allowed}", "Mend that line, then run this again.", line_of(text, key)
    )
