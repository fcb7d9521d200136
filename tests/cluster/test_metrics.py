"""Metrics on the real thing: Debian's Prometheus scrapes while pods run, and joins give pods their power and work."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean

import pytest
from claims import ClaimNode, request
from gpunode import GPU, GpuNode
from onenode import Cluster
from onenode.pods import busybox_pod
from prometheus import Prometheus

from tests.metrics.promtool import promtool

pytestmark = pytest.mark.cluster

TARGET = "127.0.0.1:19400"
METRICS = {
    "GPUPLUGIN_METRICS_ENABLED": "true",
    "GPUPLUGIN_METRICS_ADDRESS": TARGET,
    "GPUPLUGIN_METRICS_INTERVAL_SECONDS": "1",
}
POWER, WORK = "gpuplugin:pod_power:watts", "gpuplugin:pod_utilization:ratio"


@pytest.fixture
def prometheus(cluster: Cluster, tmp_path: Path) -> Iterator[Prometheus]:
    with Prometheus(cluster, tmp_path, TARGET) as running:
        yield running


@pytest.fixture
def claiming(cluster: Cluster, tmp_path: Path) -> Iterator[ClaimNode]:
    node = ClaimNode(cluster, tmp_path)
    try:
        node.start_publishing(**METRICS)
        yield node
    finally:
        node.close()


def index(node: GpuNode, uuid: str) -> int:
    return next(gpu.index for gpu in node.state.snapshot.gpus if gpu.uuid == uuid)


def over(node: GpuNode, uuids: frozenset[str], how: Callable[[int], float]) -> list[float]:
    """The numbers of GPUs that the stand-in for NVML tells, by their index."""
    return [how(index(node, uuid)) for uuid in uuids]


def watts(place: int) -> float:
    return 70.0 + place


def work(place: int) -> float:
    return (10 + place) / 100


def by_pod(**values: float) -> dict[tuple[str, ...], float]:
    return {("default", name.replace("_", "-")): pytest.approx(value) for name, value in values.items()}


def test_pods_have_the_power_and_the_work_of_their_gpus_for_as_long_as_they_have_them(
    bare_node: GpuNode, prometheus: Prometheus
):
    node = bare_node
    node.start_ready(**METRICS)
    two = node.in_container(node.pod("two", 2))
    one = node.in_container(node.pod("one", 1))
    labels = ("namespace", "pod")
    power = {"two": sum(over(node, two, watts)), "one": sum(over(node, one, watts))}
    prometheus.wait(POWER, by_pod(**power), *labels)
    prometheus.wait(WORK, by_pod(two=mean(over(node, two, work)), one=mean(over(node, one, work))), *labels)
    direct = 'DCGM_FI_DEV_POWER_USAGE{exported_pod="two"} or DCGM_FI_DEV_POWER_USAGE{pod="two"}'
    prometheus.wait(direct, {(uuid,): watts(index(node, uuid)) for uuid in two}, "UUID")
    prometheus.wait("sum(DCGM_FI_DEV_POWER_USAGE)", {(): sum(map(watts, range(8)))})
    prometheus.wait("sum(gpuplugin_free_gpus)", {(): 5.0})
    prometheus.wait(f'gpuplugin_allocations_total{{resource="{GPU}"}}', {(GPU,): 2.0}, "resource")
    node.end("two")
    prometheus.wait(POWER, by_pod(one=power["one"]), *labels)
    prometheus.wait("sum(gpuplugin_free_gpus)", {(): 7.0})


def test_a_gpu_that_is_lost_and_one_with_an_xid_are_told_and_so_is_their_recovery(
    bare_node: GpuNode, prometheus: Prometheus
):
    node = bare_node
    node.start_ready(**METRICS)
    prometheus.wait("count(DCGM_FI_DEV_GPU_TEMP)", {(): 8.0})
    node.state.recovery(2, 1)
    node.state.xid(2, 95)
    node.state.lose(5)
    prometheus.wait("gpuplugin_device_healthy == 0", {("2",): 0.0, ("5",): 0.0}, "gpu")
    prometheus.wait("count(DCGM_FI_DEV_GPU_TEMP)", {(): 7.0})
    prometheus.wait('gpuplugin_xid_errors_total{gpu="2"}', {("95",): 1.0}, "xid")
    node.cluster.wait_for(lambda: "GpuXidNeedsReset" in prometheus.alerts() or None, 30, "the alert")
    node.state.recovery(2, 0)
    node.state.restore(5)
    prometheus.wait("count(gpuplugin_device_healthy == 1)", {(): 8.0})
    prometheus.wait("count(DCGM_FI_DEV_GPU_TEMP)", {(): 8.0})


def test_pods_that_share_a_gpu_share_its_power_and_it_is_counted_once(
    bare_node: GpuNode, prometheus: Prometheus, tmp_path: Path
):
    node = bare_node
    sharing = {"timeSlicing": {"resources": [{"name": GPU, "replicas": 2}]}}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"sharing": sharing, "devices": {"exclude": [1, 2, 3, 4, 5, 6, 7]}}))
    node.start(CONFIG_FILE=str(path), **METRICS)
    node.wait_said("kubelet watches", resource=GPU)
    node.wait_allocatable(2)
    node.cluster.api.apply(*(busybox_pod(name, limits={GPU: 1}) for name in ("a", "b")))
    for name in ("a", "b"):
        node.cluster.wait_for_phase(name, "Running")
    prometheus.wait(POWER, by_pod(a=35.0, b=35.0), "namespace", "pod")
    prometheus.wait("count(DCGM_FI_DEV_POWER_USAGE) by (gpu)", {(f"{n}",): 1.0 for n in range(8)}, "gpu")
    prometheus.wait("count(gpuplugin_allocation_info)", {(): 2.0})


def test_a_pod_on_a_mig_device_has_the_work_of_that_device(bare_node: GpuNode, prometheus: Prometheus):
    node, small = bare_node, "nvidia.com/mig-1g.10gb"
    node.host.mig_mode(4, enabled=True)
    made = node.host.mig_create(4, "1g.10gb")
    node.start(MIG_STRATEGY="mixed", **METRICS)
    node.cluster.wait_for(lambda: node.cluster.allocatable().get(small) == "1" or None, 30, small)
    node.cluster.api.apply(busybox_pod("sliced", limits={small: 1}))
    node.cluster.wait_for_phase("sliced", "Running")
    prometheus.wait(WORK, by_pod(sliced=work(4)), "namespace", "pod")
    where = ("UUID", "GPU_I_ID", "GPU_I_PROFILE")
    expected = {(node.state.snapshot.gpu(4).uuid, f"{made.gi}", "1g.10gb"): 1.0}
    prometheus.wait("gpuplugin_allocation_info", expected, *where)


def test_pods_with_claims_are_told_with_claim_and_device(claiming: ClaimNode, prometheus: Prometheus):
    node = claiming
    inside = node.in_container(node.claiming("train", request("gpus", 2)))
    prometheus.wait(POWER, by_pod(train=sum(over(node, inside, watts))), "namespace", "pod")
    names = {(uuid, "train", device) for device in node.untainted() if (uuid := node.uuid(device)) in inside}
    expected = dict.fromkeys(names, 1.0)
    prometheus.wait("gpuplugin_allocation_info", expected, "UUID", "dra_claim_name", "dra_device_name")
    prometheus.wait("count(DCGM_FI_DEV_GPU_TEMP)", {(): 8.0})
    prometheus.wait('gpuplugin_admission_seconds_count{call="prepare"}', {("prepare",): 1.0}, "call")
    prometheus.wait("gpuplugin_largest_aligned_request_gpus", {("claims",): 4.0}, "handed_out_by")


def test_promtool_takes_what_is_served(bare_node: GpuNode):
    node = bare_node
    node.start_ready(**METRICS)
    node.pod("one", 1)
    served = node.cluster.wait_for(
        lambda: urllib.request.urlopen(f"http://{TARGET}/metrics", timeout=10).read().decode(), 30, "metrics"
    )
    status, said = promtool("check", "metrics", text=served)
    assert status in (0, 3), said
    assert [line for line in said.splitlines() if line and not line.startswith("DCGM_FI_")] == []
