"""From what was given to what is meant: walks a given tree along the settings' types and collects every problem.

msgspec would stop at the first error and knows neither lines nor near misses, so it only judges single values here.
"""

from __future__ import annotations

import math
import re
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec

from gpuplugin.config.given import Given, Node, child, clip
from gpuplugin.config.rules import Rule
from gpuplugin.config.settings import Config
from gpuplugin.errors import Problem

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False", ""})
_NUMBER = re.compile(r"[-+]?(\d{1,18}(\.\d{0,18})?|\.\d{1,18})", re.ASCII)


class _Refused:
    """The place of a value that has a problem and therefore counts as not given."""


_REFUSED = _Refused()


class Shape(NamedTuple):
    """A type taken apart: its core, the rule laid on it, its bounds, and whether nothing may stand there."""

    core: Any
    rule: Rule | None
    meta: msgspec.Meta | None
    optional: bool

    @property
    def section(self) -> type[msgspec.Struct] | None:
        """The struct that a mapping fills, if it is one."""
        return self.core if isinstance(self.core, type) and issubclass(self.core, msgspec.Struct) else None

    @property
    def item(self) -> Any | None:
        """The type of a list's entries, if it is a list."""
        return get_args(self.core)[0] if get_origin(self.core) is tuple else None

    @property
    def single(self) -> bool:
        """Whether one value alone may stand for a list of one."""
        return self.meta is not None and bool((self.meta.extra or {}).get("single"))

    @property
    def allowed(self) -> str:
        """What may stand there, in words."""
        if self.rule:
            return self.rule.allowed
        if self.section:
            return f"a mapping with the keys {', '.join(fields(self.section))}"
        if self.item:
            entries = shape(self.item).allowed.replace("a mapping", "mappings", 1)
            return f"one or more of {entries.removeprefix('one of ')}" if self.single else f"a list of {entries}"
        if get_origin(self.core) is Literal:
            names = get_args(self.core)
            return f"one of {', '.join(names)}" if len(names) > 1 else names[0]
        if self.core in (int, float):
            return self._numbers()
        return {bool: "true or false", str: "text"}.get(self.core, "a value")

    def _numbers(self) -> str:
        kind = "a whole number" if self.core is int else "a number"
        low, high = (self.meta.ge, self.meta.le) if self.meta else (None, None)
        if low is not None and low == high:
            return f"{low}"
        return f"{kind} from {low:g} to {high:g}" if low is not None and high is not None else kind


@cache
def shape(hint: Any) -> Shape:
    """Take a field's type apart."""
    rule = meta = None
    optional = False
    while True:
        origin = get_origin(hint)
        if origin is Annotated:
            hint, *extras = get_args(hint)
            rule = next((extra for extra in extras if isinstance(extra, Rule)), rule)
            meta = next((extra for extra in extras if isinstance(extra, msgspec.Meta)), meta)
        elif origin in (Union, UnionType) and NoneType in get_args(hint):
            optional = True
            hint = Union[tuple(part for part in get_args(hint) if part is not NoneType)]  # noqa: UP007 -- from a list
        else:
            return Shape(hint, rule, meta, optional)


