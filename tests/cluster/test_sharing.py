"""Slices of GPUs on the real thing: pods that share, rules that hold, and what an MPS client finds."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from gpunode import GPU, READY_SECONDS, GpuNode
from onenode.pods import busybox_pod

pytestmark = pytest.mark.cluster


@pytest.fixture
def sliced(bare_node: GpuNode, tmp_path: Path) -> GpuNode:
    """The node, with each GPU offered four times."""
    return started(bare_node, tmp_path, {"timeSlicing": {"resources": [{"name": GPU, "replicas": 4}]}}, 32)


def started(node: GpuNode, folder: Path, sharing: object, devices: int, **more: object) -> GpuNode:
    """Start the daemon with a configuration file, and wait for its devices."""
    path = folder / "config.json"
    path.write_text(json.dumps({"version": "v1", "sharing": sharing, **more}))
    node.start(CONFIG_FILE=str(path))
    node.wait_said("kubelet watches", resource=GPU)
    node.wait_allocatable(devices)
    return node


def test_five_pods_share_and_each_sees_the_one_gpu_that_it_shares(sliced: GpuNode):
    names = [f"slice-{number}" for number in range(5)]
    sliced.cluster.api.apply(*(busybox_pod(name, limits={GPU: 1}) for name in names))
    inside = [sliced.in_container(sliced.cluster.wait_for_phase(name, "Running")) for name in names]
    assert all(len(devices) == 1 for devices in inside)
    assert len(frozenset().union(*inside)) == 4  # of the NUMA node that kubelet fills first, and one of them twice
    held = sliced.held()
    assert {pod: {one.partition("::")[0] for one in ids} for pod, ids in held.items()} == dict(
        zip(names, inside, strict=True)
    )
    assert sum(len(ids) for ids in held.values()) == len(frozenset().union(*held.values())) == 5


def test_pod_that_wants_two_slices_of_one_gpu_is_told_why_it_may_not(bare_node: GpuNode, tmp_path: Path):
    rules = {"failRequestsGreaterThanOne": True, "resources": [{"name": GPU, "replicas": 4}]}
    started(bare_node, tmp_path, {"timeSlicing": rules}, 32)
    bare_node.cluster.api.apply(busybox_pod("two", limits={GPU: 2}))
    status = bare_node.cluster.wait_for_phase("two", "Failed")["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "sharing.timeSlicing.failRequestsGreaterThanOne" in status["message"]
    assert bare_node.held() == {}


@pytest.mark.kubelet(topology_policy="none")
def test_slices_that_must_be_apart_are_apart_or_refused(bare_node: GpuNode, tmp_path: Path):
    entry = {"name": GPU, "replicas": 4, "spread": "required"}
    started(bare_node, tmp_path, {"timeSlicing": {"resources": [entry]}}, 32)
    assert len(bare_node.in_container(bare_node.pod("eight", 8))) == 8
    bare_node.cluster.api.apply(busybox_pod("nine", limits={GPU: 9}))
    status = bare_node.cluster.wait_for_phase("nine", "Failed")["status"]
    assert "each on a GPU of its own (spread: required), but only 8 GPUs have one to give" in status["message"]


@pytest.mark.kubelet(topology_policy="none")
def test_packed_pods_leave_gpus_to_others(bare_node: GpuNode, tmp_path: Path):
    packed = {"plugin": {"sharedDevicesAllocationPolicy": "packed"}}
    started(bare_node, tmp_path, {"timeSlicing": {"resources": [{"name": GPU, "replicas": 4}]}}, 32, flags=packed)
    inside = [bare_node.in_container(bare_node.pod(f"slice-{number}", 1)) for number in range(5)]
    assert len(frozenset().union(*inside[:4])) == 1
    assert inside[4] != inside[3]


def test_client_of_mps_finds_its_control_daemons_pipes_and_shared_memory(bare_node: GpuNode, tmp_path: Path):
    root = tmp_path / "mps"
    pipes = root / GPU / "pipe"
    pipes.mkdir(parents=True)
    (root / "shm").mkdir()
    (root / "shm/shared").write_text("of the host")
    mps = {"mps": {"resources": [{"name": GPU, "replicas": 2}]}}
    started(bare_node, tmp_path, mps, 0, flags={"mpsRoot": str(root)})
    withdrawn = bare_node.wait_said("withdrawn", resource=GPU)
    assert f"start one with CUDA_MPS_PIPE_DIRECTORY={pipes}" in withdrawn["reason"]

    os.mkfifo(pipes / "control")
    bare_node.wait_allocatable(16, READY_SECONDS)
    bare_node.pod("client", 1)
    run = bare_node.cluster.exec
    environment = dict(line.split("=", 1) for line in run("client", "env").splitlines())
    assert environment["CUDA_MPS_PIPE_DIRECTORY"] == f"/mps/{GPU}/pipe"
    assert run("client", "ls", f"/mps/{GPU}/pipe").split() == ["control"]
    assert run("client", "cat", "/dev/shm/shared") == "of the host"
    bare_node.end("client")
