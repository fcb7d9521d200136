"""Labels on the real Node object: in whose name, what else is touched (nothing), and how they go again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import crds
import pytest
from gpunode import GPU, GpuNode
from onenode.api import Json
from onenode.errors import ApiError, CommandError
from onenode.layout import NODE

pytestmark = pytest.mark.cluster
MANAGER = "gpuplugin-labels"
OURS = ("nvidia.com/", "gpuplugin.io/")
SECONDS = 30.0
FEATURE = f"gpuplugin-{NODE}"


def settings(node: GpuNode, user: str = "node", **others: str) -> dict[str, str]:
    layout = node.cluster.layout
    access = layout.admin_kubeconfig if user == "admin" else layout.kubeconfig(user)
    return {"NODE_NAME": NODE, "KUBECONFIG": str(access), "GPUPLUGIN_LABELS_OWNER": "node", **others}


def ours(node: GpuNode) -> dict[str, str]:
    labels = node.cluster.node()["metadata"]["labels"]
    return {key: value for key, value in labels.items() if key.startswith(OURS)}


def rest(node: GpuNode) -> Json:
    """All of the Node that nobody but us should see change: without our labels, and without what kubelet reports."""
    found = node.cluster.node()
    labels = {key: value for key, value in found["metadata"]["labels"].items() if not key.startswith(OURS)}
    return {"labels": labels, "annotations": found["metadata"].get("annotations"), "spec": found["spec"]}


def managed(node: GpuNode) -> Json:
    return next(entry for entry in node.cluster.node()["metadata"]["managedFields"] if entry["manager"] == MANAGER)


def run(node: GpuNode, *arguments: str, **environment: str) -> str:
    """The command line, with the settings in the environment as the daemon has them."""
    usual = {name: value for name, value in os.environ.items() if not name.startswith("GPUPLUGIN_")}
    done = subprocess.run(
        [sys.executable, "-m", "gpuplugin", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**usual, **settings(node, **environment)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_for(node: GpuNode, key: str, value: str | None) -> None:
    node.cluster.wait_for(lambda: ours(node).get(key) == value, SECONDS, f"label {key}={value}")


@pytest.fixture
def labelled(bare_node: GpuNode) -> Iterator[GpuNode]:
    try:
        yield bare_node
    finally:
        bare_node.close()
        run(bare_node, "labels", "remove", "--all", user="admin")
        leftover = dict.fromkeys(ours(bare_node))
        if leftover:
            bare_node.cluster.api.patch("Node", NODE, {"metadata": {"labels": leftover}})


def test_under_the_nodes_own_credentials_nothing_else_of_it_is_touched(labelled: GpuNode):
    theirs = {"nvidia.com/gpu.deploy.driver": "true", "gpuplugin.io/theirs": "1"}
    labelled.cluster.api.patch("Node", NODE, {"metadata": {"labels": theirs}})
    before = rest(labelled)
    labelled.start(**settings(labelled))
    wait_for(labelled, "nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3")
    found = ours(labelled)
    assert found["gpuplugin.io/numa-1.gpus"] == "4"
    assert theirs.items() <= found.items()
    assert rest(labelled) == before
    assert managed(labelled)["fieldsV1"].keys() == {"f:metadata"}
    assert managed(labelled)["fieldsV1"]["f:metadata"].keys() == {"f:labels"}
    assert managed(labelled)["operation"] == "Apply"

    assert labelled.stop() == 0
    assert ours(labelled) == found
    assert run(labelled, "labels", "remove") == f"{NODE}\n"
    assert ours(labelled) == theirs
    assert rest(labelled) == before
    assert run(labelled, "labels", "remove") == "there was nothing to take away\n"


def test_neither_a_crash_nor_a_late_driver_nor_a_lost_gpu_writes_anything(labelled: GpuNode):
    labelled.start(**settings(labelled))
    wait_for(labelled, "nvidia.com/gpu.count", "8")
    found, written = ours(labelled), managed(labelled)["time"]
    labelled.stop(signal.SIGKILL)
    labelled.state.driver(False)
    labelled.start(**settings(labelled))
    labelled.wait_said("the GPUs cannot be looked at: trying again")
    labelled.state.driver(True)
    labelled.wait_watched()
    labelled.state.lose(3)
    labelled.wait_said("withdrawn")
    assert labelled.said("labels written") == []
    assert managed(labelled)["time"] == written
    labelled.stop()
    labelled.start(**settings(labelled, GPUPLUGIN_LABELS_CHECK_SECONDS="1"))
    labelled.wait_said("labels written")  # the lost one never told this daemon who it is
    assert labelled.said("labels written")[0]["changed"].keys() <= {
        *("nvidia.com/gpu.count", "gpuplugin.io/model.NVIDIA-H100-80GB-HBM3", "gpuplugin.io/gpu.whole"),
        *(key for key in found if key.startswith(("gpuplugin.io/numa", "gpuplugin.io/nvlink", "gpuplugin.io/nic"))),
    }
    assert labelled.said("labels written")[0]["removed"] == []
    assert ours(labelled).keys() == found.keys()
    labelled.state.restore(3)
    wait_for(labelled, "nvidia.com/gpu.count", "8")
    assert ours(labelled) == found


def test_what_somebody_takes_away_is_put_back(labelled: GpuNode):
    labelled.start(**settings(labelled, GPUPLUGIN_LABELS_CHECK_SECONDS="1"))
    wait_for(labelled, "nvidia.com/gpu.count", "8")
    change = {"nvidia.com/gpu.count": "80", "nvidia.com/gpu.family": None}
    labelled.cluster.api.patch("Node", NODE, {"metadata": {"labels": change}})
    wait_for(labelled, "nvidia.com/gpu.count", "8")
    wait_for(labelled, "nvidia.com/gpu.family", "hopper")


def write_as_kubelet(node: GpuNode, change: str) -> None:
    node.cluster.kubectl(f"--kubeconfig={node.cluster.layout.kubeconfig('node')}", "label", "node", NODE, change)


@pytest.mark.parametrize("prefix", ["nvidia.com", "gpuplugin.io", "feature.node.kubernetes.io"])
def test_what_a_kubelets_credentials_may_write(labelled: GpuNode, prefix: str):
    write_as_kubelet(labelled, f"{prefix}/gpu=x")
    write_as_kubelet(labelled, f"{prefix}/gpu-")


@pytest.mark.parametrize("prefix", ["node-restriction.kubernetes.io", "gpu.kubernetes.io", "node-role.kubernetes.io"])
def test_what_a_kubelets_credentials_may_not_write(labelled: GpuNode, prefix: str):
    with pytest.raises(CommandError, match="is not allowed to modify labels"):
        write_as_kubelet(labelled, f"{prefix}/gpu=x")


def test_a_node_feature_object_for_node_feature_discovery(labelled: GpuNode):
    name = crds.install(
        *(labelled.cluster, "nfd.k8s-sigs.io", "v1alpha1", "NodeFeature", "nodefeatures", crds.NODE_FEATURE),
        scope="Namespaced",
    )
    api = labelled.cluster.api
    try:
        mine = {"GPUPLUGIN_LABELS_OWNER": "nfd-object", "NAMESPACE": "default"}
        labelled.start(**settings(labelled, "admin", **mine))
        labelled.wait_said("labels written")
        found = api.get("NodeFeature", FEATURE)
        assert found["metadata"]["labels"] == {"nfd.node.kubernetes.io/node-name": NODE}
        assert found["spec"]["labels"]["nvidia.com/gpu.count"] == "8"
        assert ours(labelled) == {}
        labelled.stop()
        labelled.start(**settings(labelled, "admin", **mine))
        labelled.wait_watched()
        assert api.get("NodeFeature", FEATURE)["metadata"]["generation"] == 1
        labelled.stop()
        assert run(labelled, "labels", "remove", user="admin", **mine) == f"{NODE}\n"
        assert not api.exists("NodeFeature", FEATURE)
    finally:
        labelled.close()
        api.delete("CustomResourceDefinition", name)


def test_a_topology_object_follows_what_pods_hold(labelled: GpuNode):
    name = crds.install(
        *(labelled.cluster, "topology.node.k8s.io", "v1alpha2", "NodeResourceTopology", "noderesourcetopologies"),
        crds.NODE_RESOURCE_TOPOLOGY,
        scope="Cluster",
    )
    file = labelled.host.root / "var/lib/kubelet/config.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"topologyManagerPolicy": "single-numa-node"}))

    def zones() -> dict[str, Json]:
        try:
            found = labelled.cluster.api.get("NodeResourceTopology", NODE)
        except ApiError:
            return {}
        return {zone["name"]: zone["resources"][0] for zone in found["zones"] if zone["resources"]}

    def free() -> list[str]:
        return sorted(zone["available"] for zone in zones().values())

    try:
        mine = {"GPUPLUGIN_LABELS_OWNER": "off", "GPUPLUGIN_LABELS_TOPOLOGY_OBJECT": "true"}
        labelled.start(**settings(labelled, "admin", **mine))
        labelled.cluster.wait_for(lambda: free() == ["4", "4"], SECONDS, "two zones of four")
        found = labelled.cluster.api.get("NodeResourceTopology", NODE)
        assert found["zones"][0]["costs"] == [{"name": "node-0", "value": 10}, {"name": "node-1", "value": 21}]
        assert found["attributes"] == [
            {"name": "topologyManagerPolicy", "value": "single-numa-node"},
            {"name": "topologyManagerScope", "value": "container"},
        ]
        assert zones()["node-1"] == {"name": GPU, "capacity": "4", "allocatable": "4", "available": "4"}
        labelled.pod("three", 3)
        labelled.cluster.wait_for(lambda: free() == ["1", "4"], SECONDS, "three fewer in one zone")
        labelled.end("three")
        labelled.cluster.wait_for(lambda: free() == ["4", "4"], SECONDS, "all free again")
        labelled.stop()
        assert run(labelled, "labels", "remove", user="admin", **mine) == f"{NODE}\n"
        assert zones() == {}
    finally:
        labelled.close()
        labelled.cluster.api.delete("CustomResourceDefinition", name)
