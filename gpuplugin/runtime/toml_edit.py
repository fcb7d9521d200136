"""Sets keys in a TOML file and keeps everything else: comments, order, quoting, line ends.

A table that the file does not have is appended as text, which cannot touch what is there. One that it has is edited by
tomlkit.
"""

from __future__ import annotations

import copy
import json
import re
import tomllib
from difflib import unified_diff
from typing import TYPE_CHECKING, Any

from gpuplugin.errors import RuntimeConfigRefused
from gpuplugin.runtime.document import Value, plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def read(path: Path, text: str) -> dict[str, Any]:
    """The file's content. Raises RuntimeConfigRefused, with the line."""
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        number = int(line[1]) if line else len(text.splitlines())
        raise RuntimeConfigRefused(
            path, f"not TOML: {error}", "Mend the file; the runtime cannot read it either.", number
        ) from None


def section(document: Mapping[str, Any], table: Sequence[str]) -> dict[str, Any] | None:
    """The table at that path, None where there is none."""
    found: Any = document
    for name in table:
        if not isinstance(found, dict) or name not in found:
            return None
        found = found[name]
    return found if isinstance(found, dict) else None


def with_values(path: Path, text: str, table: Sequence[str], values: Mapping[str, Value]) -> str:
    """The text with these keys set in that table, which is made where it is missing.

    Raises RuntimeConfigRefused where the file is no TOML, or cannot be edited without touching something else.
    """
    wanted = copy.deepcopy(read(path, text))
    inner = wanted
    for depth, name in enumerate(table, 1):
        inner = inner.setdefault(name, {})
        if not isinstance(inner, dict):
            raise RuntimeConfigRefused(
                path, f"[{_shown(table[:depth])}] is no table", f"Make it one, or set by hand {_lines(table, values)}"
            )
    inner.update(plain(values))
    windows = "\r\n" in text
    unix = text.replace("\r\n", "\n") if windows else text
    for candidate in (_appended(unix, table, values), _edited(unix, table, values)):
        if candidate is None:
            continue
        after = candidate.replace("\n", "\r\n") if windows else candidate
        if _parsed(after) == wanted and _keeps(unix, candidate, values):
            return after
    raise RuntimeConfigRefused(
        path,
        "it is written in a way that cannot be edited without changing other lines",
        f"Set by hand {_lines(table, values)}",
    )


def new_table(table: Sequence[str], values: Mapping[str, Value]) -> str:
    """A table as text, with these keys."""
    return "\n".join([f"[{_shown(table)}]", *(f"{key} = {_toml(value)}" for key, value in values.items()), ""])


def _shown(table: Sequence[str]) -> str:
    return ".".join(name if _BARE.fullmatch(name) else json.dumps(name) for name in table)


def _lines(table: Sequence[str], values: Mapping[str, Value]) -> str:
    return f"[{_shown(table)}]: " + "; ".join(f"{key} = {_toml(value)}" for key, value in values.items())


def _appended(text: str, table: Sequence[str], values: Mapping[str, Value]) -> str | None:
    if not table:
        return None
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    candidate = f"{text}{gap}{new_table(table, values)}"
    return candidate if _parsed(candidate) is not None else None


def _edited(text: str, table: Sequence[str], values: Mapping[str, Value]) -> str | None:
    import tomlkit  # noqa: PLC0415 -- checks that change nothing need not pay for it
    from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415

    try:
        document = tomlkit.parse(text)
        found: Any = document
        for name in table:
            found = found[name]
        for key, value in values.items():
            if isinstance(value, tuple) and key in found:
                for one in value[len(found[key]) :]:
                    found[key].append(one)
            elif key in found:
                found[key] = plain({key: value})[key]
            else:
                indent = _indent(found)
                fresh = tomlkit.item(plain({key: value})[key])
                found.append(key, fresh)
                fresh.trivia.indent = indent
        return tomlkit.dumps(document)
    except (TOMLKitError, KeyError, TypeError, AttributeError):
        return None


def _indent(table: Any) -> str:
    """The white space before the keys that the table has; none in an inline table, which writes its own."""
    container = getattr(table, "value", table)
    for key, item in getattr(container, "body", ()):
        if key is not None and hasattr(table, "is_super_table") and not hasattr(item, "is_super_table"):
            return str(item.trivia.indent)
    return ""


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError:
        return None


def _keeps(before: str, after: str, values: Mapping[str, Value]) -> bool:
    """Whether the only lines that are gone are those of our keys, or are still there with our keys put in."""
    changes = list(unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))[2:]
    gone = [line[1:] for line in changes if line.startswith("-")]
    come = [line[1:] for line in changes if line.startswith("+")]
    return all(any(key in line for key in values) or any(_is_within(line, other) for other in come) for line in gone)


def _is_within(line: str, other: str) -> bool:
    """Whether `other` has all characters of `line`, in their order."""
    rest = iter(other)
    return all(character in rest for character in line)


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"[{', '.join(json.dumps(one, ensure_ascii=False) for one in value)}]"
