"""Sets keys of a JSON object and keeps every other byte: a file that somebody laid out stays laid out."""

from __future__ import annotations

import copy
import json
from json import JSONDecodeError
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any

from gpuplugin.errors import RuntimeConfigRefused

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_SPACE = " \t\r\n"


def read(path: Path, text: str) -> dict[str, Any]:
    """The file's object; an empty file is one without members. Raises RuntimeConfigRefused, with the line."""
    if not text.strip():
        return {}
    try:
        document = json.loads(text, object_pairs_hook=_without_twins)
    except JSONDecodeError as error:
        raise RuntimeConfigRefused(
            path, f"not JSON: {error.msg} (column {error.colno})", "Mend that line.", error.lineno
        ) from None
    except _Twins as twins:
        raise RuntimeConfigRefused(path, f"{twins} is there twice", "Take one out: only the last one counts.") from None
    if not isinstance(document, dict):
        raise RuntimeConfigRefused(path, "not a JSON object", "Put braces around its settings.")
    return document


def with_value(path: Path, text: str, keys: Sequence[str], value: object) -> str:
    """The text with one value set, at a path of keys whose objects are made where they are missing.

    Raises RuntimeConfigRefused where the text is no JSON object, or something else stands in an object's place.
    """
    document = read(path, text)
    wanted = copy.deepcopy(document)
    inner = wanted
    for depth, key in enumerate(keys[:-1]):
        inner = inner.setdefault(key, {})
        if not isinstance(inner, dict):
            shown = ".".join(keys[: depth + 1])
            raise RuntimeConfigRefused(path, f"{shown} is {inner!r}, allowed is an object", f"Mend {shown}.")
    inner[keys[-1]] = value
    after = _set(text, text.index("{"), keys, value) if text.strip() else json.dumps(wanted, indent=2) + "\n"
    if json.loads(after) != wanted:
        shown = f"{'.'.join(keys)}: {json.dumps(value)}"
        raise RuntimeConfigRefused(path, "it cannot be edited without changing something else", f"Set by hand {shown}")
    return after


class _Twins(Exception):
    pass


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        raise _Twins(next(name for name in names if names.count(name) > 1))
    return members


def _set(text: str, start: int, keys: Sequence[str], value: object) -> str:
    """Set a value below the object whose brace is at `start`."""
    spans = _members(text, start)
    key, rest = keys[0], keys[1:]
    if key in spans:
        begin, end = spans[key]
        return _set(text, begin, rest, value) if rest else f"{text[:begin]}{json.dumps(value)}{text[end:]}"
    for name in reversed(rest):
        value = {name: value}
    member = f"{json.dumps(key)}: "
    if not spans:
        line = _line_indent(text, start)
        step = "  "
        body = json.dumps(value, indent=step).replace("\n", f"\n{line}{step}")
        return f"{text[: start + 1]}\n{line}{step}{member}{body}\n{line}{text[start + 1 :].lstrip(_SPACE)}"
    last = max(end for _, end in spans.values())
    gap = text[start + 1 : _skip(text, start + 1)]
    if "\n" not in gap:
        return f"{text[:last]}, {member}{json.dumps(value)}{text[last:]}"
    indent = gap.rpartition("\n")[2]
    outer = _line_indent(text, start)
    step = indent.removeprefix(outer) or "  "
    body = json.dumps(value, indent=step).replace("\n", f"\n{indent}")
    return f"{text[:last]},\n{indent}{member}{body}{text[last:]}"


def _members(text: str, start: int) -> dict[str, tuple[int, int]]:
    """Where each member's value of the object begins and ends. The text is known to be JSON."""
    spans: dict[str, tuple[int, int]] = {}
    at = _skip(text, start + 1)
    while text[at] != "}":
        name, at = scanstring(text, at + 1)
        begin = _skip(text, _skip(text, at) + 1)
        _, end = json.JSONDecoder().raw_decode(text, begin)
        spans[name] = (begin, end)
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return spans


def _skip(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at


def _line_indent(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]
