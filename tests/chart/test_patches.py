"""The patches of daemonset.yaml in the docs, for those without helm: what comes of them is what the chart renders."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from tests.chart.test_chart import CHECKOUT, Render, helm, objects, render, run

__all__ = ["helm", "render", "run"]
pytestmark = pytest.mark.go

CLAIMS = json.dumps([{"name": "GPUPLUGIN_DRA_GPUS", "value": "all"}])
MERGE_KEYS = ("mountPath", "name")
"""By which lists of objects in a pod are merged by a strategic merge patch: mounts by path, all else here by name."""


def patch(page: str, name: str) -> Any:
    found = re.search(rf"<!-- patch: {name} -->\n```yaml\n(.*?)```", (CHECKOUT / "docs" / page).read_text(), re.DOTALL)
    assert found is not None
    return yaml.safe_load(found[1])


def key(value: dict[str, Any]) -> str:
    return str(next(value[name] for name in MERGE_KEYS if name in value))


def merged(old: Any, new: Any) -> Any:
    """As the API server does it with a strategic merge patch that takes nothing away."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {name: merged(old.get(name), new.get(name)) if name in new else old[name] for name in {**old, **new}}
    if isinstance(old, list) and isinstance(new, list):
        before, after = ({key(each): each for each in every} for every in (old, new))
        return [
            merged(before.get(name), after[name]) if name in after else before[name] for name in {**before, **after}
        ]
    return new


def in_order(value: Any) -> Any:
    """The same with lists of objects sorted: the order of mounts, volumes and variables means nothing here."""
    if isinstance(value, dict):
        return {name: in_order(each) for name, each in value.items()}
    if isinstance(value, list) and all(isinstance(each, dict) and {*MERGE_KEYS} & each.keys() for each in value):
        return sorted(map(in_order, value), key=key)
    return value


def patched(page: str, name: str) -> Any:
    plain = objects((CHECKOUT / "daemonset.yaml").read_text())["DaemonSet"]
    return in_order(merged(plain, patch(page, name)))


def test_claims_without_helm_are_those_of_the_chart(render: Render):
    text = render("--set", "claims.enabled=true", f"--set-json=env={CLAIMS}")
    assert patched("dra.md", "claims") == in_order(objects(text)["DaemonSet"])


def test_a_configuration_file_without_helm_is_that_of_the_chart(render: Render):
    found = objects(render("--set", "config.rescanSeconds=9"))
    assert list(found["ConfigMap"]["data"]) == ["config.yaml"]
    found["DaemonSet"]["spec"]["template"]["metadata"]["annotations"].pop("gpuplugin.io/config")
    assert patched("install.md", "configuration") == in_order(found["DaemonSet"])
