"""What the daemon may do at the API server, as its service account on this node: its own slices, and no more."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from claims import DRIVER, ClaimNode
from onenode import Cluster
from onenode.layout import NODE

pytestmark = pytest.mark.cluster


@pytest.fixture
def node(cluster: Cluster, tmp_path):
    made = ClaimNode(cluster, tmp_path)
    yield made
    made.close()


def kubectl(node: ClaimNode, *arguments: str, given: Any = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(node.cluster.binaries / "kubectl"), f"--kubeconfig={node.kubeconfig}", *arguments],
        input=json.dumps(given) if given else None,
        capture_output=True,
        text=True,
        check=False,
    )


def piece(name: str, where: dict[str, Any]) -> dict[str, Any]:
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": DRIVER, "pool": pool, "devices": [{"name": "gpu-0"}], **where},
    }


def test_slices_of_its_own_node_and_of_no_other(node: ClaimNode):
    foreign = piece("foreign", {"nodeName": "other-node"})
    refusal = node.cluster.wait_for(
        lambda: (done := kubectl(node, "create", "-f", "-", given=foreign)).returncode and done.stderr, 30, "the policy"
    )
    assert f"node {NODE} may not write a ResourceSlice of node other-node" in refusal
    assert "of no one node" in kubectl(node, "create", "-f", "-", given=piece("all", {"allNodes": True})).stderr
    own = piece("own", {"nodeName": NODE})
    assert kubectl(node, "create", "-f", "-", given=own).returncode == 0
    own["spec"]["devices"] = []
    assert kubectl(node, "replace", "-f", "-", given=own).returncode == 0

    node.cluster.api.apply(foreign)
    try:
        assert "other-node" in kubectl(node, "delete", "resourceslice", "foreign").stderr
        assert "other-node" in kubectl(node, "replace", "-f", "-", given=foreign).stderr
        assert kubectl(node, "delete", "resourceslice", "own").returncode == 0
    finally:
        node.cluster.api.delete("ResourceSlice", "foreign")


@pytest.mark.parametrize(
    ("verb", "what"),
    [
        ("delete", "resourceclaims"),
        ("update", "resourceclaims"),
        ("watch", "resourceclaims"),
        ("get", "secrets"),
        ("list", "pods"),
        ("list", "nodes"),
        ("patch", "nodes"),
        ("create", "pods"),
    ],
)
def test_nothing_else(node: ClaimNode, verb: str, what: str):
    assert kubectl(node, "auth", "can-i", verb, what, "--all-namespaces").stdout.strip() == "no"
