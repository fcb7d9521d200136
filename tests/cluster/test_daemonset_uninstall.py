"""Helm itself installs all there is to switch on, upgrades and uninstalls it, and the Node is as it was before."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import crds
import pytest
import yaml
from claims import DRIVER
from deployed import ENVIRONMENT, IMAGE, NAMESPACE, Deployed, traces
from gpunode import CHECKOUT, GpuNode
from onenode.api import Json
from onenode.layout import API_PORT, HOST, KUBELET_FOLDER, NODE

from gpuplugin.errors import KubeError
from gpuplugin.kube.client import Kube
from gpuplugin.kube.kinds import NODES
from tests.gocheck.build import GoMissingError, build

pytestmark = pytest.mark.cluster
RELEASE = "gpuplugin"
TAINT = {"key": "gpuplugin.io/not-ready", "effect": "NoSchedule"}
SOON = 60.0
KINDS = ("ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
SERVERLESS = """
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: test-host-network}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  matchConditions: [{name: ours, expression: request.namespace == "kube-system"}]
  mutations:
    - patchType: ApplyConfiguration
      applyConfiguration: {expression: "Object{spec: Object.spec{hostNetwork: true}}"}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: test-host-network}
spec: {policyName: test-host-network}
"""
"""This cluster has no services, so pods find the API server on loopback: what helm installs is not changed for that."""


class Helm:
    """The release, by the chart and by values for this node."""

    def __init__(self, deployed: Deployed, folder: Path) -> None:
        self._deployed, self._folder = deployed, folder
        try:
            self._helm = build(CHECKOUT / "tests/gocheck/helm")
        except GoMissingError as error:  # the cluster needs Go too
            pytest.fail(str(error))
        root = str(deployed.node.host.root)
        environment = {
            "KUBERNETES_SERVICE_HOST": HOST,
            "KUBERNETES_SERVICE_PORT": str(API_PORT),
            **ENVIRONMENT,
        }
        self._values: dict[str, Any] = {
            "image": {"repository": IMAGE, "tag": "1", "pullPolicy": "Never"},
            "hostPaths": {"driverRoot": root, "devRoot": root, "state": str(folder / "state")},
            "env": [{"name": name, "value": value} for name, value in environment.items()],
            "startupTaint": {"enabled": True},
        }

    def __call__(self, *arguments: str, config: dict[str, Any] | None = None) -> str:
        command = [str(self._helm), *arguments, f"--kubeconfig={self._deployed.cluster.layout.admin_kubeconfig}"]
        command.append(f"--namespace={NAMESPACE}")
        if config is not None:
            values = self._folder / "values.json"
            values.write_text(json.dumps({**self._values, "config": config}))
            command += [str(CHECKOUT / "charts/gpuplugin"), f"--values={values}"]
        homes = ("HOME", "HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")
        environment = dict.fromkeys(homes, str(self._folder / "helm"))
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise AssertionError(f"{done.stdout}\n{done.stderr}\n{self._deployed.story()}{self._jobs()}")
        return done.stdout

    def _jobs(self) -> str:
        said = []
        for pod in self._deployed.cluster.api.list("Pod", namespace=NAMESPACE):
            name = pod["metadata"]["name"]
            if "cleanup" in name:
                said.append(f"--- {name}\n{json.dumps(pod['status'], indent=1)}")
                said += [self._deployed.cluster.kubectl("logs", name, f"--namespace={NAMESPACE}", "--all-containers")]
        return "\n".join(said)


@pytest.fixture
def deployed(bare_node: GpuNode, tmp_path: Path) -> Iterator[Deployed]:
    cluster = bare_node.cluster
    made = Deployed(bare_node, tmp_path)
    made.load_image("1")
    definition = crds.install(
        *(cluster, "topology.node.k8s.io", "v1alpha2", "NodeResourceTopology", "noderesourcetopologies"),
        crds.NODE_RESOURCE_TOPOLOGY,
        scope="Cluster",
    )
    cluster.api.apply(SERVERLESS)
    cluster.api.patch("Node", NODE, {"spec": {"taints": [TAINT]}})
    try:
        yield made
    finally:
        cluster.api.patch("Node", NODE, {"spec": {"taints": None}})
        for kind in ("MutatingAdmissionPolicyBinding", "MutatingAdmissionPolicy"):
            cluster.api.delete(kind, "test-host-network")
        cluster.api.delete("CustomResourceDefinition", definition)


@pytest.fixture
def helm(deployed: Deployed, tmp_path: Path) -> Iterator[Helm]:
    made = Helm(deployed, tmp_path)
    try:
        yield made
    finally:
        made("uninstall", RELEASE, "--ignore-not-found")
        deployed.cluster.wait_for(lambda: not deployed.pods(), SOON, "the daemon's pods gone")


def of_node(deployed: Deployed) -> Json:
    """All of the Node that somebody but kubelet and we could have set, and what conditions it has."""
    found = deployed.cluster.node()
    metadata = {
        name: found["metadata"].get(name) for name in ("labels", "annotations", "finalizers", "ownerReferences")
    }
    return {**metadata, "spec": found["spec"], "conditions": sorted(conditions(found))}


def conditions(node: Json) -> dict[str, str]:
    return {one["type"]: one["status"] for one in node["status"]["conditions"]}


def everything(machine: GpuNode, **more: Any) -> dict[str, Any]:
    """The configuration with all that writes to the Kubernetes API."""
    return {
        "labels": {"owner": "node", "topologyObject": True},
        "node": {"healthCondition": True},
        "events": {"enabled": True},
        "dra": {"gpus": [machine.state.snapshot.gpu(7).uuid]},
        **more,
    }


def ours(deployed: Deployed) -> set[str]:
    """What of the release is in the cluster, by kind and name."""
    api = deployed.cluster.api
    found = {f"{kind}/{one['metadata']['name']}" for kind in KINDS for one in api.list(kind)}
    for kind in ("ServiceAccount", "ConfigMap", "Role", "RoleBinding", "DaemonSet", "Job"):
        for namespace in (NAMESPACE, "default"):
            found |= {f"{kind}/{one['metadata']['name']}" for one in api.list(kind, namespace=namespace)}
    return {name for name in found if "gpuplugin" in name} | {
        f"NodeResourceTopology/{one['metadata']['name']}" for one in api.list("NodeResourceTopology")
    }


def left_of_claims() -> list[Path]:
    """What kubelet's folders have of the driver."""
    return [
        *(KUBELET_FOLDER / "plugins_registry").glob("*"),
        *(KUBELET_FOLDER / "plugins" / DRIVER).rglob("*"),
    ]


