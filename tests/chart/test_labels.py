"""What labels bring into the manifest, and that nothing of it is there without them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.chart.test_chart import Render, container, helm, objects, render, run

__all__ = ["helm", "render", "run"]
pytestmark = pytest.mark.go


def rules(text: str) -> dict[str, list[str]]:
    role = objects(text).get("ClusterRole", {"rules": []})
    return {f"{rule['resources'][0]}.{rule['apiGroups'][0]}".rstrip("."): rule["verbs"] for rule in role["rules"]}


def mounts(text: str) -> dict[str, Any]:
    return {mount["name"]: mount["mountPath"] for mount in container(text)["volumeMounts"]}


def environment(text: str) -> dict[str, Any]:
    return {entry["name"]: entry for entry in container(text)["env"]}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ((), {}),
        (("config.labels.owner=nfd-file",), {}),
        (("config.labels.owner=node",), {"nodes": ["get", "patch"]}),
        (("config.labels.owner=nfd-object",), {"nodefeatures.nfd.k8s-sigs.io": ["get", "create", "patch"]}),
        (
            ("config.labels.topologyObject=true",),
            {"noderesourcetopologies.topology.node.k8s.io": ["get", "create", "patch"]},
        ),
    ],
)
def test_each_way_out_brings_its_rights_and_no_more(render: Render, settings: tuple[str, ...], expected):
    text = render(*(f"--set={setting}" for setting in settings))
    assert rules(text) == expected
    assert ("NODE_NAME" in environment(text)) == bool(expected)
    account = objects(text)["DaemonSet"]["spec"]["template"]["spec"]["automountServiceAccountToken"]
    assert account == bool(expected)
    assert ("ValidatingAdmissionPolicy" in objects(text)) == ("nodes" in expected)


def test_an_object_needs_its_namespace_and_a_file_its_folder(render: Render):
    assert "NAMESPACE" in environment(render("--set=config.labels.owner=nfd-object"))
    text = render("--set=config.labels.owner=nfd-file")
    assert mounts(text)["features"] == "/etc/kubernetes/node-feature-discovery/features.d"
    assert "features" not in mounts(render())
    assert "pod-resources" in mounts(render("--set=config.labels.topologyObject=true"))


def test_labels_and_the_startup_taint_leave_each_other_their_part(render: Render):
    text = render("--set=config.labels.owner=node", "--set=startupTaint.enabled=true")
    policies = {
        found["metadata"]["name"]: str(found["spec"]["validations"])
        for found in yaml.safe_load_all(text)
        if found and found["kind"] == "ValidatingAdmissionPolicy"
    }
    assert "metadata.?labels" not in policies["gpuplugin-startup-taint"]
    assert "spec.?taints" not in policies["gpuplugin-labels"]
    alone = render("--set=config.labels.owner=node")
    assert "spec.?taints" in str(objects(alone)["ValidatingAdmissionPolicy"]["spec"]["validations"])
