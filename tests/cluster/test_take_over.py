"""Take-over from NVIDIA's DRA driver while pods hold GPUs of it, on the real scheduler, kubelet and containerd."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from claims import ClaimNode, claim, claiming_pod, request
from onenode import Cluster, Component
from other_driver import CHECKPOINT, OtherDriver, document_of

pytestmark = pytest.mark.cluster


@pytest.fixture
def node(cluster: Cluster, tmp_path) -> Iterator[ClaimNode]:
    made = ClaimNode(cluster, tmp_path)
    try:
        yield made
    finally:
        made.close()
        for path in CHECKPOINT.parent.glob(f"{CHECKPOINT.name}*"):
            path.unlink()


def names(node: ClaimNode) -> dict[str, str]:
    return {one["attributes"]["uuid"]["string"]: one["name"] for one in node.devices()}


def restarts(node: ClaimNode, pod: str) -> int:
    count: int = node.cluster.api.get("Pod", pod)["status"]["containerStatuses"][0]["restartCount"]
    return count


def wait_recorded(node: ClaimNode, held: dict[str, frozenset[str]]) -> None:
    try:
        node.cluster.wait_for(lambda: node.recorded() == held, 60, "its claims recorded, with their names")
    except Exception as error:
        error.add_note(f"--- recorded\n{node.recorded()}")
        error.add_note("--- daemon\n" + "\n".join(json.dumps(entry) for entry in node.log()[-30:]))
        raise


def test_claims_of_the_driver_before_us_keep_their_gpus_and_names_until_they_end(node: ClaimNode):
    """It gave names in another order than we would: a GPU's number may change each time that a driver is loaded."""
    other = OtherDriver(node, {gpu.index: f"gpu-{7 - gpu.index}" for gpu in node.state.snapshot.gpus})
    try:
        given = names(node)
        for name, count in (("one", 1), ("two", 2), ("ends", 1)):
            pod = claiming_pod(name, name, restartPolicy="Always")
            node.cluster.api.apply(claim(name, request("gpus", count)), pod)
        held = {name: node.in_container(node.runs(name)) for name in ("one", "two", "ends")}
        assert {name: node.allocated(name) for name in held} == held
        uids = {name: node.cluster.api.get("ResourceClaim", name)["metadata"]["uid"] for name in held}
        node.start()
        node.wait_said("another driver serves claims on this node: waiting for its end")
    finally:
        other.stop()
    node.wait_devices(8)
    wait_recorded(node, held)
    assert names(node) == given
    assert not CHECKPOINT.exists()
    assert {name: node.in_container(node.runs(name)) for name in held} == held

    node.end_claims("ends")
    assert not document_of(uids["ends"]).exists()
    new = node.in_container(node.claiming("new", request("gpus", 5)))
    assert new.isdisjoint(held["one"] | held["two"])

    node.kill_container("one")
    node.cluster.wait_for(lambda: restarts(node, "one") == 1, 60, "its container started again")
    node.cluster.restart(Component.KUBELET)
    node.kill_container("two")
    node.cluster.wait_for(lambda: restarts(node, "two") == 1, 60, "its container started by another kubelet")
    assert {name: node.in_container(node.runs(name)) for name in ("one", "two")} == {
        name: held[name] for name in ("one", "two")
    }
    another = claiming_pod("shares", "one")  # kubelet asks again for a claim that it does not know prepared
    node.cluster.api.apply(another)
    assert node.in_container(node.runs("shares")) == held["one"]
    node.cluster.api.delete("Pod", "shares")
    node.end_claims("one", "two", "new")
    assert not any(document_of(uid).exists() for uid in uids.values())
