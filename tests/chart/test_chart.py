"""The chart, rendered by helm itself: the same as daemonset.yaml by default, strict about values, sound in variants."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.gocheck.build import GoMissingError, build

pytestmark = pytest.mark.go
CHECKOUT = Path(__file__).resolve().parents[2]
CHART = CHECKOUT / "charts/gpuplugin"

Render = Callable[..., str]


@pytest.fixture(scope="session")
def helm() -> Path:
    try:
        return build(CHECKOUT / "tests/gocheck/helm")
    except GoMissingError as error:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(str(error))
        pytest.skip(f"the chart is not rendered: {error}")


@pytest.fixture
def run(helm: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        home = {name: str(tmp_path) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "HOME")}
        return subprocess.run([helm, *arguments], capture_output=True, text=True, check=False, env=home)

    return call


@pytest.fixture
def render(run: Callable[..., subprocess.CompletedProcess[str]]) -> Render:
    def call(*arguments: str) -> str:
        done = run("template", "gpuplugin", str(CHART), "--namespace=kube-system", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


def objects(text: str) -> dict[str, Any]:
    """What is installed, by kind; not what helm runs at some point (its hooks)."""
    every = [found for found in yaml.safe_load_all(text) if found]
    return {found["kind"]: found for found in every if "helm.sh/hook" not in found["metadata"].get("annotations", {})}


def container(text: str) -> dict[str, Any]:
    (found,) = objects(text)["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    return found


def test_daemonset_yaml_is_the_charts_default(render: Render):
    drift = "run: helm template gpuplugin charts/gpuplugin --namespace kube-system > daemonset.yaml"
    assert render() == (CHECKOUT / "daemonset.yaml").read_text(), drift


def test_helm_has_nothing_to_say_against_it(run: Callable[..., subprocess.CompletedProcess[str]]):
    done = run("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 chart(s) failed" in done.stdout


def test_the_default_has_no_access_to_the_api(render: Render):
    found = objects(render())
    assert set(found) == {"ServiceAccount", "DaemonSet"}
    assert found["ServiceAccount"]["automountServiceAccountToken"] is False
    assert found["DaemonSet"]["spec"]["template"]["spec"]["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("nonsense=1", "nonsense"),
        ("image.tagg=1", "tagg"),
        ("access=root", "/access"),
        ("image.digest=sha256:12", "/image/digest"),
        ("hostPaths.cdi=run/cdi", "/hostPaths/cdi"),
        ("updateStrategy.maxSurge=most", "/updateStrategy/maxSurge"),
        ("startupTaint.key=plain", "/startupTaint/key"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_place(
    run: Callable[..., subprocess.CompletedProcess[str]], setting: str, complaint: str
):
    done = run("template", "x", str(CHART), "--set-string", setting)
    assert done.returncode != 0
    assert complaint in done.stderr


def test_every_value_is_described_in_the_schema(render: Render):
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)


def test_without_a_surge_the_document_stays_for_containers_that_restart(render: Render):
    without = render("--set", "updateStrategy.maxSurge=0,updateStrategy.maxUnavailable=1")
    names = [entry["name"] for entry in container(without)["env"]]
    assert "GPUPLUGIN_CDI_REMOVE_ON_STOP" not in names
    assert "GPUPLUGIN_CDI_REMOVE_ON_STOP" in [entry["name"] for entry in container(render())["env"]]


@pytest.mark.parametrize(
    ("strategy", "instead"),
    [
        ("updateStrategy.maxSurge=0", "set maxUnavailable=1"),
        ("updateStrategy.maxSurge=0%,updateStrategy.maxUnavailable=0%", "set maxUnavailable=1"),
        ("updateStrategy.maxUnavailable=1", "set the other to 0"),
    ],
)
def test_an_update_strategy_that_the_api_server_refuses_is_refused_here(
    run: Callable[..., subprocess.CompletedProcess[str]], strategy: str, instead: str
):
    done = run("template", "x", str(CHART), "--set", strategy)
    assert done.returncode != 0
    assert "updateStrategy" in done.stderr
    assert instead in done.stderr


EVERY_SECTION = ("dra", "sharing", "node", "events", "labels", "flags", "metrics", "cdi", "paths")


@pytest.mark.parametrize(
    "config", [None, *({section: None} for section in EVERY_SECTION), dict.fromkeys(EVERY_SECTION)], ids=str
)
def test_a_section_without_a_value_is_one_that_is_not_given(render: Render, tmp_path: Path, config: Any):
    def bare(text: str) -> dict[str, Any]:
        """What is rendered, without the configuration file and what brings it to the daemon."""
        found = objects(text)
        found.pop("ConfigMap", None)
        template = found["DaemonSet"]["spec"]["template"]
        template["metadata"]["annotations"].pop("gpuplugin.io/config", None)
        spec = template["spec"]
        spec["volumes"] = [one for one in spec["volumes"] if one["name"] != "config"]
        (only,) = spec["containers"]
        only["env"] = [one for one in only["env"] if one["name"] != "CONFIG_FILE"]
        only["volumeMounts"] = [one for one in only["volumeMounts"] if one["name"] != "config"]
        return found

    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"config": config}))
    assert bare(render("--values", str(values))) == bare(render())


def test_a_section_without_a_value_is_none_of_a_profile_either(render: Render, tmp_path: Path):
    values = tmp_path / "values.yaml"
    files = {"one": {"dra": None, "sharing": None, "flags": None}, "two": {"rescanSeconds": 9}}
    values.write_text(yaml.safe_dump({"profiles": {"files": files}}))
    mounted = {mount["name"] for mount in container(render("--values", str(values)))["volumeMounts"]}
    assert "profiles" in mounted
    assert not {"plugins", "mps"} & mounted


@pytest.mark.parametrize(
    "settings",
    ["labels.owner=nfd-object,config.labels.namespace=null", "labels.owner=nfd-file", "metrics.enabled=true"],
)
def test_a_setting_without_a_value_has_its_default(render: Render, settings: str):
    text = render(
        "--set", f"config.{settings},config.flags.gfd=null,config.metrics.address=null,config.cdi.removeOnStop=null"
    )
    found = container(text)
    names = {entry["name"] for entry in found["env"]}
    assert "GPUPLUGIN_CDI_REMOVE_ON_STOP" in names
    if "nfd-object" in settings:
        assert "NAMESPACE" in names
    elif "nfd-file" in settings:
        assert "/etc/kubernetes/node-feature-discovery/features.d" in {
            one["mountPath"] for one in found["volumeMounts"]
        }
    else:
        assert found["ports"] == [{"name": "metrics", "containerPort": 9400}]


def test_a_runtime_that_passes_the_gpus_needs_no_privilege(render: Render):
    text = render("--set", "access=runtime")
    found = container(text)
    assert found["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert "dev" not in [mount["name"] for mount in found["volumeMounts"]]
    assert objects(text)["DaemonSet"]["spec"]["template"]["spec"]["runtimeClassName"] == "nvidia"


def test_a_driver_container_may_mount_its_root_later(render: Render):
    found = container(render("--set", "hostPaths.driverRoot=/run/nvidia/driver"))
    mount = next(mount for mount in found["volumeMounts"] if mount["name"] == "driver-root")
    assert mount["mountPropagation"] == "HostToContainer"
    assert {"name": "NVIDIA_DRIVER_ROOT", "value": "/run/nvidia/driver"} in found["env"]


def test_a_configuration_is_mounted_and_a_change_of_it_restarts_the_pods(render: Render):
    one, two = (render("--set", f"config.rescanSeconds={seconds}") for seconds in (10, 20))
    assert yaml.safe_load(objects(one)["ConfigMap"]["data"]["config.yaml"]) == {"rescanSeconds": 10}
    assert {"name": "CONFIG_FILE", "value": "/etc/gpuplugin/config.yaml"} in container(one)["env"]
    pods = [objects(text)["DaemonSet"]["spec"]["template"]["metadata"]["annotations"] for text in (one, two)]
    assert pods[0] != pods[1]


def test_the_startup_taint_brings_the_rights_that_it_needs_and_their_limit(render: Render):
    found = objects(render("--set", "startupTaint.enabled=true"))
    assert found["ClusterRole"]["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]
    assert {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} <= set(found)
    assert found["DaemonSet"]["spec"]["template"]["spec"]["automountServiceAccountToken"] is True


def test_claims_bring_what_dra_yaml_has_for_those_without_helm(render: Render):
    def key(found: dict[str, Any]) -> tuple[str, str]:
        return found["kind"], found["metadata"]["name"]

    wanted = {key(found): found for found in yaml.safe_load_all((CHECKOUT / "dra.yaml").read_text()) if found}
    text = render("--set", "claims.enabled=true")
    rendered = {key(found): found for found in yaml.safe_load_all(text) if found}
    for found in rendered.values():
        found["metadata"].pop("labels", None)
    assert {name: rendered.get(name) for name in wanted} == wanted
    mounted = {mount["name"]: mount["mountPath"] for mount in container(text)["volumeMounts"]}
    for folder in ("plugins", "plugins_registry", "pods", "pod-resources"):
        assert mounted[folder.replace("_", "-")] == f"/var/lib/kubelet/{folder}"


def test_an_image_is_named_by_digest_where_there_is_one(render: Render):
    digest = "sha256:" + "0" * 64
    assert container(render("--set", f"image.digest={digest}"))["image"] == f"gpuplugin@{digest}"
    assert container(render("--set", "image.tag=v9"))["image"] == "gpuplugin:v9"
