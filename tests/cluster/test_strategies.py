"""Each way of telling the container runtime, with kubelet and containerd as they are."""

from __future__ import annotations

import pytest
from gpunode import GpuNode

pytestmark = pytest.mark.cluster

LISTED = "/var/run/nvidia-container-devices"


def started(node: GpuNode, strategies: str, **settings: str) -> GpuNode:
    node.start_ready(DEVICE_LIST_STRATEGY=strategies, **settings)
    return node


def visible(node: GpuNode, pod: str) -> str | None:
    """What the variable says that NVIDIA's runtime would read."""
    lines = node.cluster.exec(pod, "env").splitlines()
    return dict(line.split("=", 1) for line in lines).get("NVIDIA_VISIBLE_DEVICES")


@pytest.mark.parametrize("strategies", ["cdi-annotations", "cdi-cri,cdi-annotations,envvar"])
def test_cdi_gives_the_gpu_once_however_often_it_is_named(bare_node: GpuNode, strategies: str):
    node = started(bare_node, strategies)
    inside = node.in_container(node.pod("one", 1))
    assert inside == node.held()["one"]
    assert visible(node, "one") == "void"


def test_variable_and_nodes_are_for_a_runtime_that_reads_them(bare_node: GpuNode):
    node = started(bare_node, "envvar", PASS_DEVICE_SPECS="true")
    inside = node.in_container(node.pod("two", 2))
    assert inside == node.held()["two"]
    assert set((visible(node, "two") or "").split(",")) == inside
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
        assert node.cluster.exec("two", "ls", f"/dev/{name}").strip() == f"/dev/{name}"


def test_mounts_list_the_devices_and_the_variable_says_so(bare_node: GpuNode):
    node = started(bare_node, "volume-mounts,envvar", DEVICE_ID_STRATEGY="index")
    node.pod("two", 2)
    assert visible(node, "two") == LISTED
    listed = node.cluster.exec("two", "ls", LISTED).split()
    assert node.uuids(*map(int, listed)) == node.held()["two"]


def test_devices_called_by_index_are_those_of_the_document(bare_node: GpuNode):
    node = started(bare_node, "cdi-cri", DEVICE_ID_STRATEGY="index")
    assert node.in_container(node.pod("four", 4)) == node.held()["four"]
