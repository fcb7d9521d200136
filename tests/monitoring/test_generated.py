"""Dashboard, rules and documentation are what the table of series makes of them, and ask only for what there is."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpuplugin.metrics.registry import REGISTRY
from tests.metrics.promtool import promtool

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "monitoring" / "gpuplugin-dashboard.json"
RULES = ROOT / "monitoring" / "gpuplugin-rules.yaml"
RULE_GROUPS = yaml.safe_load(RULES.read_text())["groups"]
EVERY_RULE = [rule for group in RULE_GROUPS for rule in group["rules"]]
RECORDED = {rule["record"] for rule in EVERY_RULE if "record" in rule}
KNOWN = {name: set(series.labels) for series in REGISTRY.values() for name in series.sample_names}
ADDED_BY_PROMETHEUS = {"instance", "job", "le"}
SELECTED = re.compile(r"\b([a-zA-Z_][a-zA-Z0-9_:]*)\s*\{([^}]*)\}")
GROUPING = re.compile(r"\b(?:by|on|ignoring|group_left|group_right|without)\s*\([^)]*\)")
WORDS = {"and", "or", "unless", "bool", "offset", "by", "on", "sum", "avg", "max", "min", "count"}


def panels():
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def queries():
    shown = {f"panel {panel['title']} {one['refId']}": one["expr"] for panel in panels() for one in panel["targets"]}
    return {**shown, **{rule.get("alert") or rule["record"]: rule["expr"] for rule in EVERY_RULE}}


def names(query):
    """Give the names of series in a query: words that are no function, no label and no keyword."""
    without = re.sub(r'"[^"]*"', '""', query)
    without = GROUPING.sub(" ", re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", without))
    found = re.findall(r"(?<![\w:.])[a-zA-Z_][\w:]*(?!\w*\s*\()", without)
    return {name for name in found if name not in WORDS and not re.fullmatch(r"\d*[smhd]|e\d+", name)}


def test_the_files_are_what_the_script_writes(tmp_path):
    command = [sys.executable, ROOT / "monitoring" / "generate.py", "--out", tmp_path]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    for path in ("monitoring/gpuplugin-dashboard.json", "monitoring/gpuplugin-rules.yaml", "docs/metrics.md"):
        assert (tmp_path / path).read_text() == (ROOT / path).read_text(), f"run monitoring/generate.py: {path}"


def test_names_of_series_are_found_in_queries():
    query = 'sum by (a) (rate(x_total{b="c d"}[5m])) / on (e) group_left (f) max(y:z) > 1e9 or up offset 10m'
    assert names(query) == {"x_total", "y:z", "up"}


@pytest.mark.parametrize(("where", "query"), queries().items(), ids=lambda value: value[:40])
def test_queries_ask_for_series_and_labels_that_there_are(where, query):
    found = names(query)
    assert found
    assert found <= KNOWN.keys() | RECORDED | {"up"}, where
    for name, selector in SELECTED.findall(query):
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
        assert labels <= KNOWN.get(name, set()) | ADDED_BY_PROMETHEUS, f"{where}: {name}"


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_legends_name_labels_that_there_are(panel):
    for target in panel["targets"]:
        labels = set().union(*(KNOWN.get(name, {"namespace", "pod"}) for name in names(target["expr"])))
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels | ADDED_BY_PROMETHEUS


def test_panels_have_a_place_of_their_own_each():
    places = [panel["gridPos"] for panel in json.loads(DASHBOARD.read_text())["panels"]]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    ids = [panel["id"] for panel in json.loads(DASHBOARD.read_text())["panels"]]
    assert len(ids) == len(set(ids))


def test_every_series_of_ours_is_on_the_dashboard_or_in_a_rule():
    asked = set().union(*map(names, queries().values()))
    ours = {name for name, series in REGISTRY.items() if name.startswith("gpuplugin_")}
    unused = {name for name in ours if not asked & set(REGISTRY[name].sample_names)}
    assert unused == set()


def test_promtool_takes_the_rules_and_each_query_of_the_dashboard(tmp_path):
    shown = tmp_path / "panels.yaml"
    rules = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$__rate_interval", "5m", query)}
        for number, query in enumerate(queries().values())
    ]
    shown.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    for path in (RULES, shown):
        status, said = promtool("check", "rules", str(path))
        assert status == 0, said


def test_each_alert_says_what_to_do():
    for rule in (rule for rule in EVERY_RULE if "alert" in rule):
        assert rule["annotations"]["runbook"].endswith(".")
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
