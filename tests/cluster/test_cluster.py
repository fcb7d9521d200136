"""That the cluster is a real one: what the other tests on it prove rests on this."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from onenode import Cluster, Component
from onenode.errors import ApiError, CommandError, NotInTimeError, PodEndedError
from onenode.layout import KUBELET_FOLDER
from onenode.pods import busybox_pod

pytestmark = pytest.mark.cluster


def test_node_is_ready_and_runs_the_pinned_kubelet(cluster: Cluster):
    status = cluster.node()["status"]
    assert {c["type"]: c["status"] for c in status["conditions"]}["Ready"] == "True"
    go_mod = (Path(__file__).parent / "go/k8s/go.mod").read_text()
    assert f"k8s.io/kubernetes {status['nodeInfo']['kubeletVersion']}\n" in go_mod
    assert status["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://2.")


def test_numa_overlay_is_seen_inside_the_node_only(cluster: Cluster):
    assert cluster.enter("cat", "/sys/devices/system/node/online") == "0-1\n"
    assert "/sys/devices/system/node" not in Path("/proc/mounts").read_text()


def test_pod_runs_and_its_output_is_read(cluster: Cluster):
    assert cluster.run("speaks", "echo from the pod; id -u") == "from the pod\n0\n"


def pinned_to(cluster: Cluster) -> str:
    log = cluster.run("pinned", "grep Cpus_allowed_list /proc/self/status", limits={"cpu": 1, "memory": "32Mi"})
    return log.split()[1]


@pytest.mark.skipif(os.cpu_count() != 2, reason="which CPU is the free one is known where there are two")
def test_pod_with_a_whole_cpu_gets_it_alone_on_its_numa_node(cluster: Cluster):
    assert pinned_to(cluster) == "1"
    assert 'kubelet_cpu_manager_allocation_per_numa{numa_node="1"} 1' in cluster.ask_kubelet("/metrics")


@pytest.mark.kubelet(reserved_cpus="1")
@pytest.mark.skipif(os.cpu_count() != 2, reason="which CPU is the free one is known where there are two")
def test_reserving_the_other_cpu_gives_the_other_numa_node(cluster: Cluster):
    assert pinned_to(cluster) == "0"
    assert 'kubelet_cpu_manager_allocation_per_numa{numa_node="0"} 1' in cluster.ask_kubelet("/metrics")


def test_pod_that_fails_is_told_with_its_output(cluster: Cluster):
    with pytest.raises(PodEndedError, match="said before the end") as caught:
        cluster.run("fails", "echo said before the end; exit 3")
    state = caught.value.pod["status"]["containerStatuses"][0]["state"]
    assert state["terminated"]["exitCode"] == 3


def test_exec_runs_in_the_container(cluster: Cluster):
    cluster.api.apply(busybox_pod("sleeps"))
    cluster.wait_for_phase("sleeps", "Running")
    assert cluster.exec("sleeps", "sh", "-c", "hostname").strip() == "sleeps"
    with pytest.raises(CommandError) as caught:
        cluster.exec("sleeps", "sh", "-c", "exit 7")
    assert caught.value.code == 7


def test_unknown_image_is_never_pulled(cluster: Cluster):
    pod = busybox_pod("pulls")
    pod["spec"]["containers"][0]["image"] = "localhost/nothing:1"
    cluster.api.apply(pod)

    def reason() -> bool:
        waiting = cluster.api.get("Pod", "pulls")["status"]["containerStatuses"][0]["state"]["waiting"]
        return waiting["reason"] == "ErrImageNeverPull"

    assert cluster.wait_for(reason, 30, "the image refused")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_kubelet_restart_keeps_a_running_pod(cluster: Cluster, how: signal.Signals):
    cluster.api.apply(busybox_pod("stays"))
    before = cluster.wait_for_phase("stays", "Running")["status"]["containerStatuses"][0]["containerID"]
    old = cluster.pid(Component.KUBELET)
    socket = (KUBELET_FOLDER / "device-plugins" / "kubelet.sock").stat().st_ctime_ns
    cluster.restart(Component.KUBELET, how)
    assert cluster.pid(Component.KUBELET) not in {None, old}
    assert (KUBELET_FOLDER / "device-plugins" / "kubelet.sock").stat().st_ctime_ns > socket
    cluster.run("after", "true")
    assert cluster.api.get("Pod", "stays")["status"]["containerStatuses"][0]["containerID"] == before


def test_containerd_crash_keeps_a_running_pod(cluster: Cluster):
    cluster.api.apply(busybox_pod("stays"))
    cluster.wait_for_phase("stays", "Running")
    cluster.restart(Component.CONTAINERD, signal.SIGKILL)
    cluster.run("after", "true")
    status = cluster.api.get("Pod", "stays")["status"]["containerStatuses"][0]
    assert status["ready"]
    assert status["restartCount"] == 0


def test_api_server_stops_and_comes_back_with_its_objects(cluster: Cluster):
    cluster.api.apply(busybox_pod("kept"))
    cluster.stop(Component.API_SERVER, signal.SIGKILL)  # SIGTERM waits for its watchers
    with pytest.raises(OSError, match=r"refused|reset"):
        cluster.api.get("Pod", "kept")
    cluster.start(Component.API_SERVER)
    assert cluster.api.get("Pod", "kept")["metadata"]["name"] == "kept"


@pytest.mark.kubelet(topology_policy="none", cpu_policy="none", extra={"maxPods": 7})
def test_marker_gives_the_kubelet_other_settings(cluster: Cluster):
    configz = cluster.ask_kubelet("/configz")
    assert '"topologyManagerPolicy":"none"' in configz
    assert '"cpuManagerPolicy":"none"' in configz
    assert cluster.wait_for(lambda: cluster.allocatable()["pods"] == "7", 30, "the kubelet's new number of pods")


def test_settings_of_the_test_before_do_not_stay(cluster: Cluster):
    assert '"topologyManagerPolicy":"single-numa-node"' in cluster.ask_kubelet("/configz")


def test_wait_says_what_it_saw_last_and_what_the_components_logged(cluster: Cluster):
    with pytest.raises(NotInTimeError, match="a pod nobody made") as caught:
        cluster.wait_for(lambda: cluster.api.get("Pod", "nobody"), 0.1, "a pod nobody made")
    assert isinstance(caught.value.last, ApiError)
    assert {"kubelet", "containerd", "kube-apiserver"} <= set(caught.value.logs)
