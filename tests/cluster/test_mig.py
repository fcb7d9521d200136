"""MIG on the real thing: a pod can open its own instance's capabilities, and no other's, whatever nodes it makes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from gpunode import GPU, READY_SECONDS, GpuNode
from onenode.pods import busybox_pod

pytestmark = pytest.mark.cluster

BIG, SMALL = "nvidia.com/mig-3g.40gb", "nvidia.com/mig-1g.10gb"
PROBE = """
mkdir -p /probe
for minor in {minors}; do
    rm -f /probe/cap
    busybox mknod /probe/cap c {major} $minor
    echo "$minor $(busybox dd if=/probe/cap of=/dev/null count=1 2>&1 | grep -c 'No such device or address')"
done
"""


@pytest.fixture
def mixed(bare_node: GpuNode) -> GpuNode:
    """The node, with two instances of one profile and one of another on GPU 0, offered by profile."""
    layout(bare_node, 0, "3g.40gb", "1g.10gb", "1g.10gb")
    bare_node.start(MIG_STRATEGY="mixed")
    wait_for(bare_node, {GPU: 7, BIG: 1, SMALL: 2})
    return bare_node


def layout(node: GpuNode, gpu: int, *profiles: str) -> None:
    node.host.mig_mode(gpu, enabled=True)
    for profile in profiles:
        node.host.mig_create(gpu, profile)


def wait_for(node: GpuNode, counts: dict[str, int]) -> None:
    """Wait until the Node object says that so many of each resource can be had."""
    for resource, count in counts.items():
        node.cluster.wait_for(
            lambda resource=resource, count=count: node.cluster.allocatable().get(resource) == str(count),
            READY_SECONDS,
            f"{count} {resource}",
        )


def capabilities(node: GpuNode, uuid: str) -> set[int]:
    """The minors of a MIG device's capabilities, as the driver tells them."""
    [device] = [device for device in node.state.snapshot.migs if device.uuid == uuid]
    minor = node.state.snapshot.gpu(device.gpu).minor
    folder = node.host.root / f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{device.gi}"
    files = [folder / "access", folder / f"ci{device.ci}/access"]
    return {int(re.search(r"DeviceFileMinor: (\d+)", file.read_text())[1]) for file in files}


def inside(node: GpuNode, pod: str) -> tuple[set[int], set[int]]:
    """The capabilities whose nodes a container has, and those that it may open when it makes the nodes itself."""
    listed = node.cluster.exec(pod, "sh", "-c", "ls /dev/nvidia-caps").split()
    folder = node.host.root / "dev/nvidia-caps"
    everything = sorted(int(path.name.removeprefix("nvidia-cap")) for path in folder.iterdir())
    major = os.major(next(folder.iterdir()).stat().st_rdev)
    script = PROBE.format(minors=" ".join(map(str, everything)), major=major)
    answers = dict(line.split() for line in node.cluster.exec(pod, "sh", "-c", script).splitlines())
    return (
        {int(name.removeprefix("nvidia-cap")) for name in listed},
        {int(minor) for minor, allowed in answers.items() if allowed == "1"},
    )


def test_each_pod_sees_and_may_open_its_own_instance_alone(mixed: GpuNode):
    pods = {"big": BIG, "small": SMALL, "too": SMALL}
    mixed.cluster.api.apply(*(busybox_pod(name, limits={resource: 1}) for name, resource in pods.items()))
    seen: set[int] = set()
    for name, resource in pods.items():
        pod = mixed.cluster.wait_for_phase(name, "Running")
        assert mixed.in_container(pod) == mixed.uuids(0)
        [allocated] = mixed.said("allocated", resource=resource)[-1:] if resource == BIG else [None]
        there, allowed = inside(mixed, name)
        assert there == allowed
        assert len(there) == 2
        assert not there & seen
        seen |= there
        if allocated is not None:
            assert there == capabilities(mixed, allocated["devices"][0])
    assert seen == set().union(*(capabilities(mixed, device.uuid) for device in mixed.state.snapshot.migs))


def test_new_layout_is_offered_with_no_restart_and_what_is_gone_counts_nothing(mixed: GpuNode):
    layout(mixed, 4, "1g.10gb")
    wait_for(mixed, {GPU: 6, SMALL: 3})
    [big] = [device for device in mixed.state.snapshot.migs if device.profile == "3g.40gb"]
    mixed.host.mig_destroy(0, big.slot)
    wait_for(mixed, {BIG: 0, SMALL: 3})
    mixed.host.mig_create(0, "3g.40gb")
    wait_for(mixed, {BIG: 1})


def test_fault_of_an_instance_leaves_its_neighbours(mixed: GpuNode):
    [first, *_] = [device for device in mixed.state.snapshot.migs if device.profile == "1g.10gb"]
    mixed.state.recovery(0, None)  # a driver that does not tell what it wants; else it wants all of the GPU reset
    mixed.state.xid(0, 95, gi=first.gi, ci=first.ci)
    wait_for(mixed, {SMALL: 1, BIG: 1, GPU: 7})
    mixed.state.recovery(0, 0)
    wait_for(mixed, {SMALL: 2})


def test_single_strategy_calls_every_instance_a_gpu_and_leaves_the_odd_one_out(bare_node: GpuNode, tmp_path: Path):
    for gpu in range(7):
        layout(bare_node, gpu, "3g.40gb", "3g.40gb")
    bare_node.start(MIG_STRATEGY="single")
    wait_for(bare_node, {GPU: 14})
    assert "MIG is off" in bare_node.wait_said("withdrawn", resource=GPU)["reason"]
    pod = bare_node.pod("one", 1)
    assert len(bare_node.in_container(pod)) == 1
    there, allowed = inside(bare_node, "one")
    assert there == allowed
    assert len(there) == 2
