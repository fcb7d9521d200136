"""Everything that dies or is taken away while claims are prepared: nothing is given twice, nothing stays behind."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest
from claims import RECORDS, ClaimNode, claim, claiming_pod, request
from gpunode import GPU
from onenode import Cluster, Component
from onenode.layout import KUBELET_FOLDER
from onenode.pods import busybox_pod

pytestmark = pytest.mark.cluster

STUBBORN = ("sh", "-c", "trap '' TERM; while :; do sleep 1; done")


@pytest.fixture
def bare(cluster: Cluster, tmp_path) -> Iterator[ClaimNode]:
    made = ClaimNode(cluster, tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def node(bare: ClaimNode) -> ClaimNode:
    bare.start_publishing()
    return bare


def kubelet_knows(name: str) -> bool:
    """Whether kubelet has begun to prepare a claim: it notes that before it calls anybody."""
    state = KUBELET_FOLDER / "dra_manager_state"
    return state.exists() and name in state.read_text()


@pytest.mark.parametrize("point", ["before begin", "after begin"])
def test_killed_while_it_prepares_the_pod_starts_with_the_next_daemon(bare: ClaimNode, point: str):
    bare.start_publishing(GPUPLUGIN_TEST_KILL=point)
    bare.cluster.api.apply(claim("pair", request("gpus", 2)), claiming_pod("pair", "pair"))
    assert bare.wait_end() == -signal.SIGKILL
    assert len(bare.recorded()) == (point == "after begin")
    bare.start_publishing()
    inside = bare.in_container(bare.runs("pair"))
    assert inside == bare.allocated("pair")
    assert bare.recorded() == {"pair": inside}
    rest = bare.in_container(bare.claiming("rest", request("gpus", 6)))
    assert not rest & inside
    bare.end_claims("pair", "rest")


def test_killed_while_it_unprepares_the_gpus_come_back_with_the_next_daemon(bare: ClaimNode):
    bare.start_publishing(GPUPLUGIN_TEST_KILL="before remove")
    bare.claiming("eight", request("gpus", 8))
    bare.cluster.api.delete("Pod", "eight")
    assert bare.wait_end() == -signal.SIGKILL
    assert bare.recorded()
    bare.start_publishing()
    bare.cluster.wait_for(lambda: not bare.recorded() or None, 90, "the claim unprepared")
    bare.cluster.api.delete("ResourceClaim", "eight")
    assert len(bare.in_container(bare.claiming("again", request("gpus", 8)))) == 8


def test_kubelet_restarts_and_pods_keep_what_they_have(node: ClaimNode):
    before = node.claiming("holds", request("gpus", 4))
    inside = node.in_container(before)
    records = {path.name: path.read_text() for path in RECORDS.glob("*.json")}
    node.cluster.restart(Component.KUBELET, signal.SIGKILL)
    node.wait_devices(8)
    more = node.in_container(node.claiming("more", request("gpus", 4)))
    after = node.cluster.api.get("Pod", "holds")
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0
    assert node.in_container(after) == inside
    assert more | inside == node.uuids(*range(8))
    assert {name: (RECORDS / name).read_text() for name in records} == records
    node.end_claims("holds", "more")


def test_force_deleted_pod_keeps_its_gpus_until_it_has_ended(node: ClaimNode):
    node.cluster.api.apply(
        claim("old", request("gpus", 8)),
        claiming_pod("old", "old", command=STUBBORN, terminationGracePeriodSeconds=600),
    )
    node.runs("old")
    node.cluster.api.delete("Pod", "old", grace=0)
    node.cluster.api.delete("ResourceClaim", "old", grace=0)
    new = node.in_container(node.claiming("new", request("gpus", 8)))
    assert new == node.uuids(*range(8))
    told = [text for text in node.events("new") if "is still held by" in text]
    assert all("claim default/old" in text and "prepared for pod default/old" in text for text in told)
    node.end_claims("new")


def test_api_server_dies_while_a_claim_is_prepared(node: ClaimNode):
    node.send(signal.SIGSTOP)
    node.cluster.api.apply(claim("pair", request("gpus", 2)), claiming_pod("pair", "pair"))
    node.cluster.wait_for(lambda: kubelet_knows("pair") or None, 30, "kubelet preparing")
    node.cluster.stop(Component.API_SERVER, signal.SIGKILL)
    node.send(signal.SIGCONT)
    node.wait_said("refused", call="prepare", seconds=60)
    assert node.recorded() == {}
    node.cluster.up()  # controllers and scheduler may have given up without it
    inside = node.in_container(node.runs("pair"))
    assert node.recorded() == {"pair": inside}
    node.end_claims("pair")


def test_api_server_dies_while_a_claim_is_unprepared(node: ClaimNode):
    node.claiming("pair", request("gpus", 2))
    node.send(signal.SIGSTOP)
    node.cluster.api.delete("Pod", "pair")
    node.cluster.wait_for(lambda: _containers_ended(node, "pair") or None, 60, "the containers ended")
    node.cluster.stop(Component.API_SERVER, signal.SIGKILL)
    node.send(signal.SIGCONT)
    node.wait_said("claim unprepared", claim="default/pair", seconds=60)
    assert node.recorded() == {}
    node.cluster.up()
    assert len(node.in_container(node.claiming("eight", request("gpus", 8)))) == 8
    node.end_claims("eight")


def _containers_ended(node: ClaimNode, name: str) -> bool:
    pod = node.cluster.api.get("Pod", name)
    return all("terminated" in one["state"] for one in pod["status"]["containerStatuses"])


def test_broken_record_is_made_anew_while_the_pod_runs(node: ClaimNode):
    inside = node.in_container(node.claiming("pair", request("gpus", 2)))
    node.kill()
    (record,) = RECORDS.glob("*.json")
    record.write_text(record.read_text()[:40])
    node.start_publishing()
    node.wait_said("claim recorded anew", claim="default/pair")
    assert node.recorded() == {"pair": inside}
    assert [path.name.startswith(record.name) for path in (RECORDS / "unreadable").iterdir()] == [True]
    node.end_claims("pair")


def test_lost_records_are_found_again_by_asking_kubelet(node: ClaimNode):
    inside = node.in_container(node.claiming("pair", request("gpus", 2)))
    node.kill()
    for record in RECORDS.glob("*.json"):
        record.unlink()
    node.start_publishing()
    node.wait_said("claim recorded anew", claim="default/pair")
    assert node.recorded() == {"pair": inside}
    node.end_claims("pair")


def test_next_instance_serves_before_the_old_one_ends(node: ClaimNode):
    inside = node.in_container(node.claiming("pair", request("gpus", 2)))
    slices = _slices(node)
    with (node._log_file.parent / "second.log").open("wb") as log:
        second = node.spawn(log)
        try:
            node.cluster.wait_for(
                lambda: b"registered with kubelet" in (node._log_file.parent / "second.log").read_bytes() or None,
                30,
                "the second one registered",
            )
            assert node.stop() == 0
            more = node.in_container(node.claiming("more", request("gpus", 2)))
            assert not more & inside
            node.end_claims("pair", "more")
            assert _slices(node) == slices
        finally:
            second.terminate()
            second.wait()


def _slices(node: ClaimNode) -> list[tuple[str, str]]:
    found = node.cluster.api.list("ResourceSlice")
    return [(one["metadata"]["name"], json.dumps(one["spec"], sort_keys=True)) for one in found]


def test_gpus_are_divided_between_claims_and_device_plugin(bare: ClaimNode):
    for_claims = bare.uuids(0, 1, 2, 3)
    bare.start_publishing(4, GPUPLUGIN_DRA_GPUS=",".join(sorted(for_claims)))
    bare.wait_allocatable(4)
    claimed = bare.in_container(bare.claiming("claimed", request("gpus", 4)))
    assert claimed == for_claims
    assert bare.in_container(bare.pod("counted", 4)) == bare.uuids(4, 5, 6, 7)
    bare.cluster.api.apply(claim("more", request("gpus")), claiming_pod("more", "more"))
    bare.wait_event("more", "cannot allocate all claims")
    bare.end_claims("claimed")


def test_gpu_that_a_pod_has_from_the_device_plugin_is_withheld_from_claims_until_it_ends(bare: ClaimNode):
    bare.start_ready(GPUPLUGIN_DRA_GPUS="")
    held = bare.in_container(bare.pod("counted", 2))
    bare.stop()
    bare.start_publishing(6)
    tainted = {one["attributes"]["uuid"]["string"]: one["taints"][0] for one in bare.devices() if one.get("taints")}
    assert tainted.keys() == held
    assert all("held-by-pod-default-counted" in taint["value"] for taint in tainted.values())
    assert not bare.in_container(bare.claiming("claimed", request("gpus", 6))) & held
    bare.cluster.api.delete("Pod", "counted")
    bare.wait_devices(8)
    assert bare.in_container(bare.claiming("rest", request("gpus", 2))) == held
    bare.end_claims("claimed", "rest")


@pytest.mark.kubelet(topology_policy="none")  # six of eight are on both NUMA nodes
def test_gpu_that_a_claim_has_is_withheld_from_the_device_plugin_until_it_is_unprepared(node: ClaimNode):
    held = node.in_container(node.claiming("claimed", request("gpus", 2)))
    node.stop()
    node.start(GPUPLUGIN_DRA_GPUS="")
    node.wait_allocatable(6)
    told = node.wait_said("withdrawn", resource=GPU)
    assert frozenset(told["devices"]) == held
    assert "claim default/claimed" in told["reason"]
    assert node.devices() == [], "claims have no GPU any more"
    assert not node.in_container(node.pod("counted", 6)) & held
    node.end_claims("claimed")
    node.wait_allocatable(8)
    node.cluster.api.apply(busybox_pod("rest", limits={GPU: 2}))
    assert node.in_container(node.runs("rest")) == held
