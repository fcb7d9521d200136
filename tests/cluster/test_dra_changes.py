"""GPUs that go from device plugin to claims and back while the daemon runs, and a claim that pods came to share."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from claims import DRIVER, ClaimNode, claim, claiming_pod, request
from gpunode import READY_SECONDS, _root_of
from onenode import Cluster, Component
from onenode.layout import KUBELET_FOLDER, NODE

pytestmark = pytest.mark.cluster

STUBBORN = ("sh", "-c", "trap '' TERM; while :; do sleep 1; done")


@pytest.fixture
def node(cluster: Cluster, tmp_path: Path) -> Iterator[ClaimNode]:
    """The daemon is not started yet; its configuration file says which GPUs claims have."""
    made = ClaimNode(cluster, tmp_path)
    del made._environment["GPUPLUGIN_DRA_GPUS"]
    made._environment["CONFIG_FILE"] = str(tmp_path / "config.yaml")
    try:
        made.wait_forgotten()
        yield made
    finally:
        made.close()


def configure(node: ClaimNode, **dra: str) -> None:
    path = Path(node._environment["CONFIG_FILE"])
    path.with_suffix(".new").write_text(json.dumps({"dra": dra}))
    path.with_suffix(".new").replace(path)


@pytest.mark.kubelet(topology_policy="none")  # six of eight are on both NUMA nodes
def test_gpus_change_owner_under_running_pods_and_none_has_two(node: ClaimNode):
    configure(node)
    node.start_ready()
    counted = node.in_container(node.pod("counted", 2))
    configure(node, gpus="all")
    node.wait_said("registered with kubelet", driver=DRIVER)
    node.wait_devices(6)
    node.wait_allocatable(0)
    tainted = {one["attributes"]["uuid"]["string"] for one in node.devices() if one.get("taints")}
    assert tainted == counted
    claimed = node.in_container(node.claiming("claimed", request("gpus", 6)))
    assert not claimed & counted
    node.end("counted")
    node.wait_devices(8)
    configure(node)
    node.wait_allocatable(2)
    assert node.devices() == []
    assert node.in_container(node.pod("again", 2)) == counted
    node.end_claims("claimed")
    node.wait_allocatable(8)
    assert node.in_container(node.pod("rest", 6)) == claimed


def test_gpu_of_a_shared_claim_is_not_given_away_while_a_later_pod_that_was_force_deleted_runs(node: ClaimNode):
    configure(node, gpus="all")
    node.start_publishing()
    api, cluster = node.cluster.api, node.cluster
    api.apply(claim("shared", request("gpus", 8)), claiming_pod("first", "shared"))
    first = node.runs("first")
    api.apply(claiming_pod("later", "shared", command=STUBBORN, terminationGracePeriodSeconds=600))
    later = node.runs("later")
    container = later["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
    process = _root_of(container).parent
    api.delete("Pod", "first")
    folder = KUBELET_FOLDER / "pods" / first["metadata"]["uid"]
    cluster.wait_for(lambda: not folder.exists() or None, READY_SECONDS, "nothing left of the first pod")
    assert node.recorded().keys() == {"shared"}
    node.kill()
    cluster.stop(Component.KUBELET, signal.SIGKILL)
    api.delete("Pod", "later", grace=0)
    api.delete("ResourceClaim", "shared")
    cluster.wait_for(lambda: not api.exists("ResourceClaim", "shared") or None, READY_SECONDS, "the claim gone")
    assert process.exists()
    api.apply(claim("rival", request("gpus", 8)), claiming_pod("rival", "rival"))
    cluster.wait_for(lambda: api.get("Pod", "rival")["spec"].get("nodeName") == NODE or None, READY_SECONDS, "bound")
    node.start()
    cluster.start(Component.KUBELET)
    node.runs("rival")
    assert not process.exists(), "two had the GPUs"
    assert node.recorded() == {"rival": node.uuids(*range(8))}
    node.end_claims("rival")