def slices(deployed: Deployed) -> list[str]:
    found = deployed.cluster.api.list("ResourceSlice")
    return [one["metadata"]["name"] for one in found if one["spec"]["driver"] == DRIVER]


def wait_told(deployed: Deployed) -> None:
    def told() -> bool:
        node = deployed.cluster.node()
        labelled = node["metadata"]["labels"].get("nvidia.com/gpu.count") == "8"
        return labelled and "GPUsHealthy" in conditions(node) and not node["spec"].get("taints")

    with deployed.telling():
        deployed.cluster.wait_for(told, SOON, "labels and condition there, and the startup taint gone")


def test_after_uninstalling_the_node_is_as_it_was(deployed: Deployed, helm: Helm):
    node, api = deployed.node, deployed.cluster.api
    before, others = {**of_node(deployed), "spec": {}}, ours(deployed)
    helm("install", RELEASE, config=everything(node))
    deployed.wait_ready("1")
    wait_told(deployed)
    deployed.wait_allocatable(7)
    deployed.cluster.wait_for(lambda: api.exists("NodeResourceTopology", NODE) or None, SOON, "the topology object")
    deployed.cluster.wait_for(lambda: slices(deployed), SOON, "a slice")

    node.state.lose(2)
    deployed.cluster.wait_for(
        lambda: conditions(deployed.cluster.node())["GPUsHealthy"] == "False", SOON, "a condition that tells of it"
    )
    events = [one for one in api.list("Event") if one["reason"] == "GpuLost"]
    assert len(events) == 1
    node.state.restore(2)

    assert "Killed" not in helm("uninstall", RELEASE)
    deployed.cluster.wait_for(lambda: not deployed.pods(), SOON, "the daemon's pods gone")
    assert {**of_node(deployed), "spec": {}} == before
    assert "taints" not in deployed.cluster.node()["spec"]
    assert ours(deployed) == others
    assert traces() == []
    assert {path.name for path in left_of_claims() if not path.is_dir()} == {"device-names.json", ".lock"}
    deployed.cluster.wait_for(lambda: not slices(deployed), SOON, "kubelet has taken the slices away")


