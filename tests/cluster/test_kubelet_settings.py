"""Kubelet's settings as they are read on a node with a real kubelet."""

import json
import sys

import pytest
from gpunode import CHECKOUT, GpuNode

pytestmark = pytest.mark.cluster

READ = """
import dataclasses, json, pathlib
from gpuplugin.discovery.kubelet_settings import read
from gpuplugin.discovery.places import Place
found = read(pathlib.Path("/var/lib/kubelet"), pathlib.Path("/proc"), Place())
print(json.dumps(dataclasses.asdict(found)))
"""


def read_on_node(gpus: GpuNode) -> dict[str, object]:
    """What a process in the node's mount namespace reads, with nothing but its files and /proc."""
    return dict(json.loads(gpus.cluster.enter("env", f"PYTHONPATH={CHECKOUT}", sys.executable, "-c", READ)))


@pytest.mark.kubelet(topology_policy="restricted", topology_scope="pod", extra={
    "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"}})  # fmt: skip
def test_settings_are_those_that_kubelet_was_given(gpus: GpuNode):
    found = read_on_node(gpus)
    assert (found["topology_policy"], found["topology_scope"]) == ("restricted", "pod")
    assert found["topology_options"] == {"prefer-closest-numa-nodes": "true"}
    assert (found["cpu_policy"], found["cpu_state"], found["reserved_cpus"]) == ("static", "static", [0])
    assert (found["memory_policy"], found["memory_state"]) == ("None", "None")
    assert found["read_from"] == [
        str(gpus.cluster.layout.kubelet_config),
        "kubelet's command line",
        "/var/lib/kubelet/cpu_manager_state",
        "/var/lib/kubelet/memory_manager_state",
    ]
    assert found["troubles"] == []


def test_daemon_that_sees_no_process_of_kubelets_still_tells_of_its_cpu_manager(gpus: GpuNode):
    told = gpus.wait_said("kubelet's settings")
    assert told["cpuManagerPolicy"] == "static"
    assert told["topologyManagerPolicy"] is None
    assert "/var/lib/kubelet/cpu_manager_state" in told["read_from"]
