"""One YAML file as a tree in which every value knows where it stands, so that errors and sources can say it.

PyYAML only splits the text into nodes here. What the nodes mean is decided below, because PyYAML and the Go library of
the reference differ (``0:1`` is text there and 1 in PyYAML; dates are text), duplicate keys must be an error, and a
file of a few lines must not unfold into millions of values.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import yaml

from gpuplugin.config.given import Node, child, clip, printable
from gpuplugin.errors import ConfigError, Problem

if TYPE_CHECKING:
    from pathlib import Path

    from gpuplugin.config.given import Scalar

BYTES_MAX = 1 << 20
VALUES_MAX = 20_000
"""With every alias unfolded."""
DEPTH_MAX = 32
_INTEGER_BITS = 64

_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = {
    _TAG + name for name in ("map", "seq", "str", "null", "bool", "int", "float", "timestamp", "value", "merge")
}
"""What PyYAML gives to values that carry no tag in the text."""
_MERGE = "<<"
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_WORDS = {
    spelling: meaning
    for meaning, words in ((True, ("y", "yes", "true", "on")), (False, ("n", "no", "false", "off")))
    for word in words
    for spelling in (word, word.capitalize(), word.upper())
}
_INTEGER = re.compile(r"[-+]?(0b[01_]+|0o?[0-7_]*|0x[0-9a-fA-F_]+|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_BASES = {"0b": 2, "0x": 16, "0o": 8}


@dataclass(frozen=True, slots=True)
class Document:
    """A file's tree, or None where the file holds nothing, and what is wrong with the file as YAML."""

    root: Node | None
    problems: tuple[Problem, ...]


def read(path: Path) -> Document:
    """Read a configuration file. Whatever is wrong with it is in `problems`; nothing is raised."""
    name = printable(str(path))
    try:
        return parse(_text(path, name), name)
    except ConfigError as refused:
        return Document(None, refused.problems)


def parse(text: str, name: str) -> Document:
    """As `read`, of a text; `name` is what its problems call it."""
    try:
        nodes = _compose(text, name)
    except ConfigError as refused:
        return Document(None, refused.problems)
    if not nodes:
        return Document(None, ())
    reading = _Reading(name)
    try:
        return Document(reading.node(nodes[0], ""), tuple(reading.problems))
    except ConfigError as refused:
        return Document(None, (*reading.problems, *refused.problems))


