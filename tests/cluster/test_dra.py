"""Pods with claims on the real scheduler and kubelet: they get what they asked for, and see it inside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from claims import DRIVER, ClaimNode, claim, claiming_pod, request
from gpunode import GPU, SOCKETS
from onenode import Cluster, Component
from onenode.layout import NODE
from onenode.pods import busybox_pod

pytestmark = pytest.mark.cluster

NUMA = "resource.kubernetes.io/numaNode"
ISLAND = "gpuplugin.io/nvlinkIsland"


@pytest.fixture
def idle_node(cluster: Cluster, tmp_path) -> Iterator[ClaimNode]:
    """The daemon is not started yet."""
    made = ClaimNode(cluster, tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def node(idle_node: ClaimNode) -> ClaimNode:
    idle_node.start_publishing()
    return idle_node


def numa(node: ClaimNode, uuids: frozenset[str]) -> set[int]:
    return {gpu.index // 4 for gpu in node.state.snapshot.gpus if gpu.uuid in uuids}


def test_pods_with_1_4_and_8_gpus_see_just_those(node: ClaimNode):
    four = node.in_container(node.claiming("four", request("gpus", 4)))
    one = node.in_container(node.claiming("one", request("gpus")))
    assert (four, one) == (node.allocated("four"), node.allocated("one"))
    assert (len(four), len(one), four & one) == (4, 1, frozenset())
    assert len(numa(node, four)) == 1, "the order of devices alone brings them to one NUMA node"
    assert node.recorded() == {"four": four, "one": one}
    node.end_claims("four", "one")
    assert node.in_container(node.claiming("eight", request("gpus", 8))) == node.uuids(*range(8))


def test_status_says_what_a_claim_was_given(node: ClaimNode):
    inside = node.in_container(node.claiming("two", request("gpus", 2)))
    told = node.cluster.wait_for(
        lambda: node.cluster.api.get("ResourceClaim", "two")["status"]["devices"], 30, "status.devices"
    )
    assert {one["data"]["uuid"] for one in told} == inside
    for one in told:
        assert one["driver"] == DRIVER
        assert one["data"].keys() == {"uuid", "pciBusID", "numaNode", "nvlinkIsland"}


def test_selectors_choose_by_attribute_and_capacity(node: ClaimNode):
    (wanted,) = node.uuids(6)
    by_uuid = f"device.attributes['{DRIVER}'].uuid == '{wanted}'"
    assert node.in_container(node.claiming("that", request("gpu", cel=by_uuid))) == {wanted}
    big = (
        f"device.attributes['{DRIVER}'].productName.contains('H100') && "
        f"device.capacity['{DRIVER}'].memory.compareTo(quantity('40Gi')) > 0 && "
        f"device.attributes['resource.kubernetes.io'].numaNode == 1"
    )
    assert numa(node, node.in_container(node.claiming("big", request("gpus", 2, cel=big)))) == {1}
    node.cluster.api.apply(
        claim("none", request("gpu", cel=f"device.attributes['{DRIVER}'].architecture == 'Ada Lovelace'")),
        claiming_pod("none", "none"),
    )
    node.wait_event("none", "cannot allocate all claims")


def test_match_attribute_keeps_requests_on_one_numa_node_and_island(node: ClaimNode):
    node.claiming("three", request("gpus", 3))
    together = [{"matchAttribute": NUMA}]
    pair = node.in_container(node.claiming("pair", request("a"), request("b"), constraints=together))
    assert len(numa(node, pair)) == 1
    island = [{"matchAttribute": ISLAND}]
    assert len(node.in_container(node.claiming("island", request("gpus", 3), constraints=island))) == 3


def test_first_available_takes_the_next_best(node: ClaimNode):
    held = node.in_container(node.claiming("one", request("gpus")))
    choice = {
        "name": "gpus",
        "firstAvailable": [
            {"name": "node", "deviceClassName": DRIVER, "count": 8},
            {"name": "half", "deviceClassName": DRIVER, "count": 4},
        ],
    }
    inside = node.in_container(node.claiming("choice", choice))
    assert len(inside) == 4
    assert not inside & held


def test_admin_access_sees_every_gpu_and_takes_none(node: ClaimNode):
    label = "resource.kubernetes.io/admin-access"
    node.cluster.api.patch("Namespace", "default", {"metadata": {"labels": {label: "true"}}})
    try:
        works = node.in_container(node.claiming("works", request("gpus", 4)))
        every = request("gpus", admin=True)
        every["exactly"] |= {"allocationMode": "All"}
        del every["exactly"]["count"]
        assert node.in_container(node.claiming("watches", every)) == node.uuids(*range(8))
        more = node.in_container(node.claiming("more", request("gpus", 4)))
        assert more | works == node.uuids(*range(8))
        node.end_claims("watches")
    finally:
        node.cluster.api.patch("Namespace", "default", {"metadata": {"labels": {label: None}}})


def ordinary(node: ClaimNode, name: str, gpus: int) -> frozenset[str]:
    """What a pod is given that asks for `nvidia.com/gpu`, as its container sees it."""
    node.cluster.api.apply(busybox_pod(name, limits={GPU: gpus}))
    return node.in_container(node.runs(name))


def test_ordinary_pods_get_gpus_of_claims_by_the_extended_resource(node: ClaimNode):
    node.wait_allocatable(0)
    inside = ordinary(node, "plain", 4)
    assert len(inside) == 4
    assert set(node.recorded().values()) == {inside}
    node.cluster.api.delete("Pod", "plain")
    node.cluster.wait_for(lambda: not node.recorded() or None, 60, "the claim made for it unprepared")


def test_node_goes_over_from_device_plugin_to_claims_while_a_pod_has_a_gpu(idle_node: ClaimNode):
    """Kubelet, which aligns here, still knows GPUs of the device plugin of which none is free."""
    node = idle_node
    node.start_ready(GPUPLUGIN_DRA_GPUS="")
    held = node.in_container(node.pod("old", 1))
    node.stop()
    node.start_publishing(7)
    node.wait_allocatable(0)
    inside = ordinary(node, "plain", 4)
    assert len(inside) == 4
    assert not inside & held
    node.cluster.restart(Component.KUBELET)
    node.wait_allocatable(0)
    more = ordinary(node, "more", 3)
    assert (len(more), more & (inside | held)) == (3, frozenset())
    for pod in ("old", "plain"):
        assert node.cluster.api.get("Pod", pod)["status"]["phase"] == "Running"
    node.end("old")
    node.wait_devices(8)
    assert ordinary(node, "last", 1) == held


def test_node_goes_over_to_claims_after_kubelet_has_lost_its_memory_of_the_device_plugin(idle_node: ClaimNode):
    """The Node then counts what nobody has: the scheduler asks no claim, and kubelet admits pods without a GPU."""
    node = idle_node
    node.start_ready(GPUPLUGIN_DRA_GPUS="")
    node.stop()
    node.cluster.stop(Component.KUBELET)
    (SOCKETS / "kubelet_internal_checkpoint").unlink()
    node.cluster.start(Component.KUBELET)
    node.cluster.api.patch("Node", NODE, {"status": {"capacity": {GPU: "8"}}}, part="status")  # as it was found
    node.wait_allocatable(8)
    node.start_publishing()
    node.wait_allocatable(0)
    assert len(ordinary(node, "plain", 4)) == 4


def test_two_containers_share_a_claim_by_request(node: ClaimNode):
    node.cluster.api.apply(claim("both", request("a", 2), request("b", 1)))
    pod = claiming_pod("both", "both")
    first = pod["spec"]["containers"][0]
    first["resources"] = {"claims": [{"name": "both", "request": "a"}]}
    pod["spec"]["containers"].append(
        {**first, "name": "other", "resources": {"claims": [{"name": "both", "request": "b"}]}}
    )
    node.cluster.api.apply(pod)
    status = node.runs("both")["status"]["containerStatuses"]
    inside = {one["name"]: node.in_container({"status": {"containerStatuses": [one]}}) for one in status}
    assert {name: len(gpus) for name, gpus in inside.items()} == {"main": 2, "other": 1}
    assert not inside["main"] & inside["other"]


def test_sick_gpu_is_tainted_with_its_reason_told_to_its_pod_and_both_are_lifted(node: ClaimNode):
    (uuid,) = node.in_container(node.claiming("holds", request("gpus")))
    index = next(gpu.index for gpu in node.state.snapshot.gpus if gpu.uuid == uuid)

    def health() -> str:
        status = node.cluster.api.get("Pod", "holds")["status"]["containerStatuses"][0]
        found: str = status["allocatedResourcesStatus"][0]["resources"][0]["health"]
        return found

    node.cluster.wait_for(lambda: health() == "Healthy" or None, 30, "a healthy GPU in the pod's status")
    node.state.lose(index)
    node.wait_devices(7)
    (sick,) = (one for one in node.devices() if one.get("taints"))
    assert sick["attributes"]["uuid"]["string"] == uuid
    (taint,) = sick["taints"]
    assert (taint["key"], taint["effect"]) == ("gpuplugin.io/unhealthy", "NoSchedule")
    assert "GPU_IS_LOST" in taint["value"]
    node.cluster.wait_for(lambda: health() == "Unhealthy" or None, 30, "the reason in the pod's status")
    others = node.in_container(node.claiming("others", request("gpus", 7)))
    assert uuid not in others
    node.state.restore(index)
    node.wait_devices(8)
    node.cluster.wait_for(lambda: health() == "Healthy" or None, 30, "a healthy GPU again")
