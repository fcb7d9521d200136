"""The main job on the real thing: pods get GPUs of their own, close together, and no others."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import pytest
from gpunode import GPU, GpuNode
from onenode.errors import CommandError
from onenode.pods import busybox_pod

pytestmark = pytest.mark.cluster

ALLOWED, REFUSED, ABSENT = "No such device or address", "Operation not permitted", "No such file or directory"
PROBE = """
for node in {nodes}; do
    echo "$node: $(busybox dd if=/dev/$node of=/dev/null count=1 2>&1 | grep -o "{answers}")"
done
mkdir /probe
for minor in 0 1 2 3 4 5 6 7 8 254 255; do
    busybox mknod /probe/$minor c 195 $minor
    echo "mknod $minor: $(busybox dd if=/probe/$minor of=/dev/null count=1 2>&1 | grep -o "{answers}")"
done
"""


def opened(gpus: GpuNode, pod: str) -> dict[str, str]:
    """What opening each node answers in the container: those it may have, then all that it could make for itself."""
    nodes = " ".join([*(f"nvidia{minor}" for minor in range(9)), "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"])
    script = PROBE.format(nodes=nodes, answers=rf"{ALLOWED}\|{REFUSED}\|{ABSENT}")
    lines = gpus.cluster.exec(pod, "sh", "-c", script).splitlines()
    return dict(line.split(": ", 1) for line in lines)


def test_four_pods_of_one_gpu_get_four_distinct_ones(gpus: GpuNode):
    names = ["one", "two", "three", "four"]
    gpus.cluster.api.apply(*(busybox_pod(name, limits={GPU: 1}) for name in names))
    inside = [gpus.in_container(gpus.cluster.wait_for_phase(name, "Running")) for name in names]
    assert all(len(devices) == 1 for devices in inside)
    assert len(frozenset().union(*inside)) == 4
    assert gpus.held() == dict(zip(names, inside, strict=True))


@pytest.mark.skipif(os.cpu_count() != 2, reason="which CPU is the free one is known where there are two")
def test_tensor_parallel_pod_gets_one_numa_node_with_its_cpu_and_its_gpus_only(gpus: GpuNode):
    pod = gpus.pod("tp4", 4, cpu=1, memory="32Mi")
    assert gpus.in_container(pod) == gpus.held()["tp4"] == gpus.uuids(4, 5, 6, 7)  # of NUMA node 1, as CPU 1 is
    (why,) = gpus.said("allocated")
    assert "one NVLink island (NV18), NUMA 1" in why["why"]
    status = gpus.cluster.exec("tp4", "cat", "/proc/self/status")
    assert re.search(r"Cpus_allowed_list:\s*(\S+)", status)[1] == "1"

    minors = {gpus.state.snapshot.gpu(index).minor for index in (4, 5, 6, 7)}
    answers = opened(gpus, "tp4")
    for minor in range(9):
        assert answers[f"nvidia{minor}"] == (ALLOWED if minor in minors else ABSENT)
        assert answers[f"mknod {minor}"] == (ALLOWED if minor in minors else REFUSED)
    for node in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
        assert answers[node] == ALLOWED
    assert answers["mknod 255"] == ALLOWED  # nvidiactl once more

    environment = dict(line.split("=", 1) for line in gpus.cluster.exec("tp4", "env").splitlines())
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_second_pod_of_four_gets_the_other_numa_node(gpus: GpuNode):
    gpus.pod("first", 4)
    gpus.pod("second", 4)
    held = gpus.held()
    assert {held["first"], held["second"]} == {gpus.uuids(0, 1, 2, 3), gpus.uuids(4, 5, 6, 7)}


def test_pairs_are_taken_so_that_four_stay_together(gpus: GpuNode):
    gpus.pod("pair", 2)
    gpus.pod("single", 1)
    gpus.pod("four", 4)
    held = gpus.held()
    assert held["pair"] in [gpus.uuids(0, 1), gpus.uuids(2, 3)]  # one PCIe switch
    assert held["four"] == gpus.uuids(4, 5, 6, 7)


def test_five_gpus_on_one_numa_node_are_refused_in_the_pods_status(gpus: GpuNode):
    gpus.cluster.api.apply(busybox_pod("five", limits={GPU: 5}))
    status = gpus.cluster.wait_for_phase("five", "Failed")["status"]
    assert status["reason"] == "TopologyAffinityError"
    assert gpus.held() == {}


@pytest.mark.kubelet(topology_policy="best-effort")
def test_five_gpus_are_had_where_kubelet_does_not_insist(gpus: GpuNode):
    inside = gpus.in_container(gpus.pod("five", 5))
    assert len(inside) == 5
    assert len(inside & gpus.uuids(0, 1, 2, 3)) in {1, 4}  # a whole NUMA node, and one more


def test_container_finds_the_drivers_libraries_by_the_names_that_programs_ask_for(gpus: GpuNode):
    gpus.pod("reads", 1)
    folder = Path("/usr/lib/x86_64-linux-gnu")
    version = gpus.state.snapshot.driver.version
    for name in ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"):
        inside = gpus.cluster.exec("reads", "busybox", "sha1sum", str(folder / name)).split()[0]
        driver = gpus.host.root / f"usr/lib/x86_64-linux-gnu/{name.partition('.')[0]}.so.{version}"
        assert inside == hashlib.sha1(driver.read_bytes()).hexdigest()
    mounts = [line.split() for line in gpus.cluster.exec("reads", "cat", "/proc/mounts").splitlines()]
    libraries = {fields[1]: fields[3].split(",") for fields in mounts if str(folder) in fields[1]}
    assert str(folder / "libcuda.so.1") in libraries
    assert {path: options for path, options in libraries.items() if "ro" not in options} == {}
    with pytest.raises(CommandError, match="Read-only file system"):
        gpus.cluster.exec("reads", "busybox", "touch", str(folder / "libcuda.so.1"))
