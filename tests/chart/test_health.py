"""What telling of faults, cordons and their end bring into the manifest: rights, a folder, and a Job that cleans up."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.chart.test_chart import CHART, CHECKOUT, Render, container, helm, objects, render, run

__all__ = ["helm", "render", "run"]
pytestmark = pytest.mark.go

CONDITION, EVENTS = "--set=config.node.healthCondition=true", "--set=config.events.enabled=true"
Found = dict[tuple[str, str], dict[str, Any]]


def found(text: str) -> Found:
    """Everything that is not a hook of helm's, by kind and name."""
    every = [one for one in yaml.safe_load_all(text) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in every if not hook(one)}


def hook(one: dict[str, Any]) -> str:
    return str(one["metadata"].get("annotations", {}).get("helm.sh/hook", ""))


def hooks(text: str) -> dict[str, dict[str, Any]]:
    """Hooks by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all(text) if one and hook(one)}


def rights(role: dict[str, Any]) -> dict[str, list[str]]:
    return {rule["resources"][0]: rule["verbs"] for rule in role["rules"]}


def test_each_surface_brings_its_rights_and_no_more(render: Render):
    both = found(render(CONDITION, EVENTS))
    assert rights(both["ClusterRole", "gpuplugin-health"]) == {"nodes": ["get"], "nodes/status": ["patch"]}
    assert rights(both["Role", "gpuplugin-health"]) == {"events": ["create"]}
    assert both["Role", "gpuplugin-health"]["metadata"]["namespace"] == "default"
    condition, events = found(render(CONDITION)), found(render(EVENTS))
    assert ("Role", "gpuplugin-health") not in condition
    assert ("ClusterRole", "gpuplugin-health") not in events
    assert ("ValidatingAdmissionPolicy", "gpuplugin-health") not in events
    for one in (condition, events):
        pod = one["DaemonSet", "gpuplugin"]["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is True
        assert "NODE_NAME" in {entry["name"] for entry in pod["containers"][0]["env"]}


def test_health_yaml_is_that_for_those_without_helm(render: Render):
    text = (CHECKOUT / "health.yaml").read_text()
    wanted = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text) if one}
    rendered = found(render(CONDITION, EVENTS))
    rendered = {key: one for key, one in rendered.items() if key[1] == "gpuplugin-health"}
    for one in rendered.values():
        one["metadata"].pop("labels")
    assert rendered == wanted


def test_the_policy_leaves_a_patch_of_the_status_nothing_but_the_condition(render: Render):
    policy = found(render(CONDITION))["ValidatingAdmissionPolicy", "gpuplugin-health"]["spec"]
    assert policy["failurePolicy"] == "Fail"
    said = str(policy["validations"])
    fields = ("metadata.?labels", "metadata.?annotations", "metadata.?ownerReferences", "status.?capacity")
    assert [field for field in fields if field not in said] == []


def test_cordons_are_kept_on_the_host_unless_they_are_not_wanted(render: Render):
    mount = {"name": "state", "mountPath": "/var/lib/gpuplugin"}
    text = render("--set=hostPaths.state=/srv/gpus")
    assert mount in container(text)["volumeMounts"]
    volumes = objects(text)["DaemonSet"]["spec"]["template"]["spec"]["volumes"]
    assert {"name": "state", "hostPath": {"path": "/srv/gpus", "type": "DirectoryOrCreate"}} in volumes
    assert mount in container(render())["volumeMounts"]
    assert mount not in container(render("--set=hostPaths.state="))["volumeMounts"]


@pytest.mark.parametrize(
    ("setting", "instead"),
    [
        ("config.flags.nvidiaDriverRoot=/x", "hostPaths.driverRoot"),
        ("config.flags.nvidiaDevRoot=/x", "hostPaths.devRoot"),
        ("config.flags.plugin.containerDriverRoot=/x", "leave it out"),
        ("config.paths.kubelet=/x", "hostPaths.kubelet"),
        ("config.paths.cdi=/x", "hostPaths.cdi"),
        ("config.paths.state=/x", "hostPaths.state"),
        ("config.paths.status=/x", "leave it out"),
        ("config.node.name=x", "leave it out"),
        ("config.node.startupTaint=a/b", "startupTaint"),
        ("config.profiles.folder=/x", "profiles.files"),
        ("config.profiles.default=x", "profiles.default"),
        ("profiles.files.small.flags.nvidiaDriverRoot=/x", "hostPaths.driverRoot"),
    ],
)
def test_what_the_chart_says_itself_is_refused_with_what_to_set(
    run: Callable[..., subprocess.CompletedProcess[str]], setting: str, instead: str
):
    done = run("template", "x", str(CHART), "--set", setting)
    assert done.returncode != 0
    assert "cannot be" in done.stderr
    assert instead in done.stderr


def test_a_file_of_the_references_that_says_the_same_is_taken(render: Render):
    same = ("flags.nvidiaDriverRoot=/", "flags.plugin.containerDriverRoot=/driver-root", "paths.cdi=/var/run/cdi")
    found(render(*(f"--set=config.{setting}" for setting in same)))


def test_what_the_configuration_says_is_not_overruled_by_a_variable(render: Render):
    text = render("--set=config.cdi.removeOnStop=false", "--set=config.labels.owner=nfd-object")
    names = {entry["name"] for entry in container(text)["env"]}
    assert "GPUPLUGIN_CDI_REMOVE_ON_STOP" not in names
    assert "NAMESPACE" in names
    text = render("--set=config.labels.owner=nfd-object", "--set=config.labels.namespace=nfd")
    assert "NAMESPACE" not in {entry["name"] for entry in container(text)["env"]}


def test_files_that_settings_name_can_be_mounted(render: Render):
    volume, mount = {"name": "csv", "configMap": {"name": "csv"}}, {"name": "csv", "mountPath": "/csv"}
    values = {"volumes": [volume], "volumeMounts": [mount]}
    text = render(*(f"--set-json={name}={json.dumps(value)}" for name, value in values.items()))
    assert volume in objects(text)["DaemonSet"]["spec"]["template"]["spec"]["volumes"]
    assert mount in container(text)["volumeMounts"]


def test_explaining_pods_takes_a_right_of_its_own(render: Render):
    every = found(render("--set=explain.apiAccess=true"))
    (rule,) = every["ClusterRole", "gpuplugin-explain"]["rules"]
    assert (rule["resources"], rule["verbs"]) == (["nodes", "pods"], ["get"])
    pod = every["DaemonSet", "gpuplugin"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is True


def test_claims_of_one_configuration_of_several_bring_the_same_as_those_of_the_only_one(render: Render):
    every = found(render("--set=profiles.files.large.dra.gpus=all", "--set=profiles.files.small.rescanSeconds=9"))
    assert ("ClusterRole", "gpuplugin-claims") in every
    mounts = every["DaemonSet", "gpuplugin"]["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert "plugins-registry" in {mount["name"] for mount in mounts}


@pytest.mark.parametrize(
    ("settings", "expected", "verbs"),
    [
        (("config.labels.owner=node",), {"nodes": ["list", "patch"]}, ["labels"]),
        (
            ("config.labels.owner=nfd-object",),
            {"nodes": ["list", "patch"], "nodefeatures": ["list", "delete"]},
            ["labels"],
        ),
        (
            ("config.labels.topologyObject=true",),
            {"nodes": ["list", "patch"], "noderesourcetopologies": ["list", "delete"]},
            ["labels"],
        ),
        (("config.node.healthCondition=true",), {"nodes": ["list"], "nodes/status": ["patch"]}, ["condition"]),
        (
            ("config.labels.owner=node", "config.node.healthCondition=true"),
            {"nodes": ["list", "patch"], "nodes/status": ["patch"]},
            ["labels", "condition"],
        ),
    ],
)
def test_a_job_takes_away_what_was_written_once_all_else_is_gone(render: Render, settings, expected, verbs):
    made = hooks(render(*(f"--set={setting}" for setting in settings)))
    assert set(made) == {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job"}
    assert {hook(one) for one in made.values()} == {"post-delete"}
    assert rights(made["ClusterRole"]) == expected
    pod = made["Job"]["spec"]["template"]["spec"]
    assert [one["args"] for one in pod["containers"]] == [[verb, "remove", "--all"] for verb in verbs]
    assert pod["serviceAccountName"] == made["ServiceAccount"]["metadata"]["name"] != "gpuplugin"
    assert all(one["securityContext"]["runAsNonRoot"] for one in pod["containers"])


@pytest.mark.parametrize(
    "settings", [(), ("config.events.enabled=true",), ("config.labels.owner=nfd-file",), ("config.dra.gpus=all",)]
)
def test_where_nothing_outlives_the_daemon_nothing_is_run(render: Render, settings):
    assert hooks(render(*(f"--set={setting}" for setting in settings))) == {}


def test_cleaning_up_can_be_left_to_others(render: Render):
    assert hooks(render(CONDITION, "--set=cleanup.enabled=false")) == {}


def test_the_job_bears_other_labels_than_the_daemon(render: Render):
    """Or the DaemonSet, and whoever scrapes its pods, would take the Job's for one of theirs."""
    text = render(CONDITION)
    selector = objects(text)["DaemonSet"]["spec"]["selector"]["matchLabels"]
    labels = hooks(text)["Job"]["spec"]["template"]["metadata"]["labels"]
    assert not selector.items() <= labels.items()
