"""A GPU that cannot be used leaves the node and comes back, with the reason said once; pods that hold others go on."""

from __future__ import annotations

import pytest
from gpunode import GPU, GpuNode
from onenode.pods import busybox_pod

pytestmark = pytest.mark.cluster

RESET = 1


def test_lost_gpu_is_not_allocatable_until_it_has_recovered(gpus: GpuNode):
    (lost,), everything = gpus.uuids(3), gpus.healthy()
    gpus.state.lose(3)
    gpus.cluster.wait_for(lambda: gpus.healthy() == everything - {lost}, 30, "one GPU less at kubelet")
    gpus.wait_allocatable(7)
    assert "GPU_IS_LOST" in gpus.said("withdrawn")[0]["reason"]

    gpus.pod("pair", 2)
    assert lost not in gpus.held()["pair"]

    gpus.state.restore(3)
    gpus.wait_allocatable(8)
    assert [entry["devices"] for entry in gpus.said("recovered")] == [[lost]]
    assert {tuple(entry["devices"]) for entry in gpus.said("withdrawn")} == {(lost,)}
    assert gpus.cluster.node()["status"]["capacity"][GPU] == "8"


def test_xid_takes_a_gpu_that_a_pod_holds_and_the_pod_goes_on(gpus: GpuNode):
    before = gpus.pod("holds", 4)
    inside = gpus.in_container(before)
    index = next(gpu.index for gpu in gpus.state.snapshot.gpus if gpu.uuid in inside)
    gpus.state.recovery(index, RESET)
    gpus.state.xid(index, 79)
    gpus.wait_allocatable(7)
    assert all(told["gpus"] == [index] for told in gpus.said("withdrawn"))
    assert len(gpus.said("XID", xid=79, gpu=index)) == 1
    gpus.state.recovery(index, 0)
    gpus.wait_allocatable(8)
    after = gpus.cluster.api.get("Pod", "holds")
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0
    assert gpus.in_container(after) == gpus.held()["holds"] == inside


def test_xid_of_an_application_changes_nothing(gpus: GpuNode):
    gpus.state.xid(0, 31)
    gpus.wait_said("XID left to the application", xid=31, gpu=0)
    assert gpus.said("withdrawn") == []
    assert gpus.cluster.allocatable()[GPU] == "8"


def test_driver_that_comes_late_is_waited_for_and_said_once(bare_node: GpuNode):
    bare_node.state.driver(loaded=False)
    bare_node.start()
    trouble = bare_node.wait_said("the GPUs cannot be looked at: trying again")
    assert "DRIVER_NOT_LOADED" in trouble["reason"].upper().replace(" ", "_")
    bare_node.state.driver(loaded=True)
    bare_node.wait_allocatable(8)
    assert len(bare_node.said("the GPUs cannot be looked at: trying again")) == 1
    bare_node.pod("first", 1)


def test_missing_uvm_node_withholds_every_gpu_and_says_how_to_make_it(bare_node: GpuNode):
    node = bare_node.host.root / "dev/nvidia-uvm"
    aside = node.rename(node.with_name("aside"))
    bare_node.start(GPUPLUGIN_RESCAN_SECONDS="1")
    told = bare_node.wait_said("withdrawn")
    assert told["gpus"] == list(range(8))
    assert f"{node} is missing on the host; make it there with: nvidia-modprobe -u" in told["reason"]
    bare_node.cluster.wait_for(
        lambda: bare_node.cluster.node()["status"]["capacity"][GPU] == "8", 30, "eight GPUs, none of them allocatable"
    )
    bare_node.wait_allocatable(0)
    aside.rename(node)
    bare_node.wait_allocatable(8)
    assert len(bare_node.said("withdrawn")) == 1


def test_pod_that_waits_for_a_sick_gpu_starts_when_it_has_recovered(gpus: GpuNode):
    for index in range(4):
        gpus.state.lose(index)
    gpus.wait_allocatable(4)
    gpus.pod("four", 4)
    gpus.cluster.api.apply(busybox_pod("waits", limits={GPU: 4}))
    for index in range(4):
        gpus.state.restore(index)
    gpus.cluster.wait_for_phase("waits", "Running")
    assert gpus.held() == {"four": gpus.uuids(4, 5, 6, 7), "waits": gpus.uuids(0, 1, 2, 3)}
