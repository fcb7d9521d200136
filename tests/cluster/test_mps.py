"""MPS on the real thing: a client in a pod stays connected, whatever becomes of the daemon, its updates and its faults.

The control daemon is the stand-in of tests/mps in the driver's root, which the pod of control daemons runs as it would
the driver's own; containers have the same program mounted, and are clients with it.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from deployed import IMAGE, NAMESPACE, SECONDS, Deployed, container_id
from gpunode import GPU, GpuNode
from helm_chart import rendered
from onenode.api import Json
from onenode.pods import busybox_pod

from tests.mps.standin.build import PROGRAM, CompilerMissingError, build_control

pytestmark = pytest.mark.cluster
ROOT = Path("/run/gpuplugin-mps-test")
SELECTOR = "app.kubernetes.io/name=gpuplugin-mps"
EXCLUSIVE_PROCESS = 3


def chart(deployed: Deployed, tag: str) -> str:
    """The chart for a driver container, each GPU shared by two, with our image in all containers."""
    entry = "config.sharing.mps.resources[0]"
    folders = f"--set=config.flags.mpsRoot={ROOT},hostPaths.driverRoot={deployed.node.host.root}"
    text = rendered(f"--set={entry}.name={GPU},{entry}.replicas=2", folders)
    objects = list(yaml.safe_load_all(text))
    for found in objects:
        if found["kind"] == "DaemonSet":
            for container in found["spec"]["template"]["spec"].get("initContainers", []):
                container |= {"image": f"{IMAGE}:{tag}", "imagePullPolicy": "Never"}
    return yaml.safe_dump_all(objects)


@pytest.fixture
def deployed(bare_node: GpuNode, tmp_path: Path) -> Iterator[Deployed]:
    made = Deployed(bare_node, tmp_path)
    program = bare_node.host.root / "usr/bin" / PROGRAM
    try:
        standin = build_control()
    except CompilerMissingError as error:
        pytest.skip(str(error))
    program.unlink(missing_ok=True)
    shutil.copy(standin, program)
    program.chmod(0o755)
    for tag in ("1", "2"):
        made.load_image(tag)
    try:
        yield made
    finally:
        made.cluster.api.delete("Pod", "client", grace=0)
        made.close()
        made.cluster.wait_for(lambda: not mps_pods(made), SECONDS, "no pod of control daemons")
        made.cluster.enter("sh", "-c", f"umount {ROOT}/shm || true")
        shutil.rmtree(ROOT, ignore_errors=True)


def mps_pods(deployed: Deployed) -> list[Json]:
    return deployed.cluster.api.list("Pod", namespace=NAMESPACE, selector=SELECTOR)


def mps_story(deployed: Deployed) -> str:
    pods = mps_pods(deployed)
    said = [deployed.cluster.api.log(pod["metadata"]["name"], namespace=NAMESPACE)[-3000:] for pod in pods[:1]]
    return "\n".join([*map(str, (pod["status"] for pod in pods)), *said])


def processes(container: str, word: str) -> list[int]:
    """The processes of a container with a word among their arguments, the oldest first."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if container in (folder / "cgroup").read_text() and word in (folder / "cmdline").read_text().split("\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return sorted(found)


def client_pod(deployed: Deployed) -> Json:
    """A pod that is an MPS client for as long as it is let."""
    volume = {"name": "program", "hostPath": {"path": str(deployed.node.host.root / "usr/bin")}}
    pod = busybox_pod("client", f"/program/{PROGRAM}", "--client", limits={GPU: 1}, volumes=[volume])
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "program", "mountPath": "/program"}]
    return pod


