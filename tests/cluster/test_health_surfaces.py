"""A GPU lost and recovered, and one cordoned, as each surface of a real Kubernetes shows them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from claims import ClaimNode
from gpunode import CHECKOUT, GPU
from onenode import Cluster

from gpuplugin.daemon.cordon import Cordons

pytestmark = pytest.mark.cluster

SOON = 30.0
RIGHTS = (CHECKOUT / "health.yaml").read_text()
TELLING = {"GPUPLUGIN_EVENTS_ENABLED": "true", "GPUPLUGIN_NODE_HEALTH_CONDITION": "true"}


@pytest.fixture
def node(cluster: Cluster, tmp_path) -> Iterator[ClaimNode]:
    cluster.api.apply(RIGHTS)
    made = ClaimNode(cluster, tmp_path)
    try:
        yield made
    finally:
        made.close()


def condition(node: ClaimNode) -> tuple[str, str, str]:
    found = [one for one in node.cluster.node()["status"]["conditions"] if one["type"] == "GPUsHealthy"]
    return (found[0]["status"], found[0]["reason"], found[0]["message"]) if found else ("", "", "")


def events(node: ClaimNode) -> list[tuple[str, str]]:
    found = [one for one in node.cluster.api.list("Event") if one["involvedObject"]["kind"] == "Node"]
    return [(one["reason"], one["message"]) for one in found if one["source"].get("component") == "gpuplugin"]


def taints(node: ClaimNode) -> dict[str, str]:
    """By UUID."""
    return {
        one["attributes"]["uuid"]["string"]: f"{one['taints'][0]['key']}={one['taints'][0]['value']}"
        for one in node.devices()
        if one.get("taints")
    }


def wait(node: ClaimNode, wanted, what: str) -> None:
    try:
        node.cluster.wait_for(wanted, SOON, what)
    except Exception as error:
        error.add_note(f"{condition(node)}\n{events(node)}\n{taints(node)}")
        raise


def test_lost_gpus_are_told_of_everywhere_and_so_is_their_recovery(node: ClaimNode):
    plugin, claimed = (node.state.snapshot.gpu(index).uuid for index in (2, 6))
    node.start_publishing(1, GPUPLUGIN_DRA_GPUS=claimed, **TELLING)
    node.wait_allocatable(7)
    wait(node, lambda: condition(node)[:2] == ("True", "AllGpusHealthy"), "a condition that says all is well")
    others = {one["type"]: one["status"] for one in node.cluster.node()["status"]["conditions"]}
    assert others["Ready"] == "True"

    for index in (2, 6):
        node.state.lose(index)
    node.wait_allocatable(6)
    wait(node, lambda: taints(node).keys() == {claimed}, "a taint")
    assert taints(node)[claimed].startswith("gpuplugin.io/unhealthy=NVML-GPU_IS_LOST")
    wait(
        node, lambda: all(f"GPU {index}: NVML: GPU_IS_LOST" in condition(node)[2] for index in (2, 6)), "the condition"
    )
    assert condition(node)[:2] == ("False", "GpuLost")
    wait(node, lambda: [reason for reason, _ in events(node)].count("GpuLost") == 2, "an Event each")
    assert {entry["device"] for entry in node.said("fault", fault="lost")} == {plugin, claimed}

    for index in (2, 6):
        node.state.restore(index)
    node.wait_allocatable(7)
    node.wait_devices(1)
    wait(node, lambda: condition(node)[:2] == ("True", "AllGpusHealthy"), "a condition that says all is well again")
    wait(node, lambda: [reason for reason, _ in events(node)].count("GpuFaultEnded") == 2, "Events of the end")
    after = {one["type"]: one["status"] for one in node.cluster.node()["status"]["conditions"]}
    assert after == others, "nothing else of the Node was touched"


def test_cordoned_gpu_stays_out_over_restarts_and_the_pod_that_has_it_goes_on(node: ClaimNode, tmp_path):
    node.start_publishing(1, GPUPLUGIN_DRA_GPUS=node.state.snapshot.gpu(6).uuid, **TELLING)
    node.wait_allocatable(7)
    (held,) = node.in_container(node.pod("holds", 1))
    cordons = Cordons(tmp_path / "state")
    cordons.put(held, "coolant leak")
    node.wait_allocatable(6)
    wait(node, lambda: condition(node)[1] == "GpuCordoned", "the condition")
    node.stop()
    node.start(GPUPLUGIN_DRA_GPUS=node.state.snapshot.gpu(6).uuid, **TELLING)
    node.wait_said("kubelet watches", resource=GPU)
    node.wait_allocatable(6)
    pod = node.cluster.api.get("Pod", "holds")
    assert pod["status"]["phase"] == "Running"
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    cordons.take_away(held)
    node.wait_allocatable(7)
    assert node.cluster.node()["status"]["capacity"][GPU] == "7"