def _text(path: Path, name: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise _refusal(name, clip(name), "a YAML file that can be read", f"It cannot: {why}") from error
    if len(content) > BYTES_MAX:
        raise _refusal(name, f"more than {BYTES_MAX} bytes", f"at most {BYTES_MAX} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte 0x{content[error.start]:02x} at offset {error.start}"
        raise _refusal(name, found, "UTF-8 text", "Save the file as UTF-8") from error


def _compose(text: str, name: str) -> list[yaml.Node]:
    try:
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where, column = (f"{name}:{mark.line + 1}", f"column {mark.column + 1}") if mark else (name, "the text")
        raise _refusal(where, column, "valid YAML", str(error.problem).capitalize()) from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two for escapes beyond Unicode
        raise _refusal(name, clip(str(error)), "valid YAML") from error
    except RecursionError as error:
        raise ConfigError([_too_deep(name, "")]) from error
    if len(nodes) > 1:
        where = f"{name}:{nodes[1].start_mark.line + 1}"
        raise _refusal(where, f"{len(nodes)} documents", "one document in a file")
    return nodes


def _refusal(where: str, found: str, allowed: str, advice: str = "") -> ConfigError:
    return ConfigError([Problem(where, "", found, allowed, advice)])


def _too_deep(where: str, key: str) -> Problem:
    return Problem(where, key, f"more than {DEPTH_MAX} levels", f"at most {DEPTH_MAX} levels, one inside the other")


class _Reading:
    """One pass over the nodes of one document. Raises ConfigError where going on makes no sense."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.problems: list[Problem] = []
        self._values = 0

    def node(self, node: yaml.Node, key: str, depth: int = 1) -> Node:
        source = self._source(node)
        self._values += 1
        if self._values > VALUES_MAX:
            found = f"more than {VALUES_MAX} values with every alias unfolded"
            raise _refusal(self.name, found, f"at most {VALUES_MAX} values")
        if depth > DEPTH_MAX:
            raise ConfigError([_too_deep(source, clip(key))])
        if node.tag not in _PLAIN_TAGS:
            self.problems.append(Problem(source, key, clip(node.tag), "values without a tag of their own"))
            return Node(None, source)
        if isinstance(node, yaml.MappingNode):
            return Node(self._mapping(node, key, depth), source)
        if isinstance(node, yaml.SequenceNode):
            items = enumerate(node.value)
            return Node(tuple(self.node(item, f"{key}[{index}]", depth + 1) for index, item in items), source)
        return Node(self._scalar(node), source)

    def _source(self, node: yaml.Node) -> str:
        return f"{self.name}:{node.start_mark.line + 1}"

    def _mapping(self, node: yaml.MappingNode, key: str, depth: int) -> dict[str, Node]:
        found: dict[str, Node] = {}
        merged: dict[str, Node] = {}  # of several that are merged in, the first counts
        for name_node, value_node in node.value:
            source = self._source(name_node)
            if self._is_merge(name_node):
                for part in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                    merged = {**self._merged(part, key, source, depth), **merged}
                continue
            name = self._scalar(name_node) if isinstance(name_node, yaml.ScalarNode) else None
            if not isinstance(name, str):
                text = clip(name_node.value) if isinstance(name_node, yaml.ScalarNode) else "a list or mapping"
                self.problems.append(Problem(source, key, text, "keys that are text", "Put the key in quotes"))
                continue
            path = child(key, name)
            value = replace(self.node(value_node, path, depth + 1), source=source)
            if name in found:
                first = found[name].source.rpartition(":")[2]
                allowed = "each key once"
                self.problems.append(Problem(source, key, clip(name), allowed, f"It already stands on line {first}"))
            else:
                found[name] = value
        return {**merged, **found}

    @staticmethod
    def _is_merge(node: yaml.Node) -> bool:
        return isinstance(node, yaml.ScalarNode) and node.style is None and node.value == _MERGE

    def _merged(self, node: yaml.Node, key: str, source: str, depth: int) -> dict[str, Node]:
        value = self.node(node, key, depth + 1).value
        if isinstance(value, dict):
            return value
        self.problems.append(Problem(source, child(key, _MERGE), clip(node.value), "a mapping, or a list of them"))
        return {}

    @staticmethod
    def _scalar(node: yaml.Node) -> Scalar:
        text = str(node.value)
        explicit = node.tag == f"{_TAG}str" or (isinstance(node, yaml.ScalarNode) and node.style is not None)
        return text if explicit else plain_scalar(text)


def plain_scalar(text: str) -> Scalar:
    """What an unquoted YAML scalar means: null, boolean, number or text. Numbers beyond 64 bits stay text."""
    if text in _NULLS:
        return None
    if text in _WORDS:
        return _WORDS[text]
    digits = text.replace("_", "")
    if _INTEGER.fullmatch(text) and len(digits) <= _INTEGER_BITS + len("-0b"):
        unsigned = digits.lstrip("+-")
        octal = len(unsigned) > 1 and unsigned[0] == "0" and unsigned[1].isdigit()
        base = 8 if octal else _BASES.get(unsigned[:2], 10)
        number = _integer(unsigned, base)
        if number is not None and number.bit_length() <= _INTEGER_BITS:
            return -number if digits.startswith("-") else number
        return text
    if not text.startswith("_") and _FLOAT.fullmatch(digits) and math.isfinite(decimal := float(digits)):
        return decimal
    return text


def _integer(unsigned: str, base: int) -> int | None:
    try:
        return int(unsigned, base)
    except ValueError:
        return None
