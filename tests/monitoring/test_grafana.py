"""The dashboard, read by the strict types that Grafana publishes for programs that write dashboards."""

from __future__ import annotations

import copy
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gocheck.build import GoMissingError, build
from tests.monitoring.test_generated import DASHBOARD, ROOT

pytestmark = pytest.mark.go
SHIPPED = json.loads(DASHBOARD.read_text())
Judge = Callable[[Any], dict[str, Any]]


@pytest.fixture(scope="module")
def judge() -> Judge:
    try:
        binary: Path = build(ROOT / "tests/gocheck/grafana")
    except GoMissingError as error:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(str(error))
        pytest.skip(f"the dashboard is not read by Grafana's types: {error}")

    def call(dashboard: Any) -> dict[str, Any]:
        ran = subprocess.run([binary], input=json.dumps(dashboard), capture_output=True, text=True, check=True)
        answer: dict[str, Any] = json.loads(ran.stdout)
        return answer

    return call


def test_grafanas_types_take_all_of_it(judge: Judge):
    answer = judge(SHIPPED)
    assert answer["errors"] == []
    kinds = [panel["type"] for panel in SHIPPED["panels"] if panel["type"] != "row"]
    assert answer["panels"] == {kind: kinds.count(kind) for kind in set(kinds)}


def panel(dashboard: dict[str, Any], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in dashboard["panels"] if one["type"] == kind)
    return found


def broken(how: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    made = copy.deepcopy(SHIPPED)
    how(made)
    return made


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda board: board.update(refesh="30s"), "refesh"),
        (lambda board: board.update(tags="gpu"), "tags"),
        (lambda board: board["templating"]["list"][1].update(refresh="often"), "templating"),
        (lambda board: panel(board, "timeseries")["options"].update(legends={}), "legends"),
        (lambda board: panel(board, "timeseries")["gridPos"].pop("w"), "gridPos"),
        (lambda board: panel(board, "stat")["options"].pop("textMode"), "textMode"),
        (lambda board: panel(board, "stat")["fieldConfig"]["defaults"].update(unit="wat"), "wat"),
        (lambda board: panel(board, "table").update(type="tabel"), "tabel"),
        (lambda board: panel(board, "table")["targets"][0].update(experssion="up"), "experssion"),
        (lambda board: panel(board, "table")["targets"][0].update(instant="yes"), "instant"),
    ],
)
def test_what_grafana_does_not_know_is_told(judge: Judge, how: Callable[[dict[str, Any]], object], said: str):
    errors = judge(broken(how))["errors"]
    assert any(said in error for error in errors), errors