class Client:
    """A pod that is an MPS client, and says each answer of the control daemon."""

    def __init__(self, deployed: Deployed) -> None:
        self.cluster = deployed.cluster
        self.cluster.api.apply(client_pod(deployed))
        try:
            self.cluster.wait_for_phase("client", "Running")
        except Exception as error:
            error.add_note(str(self.cluster.api.get("Pod", "client")["status"]))
            raise
        self.wait_alive()

    def answers(self) -> int:
        return self.cluster.api.log("client").count("alive")

    def wait_alive(self) -> None:
        """Wait for answers to what is asked from now on."""
        before = self.answers()
        self.cluster.wait_for(lambda: self.answers() > before + 3, 20, "answers of the control daemon")
        status = self.cluster.api.get("Pod", "client")["status"]
        assert (status["phase"], status["containerStatuses"][0]["restartCount"]) == ("Running", 0)
        assert self.cluster.api.log("client").count("connected") == 1


def test_a_client_stays_connected_through_crashes_and_updates(deployed: Deployed):
    node, cluster = deployed.node, deployed.cluster
    deployed.apply("1", chart(deployed, "1"))
    try:
        deployed.wait_allocatable(16, 60.0)
    except Exception as error:
        error.add_note(mps_story(deployed))
        raise
    client = Client(deployed)
    [held] = node.held()["client"]
    [gpu] = [each for each in node.state.snapshot.gpus if each.uuid == held.partition("::")[0]]
    assert node.state.compute_mode(gpu.index) == EXCLUSIVE_PROCESS
    environment = dict(line.split("=", 1) for line in cluster.exec("client", "env").splitlines())
    assert environment["CUDA_MPS_PIPE_DIRECTORY"] == f"/mps/{GPU}/pipe"
    assert " /dev/shm tmpfs " in cluster.exec("client", "cat", "/proc/mounts")
    log = (ROOT / GPU / "log/control.log").read_text()
    assert "Cmd:set_default_active_thread_percentage 50" in log
    assert f"Cmd:set_default_device_pinned_mem_limit {gpu.uuid} {gpu.memory // 2 >> 20}M" in log
    [control] = mps_pods(deployed)

    plugin = deployed.wait_ready("1")
    os.kill(processes(container_id(plugin), "run")[0], signal.SIGKILL)
    cluster.wait_for(
        lambda: deployed.pods()[0]["status"]["containerStatuses"][0]["restartCount"] == 1, SECONDS, "restarted"
    )
    deployed.wait_ready("1")
    client.wait_alive()

    keeper, *workers = processes(container_id(control), "mps-control")
    os.kill(workers[0], signal.SIGKILL)
    cluster.wait_for(
        lambda: processes(container_id(control), "mps-control")[1:] not in ([], workers), SECONDS, "another worker"
    )
    client.wait_alive()
    deployed.wait_allocatable(16)
    assert processes(container_id(control), "mps-control")[0] == keeper

    deployed.apply("2", chart(deployed, "2"))
    deployed.wait_ready("2")
    deployed.wait_allocatable(16)
    client.wait_alive()
    [after] = mps_pods(deployed)
    assert (after["metadata"]["uid"], container_id(after)) == (control["metadata"]["uid"], container_id(control))

    node.end("client")
    deployed.delete()
    cluster.wait_for(lambda: not mps_pods(deployed), SECONDS, "no pod of control daemons")
    assert {node.state.compute_mode(each.index) for each in node.state.snapshot.gpus} == {0}


def test_the_pod_of_control_daemons_ends_with_its_first_process_and_all_is_told(deployed: Deployed):
    """What no design of ours can change: a container's processes end with its first one."""
    deployed.apply("1", chart(deployed, "1"))
    deployed.wait_allocatable(16, 60.0)
    [control] = mps_pods(deployed)
    cluster = deployed.cluster
    cluster.api.apply(client_pod(deployed))
    cluster.wait_for(lambda: "alive" in cluster.api.log("client"), 60, "a client")
    os.kill(processes(container_id(control), "mps-control")[0], signal.SIGKILL)
    cluster.wait_for_phase("client", "Failed")
    assert "disconnected" in cluster.api.log("client")
    deployed.wait_allocatable(16, 60.0)
    assert container_id(mps_pods(deployed)[0]) != container_id(control)
    deployed.delete()
    cluster.wait_for(lambda: not mps_pods(deployed), SECONDS, "no pod of control daemons")
    assert {deployed.node.state.compute_mode(index) for index in range(8)} == {0}