def test_a_condition_that_is_switched_off_goes_and_labels_stay(deployed: Deployed, helm: Helm):
    helm("install", RELEASE, config=everything(deployed.node))
    deployed.wait_ready("1")
    wait_told(deployed)
    labels = deployed.cluster.node()["metadata"]["labels"]
    helm("upgrade", RELEASE, config=everything(deployed.node, node={}))
    assert "GPUsHealthy" not in conditions(deployed.cluster.node())
    assert "Ready" in conditions(deployed.cluster.node())
    deployed.wait_ready("1")
    assert deployed.cluster.node()["metadata"]["labels"] == labels
    helm("upgrade", RELEASE, config=everything(deployed.node))
    wait_told(deployed)


def test_a_cordon_outlives_the_daemons_pod(deployed: Deployed, helm: Helm, tmp_path: Path):
    cluster, uuid = deployed.cluster, deployed.node.state.snapshot.gpu(3).uuid
    helm("install", RELEASE, config=everything(deployed.node))
    pod = deployed.wait_ready("1")
    deployed.wait_allocatable(7)
    name = pod["metadata"]["name"]
    program = ("gpuplugin", "cordon", "3", "--reason", "coolant leak")
    said = cluster.exec(name, *program, container="gpuplugin", namespace=NAMESPACE)
    assert uuid in said
    deployed.wait_allocatable(6)
    cluster.api.delete("Pod", name, namespace=NAMESPACE)
    cluster.wait_for(lambda: not cluster.api.exists("Pod", name, namespace=NAMESPACE), SOON, "the pod gone")
    after = deployed.wait_ready("1")["metadata"]["name"]
    assert after != name
    deployed.wait_allocatable(6)
    assert "coolant leak" in cluster.exec(after, "gpuplugin", "cordon", container="gpuplugin", namespace=NAMESPACE)
    cluster.exec(after, "gpuplugin", "uncordon", "3", container="gpuplugin", namespace=NAMESPACE)
    deployed.wait_allocatable(7)
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert list((tmp_path / "state").iterdir()) == []


def test_the_right_to_the_nodes_status_is_good_for_the_condition_alone(deployed: Deployed, helm: Helm, tmp_path: Path):
    helm("install", RELEASE, config=everything(deployed.node))
    pod = deployed.wait_ready("1")["metadata"]["name"]
    wait_told(deployed)
    create = ("create", "token", RELEASE, f"--namespace={NAMESPACE}")
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod}")
    token, free = (deployed.cluster.kubectl(*create, *more).strip() for more in (bound, ()))

    def change(token: str, **what: object) -> None:
        body = {"apiVersion": "v1", "kind": "Node", **what}
        asyncio.run(applied(access(deployed, token, tmp_path), body))

    heartbeat = {"lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    for what in (
        {"metadata": {"labels": {"example.com/a": "b"}}},
        {"metadata": {"annotations": {"example.com/a": "b"}}},
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": "u"}]}},
        {"status": {"capacity": {"example.com/a": "1"}}},
        {"status": {"allocatable": {"nvidia.com/gpu": "99"}}},
        {"status": {"addresses": [{"type": "ExternalIP", "address": "192.0.2.1"}]}},
        {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "x", "message": "", **heartbeat}]}},
    ):
        with pytest.raises(KubeError, match="only the condition GPUsHealthy"):
            change(token, **what)
    with pytest.raises(KubeError, match="only the node that it runs on"):
        change(free, status={"capacity": {"example.com/a": "1"}})
    ours = {"type": "GPUsHealthy", "status": "False", "reason": "Test", "message": "", **heartbeat}
    change(token, status={"conditions": [ours]})
    assert conditions(deployed.cluster.node())["GPUsHealthy"] == "False"


def access(deployed: Deployed, token: str, folder: Path) -> Path:
    """A kubeconfig for whoever has that token."""
    config = yaml.safe_load(deployed.cluster.layout.admin_kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    return folder / "kubeconfig"


async def applied(kubeconfig: Path, body: dict[str, Any]) -> None:
    """Server-side apply to the Node's status, as the daemon does it."""
    async with Kube(kubeconfig) as kube:
        await kube.apply(NODES, NODE, body, subresource="status", manager="test")