@cache
def fields(section: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """A section's fields by their names in the file, in order."""
    return {field.encode_name: field for field in msgspec.structs.fields(section)}


@cache
def leaves(section: type[msgspec.Struct] = Config, parent: str = "") -> dict[str, Any]:
    """Every key that holds a value and not a mapping, with its type: what can be set on its own."""
    found: dict[str, Any] = {}
    for name, field in fields(section).items():
        key = child(parent, name)
        below = shape(field.type).section
        found |= leaves(below, key) if below else {key: field.type}
    return found


class Reading:
    """Collects what is `given` (by key, checked, in one form) and what is wrong."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.given: dict[str, Given] = {}

    def tree(self, root: Node) -> None:
        """Take in a whole document."""
        if root.value is not None:
            self._value(root, Config, "")

    def text(self, key: str, value: str | list[str], source: str) -> None:
        """Take in what environment or command line say for one key; a later source replaces an earlier one."""
        self._value(_from_text(value, shape(leaves()[key]), source), leaves()[key], key)

    def refuse(self, node: Node, key: str, allowed: str, advice: str = "") -> None:
        """Note a problem."""
        self.problems.append(Problem(node.source, key, clip(node.plain()), allowed, advice))

    def _value(self, node: Node, hint: Any, key: str) -> Any:
        expected = shape(hint)
        if expected.section:
            return self._mapping(node, expected.section, key)
        before = len(self.problems)
        result = self._list(node, expected, key) if expected.item else self._single(node, expected, hint, key)
        if key in leaves() and len(self.problems) == before:
            self.given[key] = Given(result, node.source)
        return result

    def _mapping(self, node: Node, section: type[msgspec.Struct], key: str) -> Any:
        if not isinstance(node.value, dict):
            self.refuse(node, key, shape(section).allowed)
            return _REFUSED
        known = fields(section)
        result = {}
        for name, value in node.value.items():
            if name not in known:
                self._unknown(value, name, key, tuple(known))
            elif value.value is not None:
                result[name] = self._value(value, known[name].type, child(key, name))
        for name, field in known.items():
            if field.required and (name not in node.value or node.value[name].value is None):
                allowed = shape(field.type).allowed
                self.problems.append(Problem(node.source, child(key, name), None, allowed, "It must be given"))
        return result

    def _list(self, node: Node, expected: Shape, key: str) -> Any:
        entries = (node,) if expected.single and isinstance(node.value, str) else node.value
        if not isinstance(entries, tuple):
            self.refuse(node, key, expected.allowed)
            return _REFUSED
        if not entries and expected.meta and expected.meta.min_length:
            self.refuse(node, key, expected.allowed)
        result = []
        for index, entry in enumerate(entries):
            value = self._value(entry, expected.item, key if entry is node else f"{key}[{index}]")
            if value is not _REFUSED and not isinstance(value, dict) and value in result:
                self.refuse(entry, f"{key}[{index}]", "each value once")
            result.append(value)
        return result

    def _single(self, node: Node, expected: Shape, hint: Any, key: str) -> Any:
        value = node.plain()
        try:
            if (isinstance(value, str) and not value.isprintable()) or _not_finite(value):
                raise ValueError("")  # noqa: TRY301 -- one way out for every refusal
            result = msgspec.to_builtins(msgspec.convert(value, hint))
            return expected.rule.read(result) if expected.rule and expected.rule.read else result
        except (ValueError, OverflowError) as error:
            advice = "" if isinstance(error, msgspec.ValidationError) else str(error)
            self.refuse(node, key, expected.allowed, advice)
            return _REFUSED

    def _unknown(self, node: Node, name: str, parent: str, known: tuple[str, ...]) -> None:
        near = nearest(name, known)
        where = "" if near else _elsewhere(name)
        advice = f"Did you mean {near or where}?" if near or where else ""
        allowed = f"the keys {', '.join(known)}"
        self.problems.append(Problem(node.source, parent, clip(name), allowed, advice))


def _not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _elsewhere(name: str) -> str:
    """Find the one key of this name somewhere else in the file."""
    found = [key for key in leaves() if key.rpartition(".")[2].lower() == name.lower()]
    return found[0] if len(found) == 1 else ""


def nearest(name: str, known: tuple[str, ...]) -> str | None:
    """Find the known name that was probably meant."""
    from difflib import get_close_matches  # noqa: PLC0415 -- only when something is wrong

    lower = {candidate.lower(): candidate for candidate in known}
    near = get_close_matches(name.lower()[:100], lower, n=1, cutoff=0.7)
    return lower[near[0]] if near else None


def _from_text(text: str | list[str], expected: Shape, source: str) -> Node:
    """Read a text as the reference's flags do; what cannot be read stays text, and is refused as such later."""
    if expected.item:
        texts = [part.strip() for whole in ([text] if isinstance(text, str) else text) for part in whole.split(",")]
        item = shape(expected.item)
        return Node(tuple(_from_text(part, item, source) for part in texts if part), source)
    last = text if isinstance(text, str) else text[-1]
    if expected.core is bool:
        return Node(True if last in _TRUE else False if last in _FALSE else last, source)
    if expected.core in (int, float) and _NUMBER.fullmatch(last):
        return Node(float(last) if "." in last else int(last), source)
    return Node(last, source)
