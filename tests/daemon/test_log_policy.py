"""docs/logging.md, as far as it can be read off the source."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("gpuplugin", "cdi", "dra")
SILENT = ("gpuplugin/model", "gpuplugin/config", "gpuplugin/plan", "gpuplugin/topology", "gpuplugin/labels", "cdi")
"""Rooms that only compute: what they find out is told by those who ask them."""
LEVELS = {"debug", "info", "warning", "error", "exception"}


def sources():
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "/pb/" not in path.as_posix():
                yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


SOURCES = dict(sources())


def calls():
    """Every line that can be written: file and line, level, event, fields."""
    for name, tree in SOURCES.items():
        for node in ast.walk(tree):
            function = getattr(node, "func", None)
            if isinstance(node, ast.Call) and isinstance(function, ast.Attribute):
                logger = function.value
                if isinstance(logger, ast.Name) and logger.id in {"log", "tell"}:
                    yield pytest.param(node, function.attr, id=f"{name}:{node.lineno}")


CALLS = list(calls())


def fields(node):
    return {keyword.arg for keyword in node.keywords}


def test_there_is_something_to_hold():
    assert len(CALLS) > 50


@pytest.mark.parametrize(("node", "level"), CALLS)
def test_a_line_has_one_of_the_levels_and_a_constant_event_and_the_rest_in_fields(node, level):
    assert level in LEVELS
    (event,) = node.args
    from_table = isinstance(event, ast.Subscript) and isinstance(event.value, ast.Name) and event.value.id.isupper()
    assert from_table or (isinstance(event, ast.Constant) and isinstance(event.value, str))
    if not from_table:
        assert event.value == event.value.strip().rstrip(".")
        assert len(event.value) <= 100


@pytest.mark.parametrize(("node", "level"), [param for param in CALLS if param.values[1] in {"warning", "error"}])
def test_what_is_amiss_says_why_or_of_what(node, level):
    assert fields(node)


@pytest.mark.parametrize(("node", "level"), [param for param in CALLS if param.values[1] == "error"])
def test_an_error_names_its_reason(node, level):
    named = fields(node)
    assert "reason" in named or "uid" in named


def test_an_event_has_one_level():
    levels = defaultdict(set)
    for param in CALLS:
        node, level = param.values
        if isinstance(node.args[0], ast.Constant):
            levels[node.args[0].value].add("error" if level == "exception" else level)
    several = {event: found for event, found in levels.items() if len(found) > 1}
    allowed = {"refused": {"warning", "error"}}  # the second is a fault of ours, with its trace
    assert several == {event: found for event, found in allowed.items() if event in several}


@pytest.mark.parametrize("room", SILENT)
def test_rooms_that_compute_say_nothing(room):
    for name, tree in SOURCES.items():
        if name.startswith(f"{room}/"):
            imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
            assert not imported & {"structlog", "logging"}, name


def test_the_document_has_the_levels_that_are_used():
    document = (ROOT / "docs" / "logging.md").read_text()
    for level in LEVELS - {"exception"}:
        assert f"| `{level}` |" in document
