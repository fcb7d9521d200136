"""An upgrade and its rollback, and a take-over from another vendor's plugin, while pods hold GPUs and go on."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from deployed import MANIFEST, NAMESPACE, Deployed
from gpunode import CHECKOUT, GPU, SOCKETS, GpuNode
from onenode.api import Json

pytestmark = pytest.mark.cluster
BACK_SECONDS = 5.0


@pytest.fixture
def deployed(bare_node: GpuNode, tmp_path: Path) -> Iterator[Deployed]:
    made = Deployed(bare_node, tmp_path)
    try:
        yield made
    finally:
        made.close()


class Allocatable:
    """Watches how many GPUs the node has for pods, ten times a second, while something happens."""

    def __init__(self, ask: Callable[[], dict[str, str]]) -> None:
        self._ask = ask
        self._end = threading.Event()
        self.seen: list[tuple[float, int]] = []
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._end.wait(0.1):
            self.seen.append((time.monotonic(), int(self._ask().get(GPU, "0"))))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    @property
    def fewest(self) -> int:
        return min(count for _, count in self.seen)

    @property
    def gap(self) -> float:
        """The longest time with fewer than eight, in seconds."""
        longest, began = 0.0, None
        for moment, count in self.seen:
            if count < 8:
                began = moment if began is None else began
                longest = max(longest, moment - began)
            else:
                began = None
        return longest


def state_of(node: GpuNode, *pods: str) -> list[Any]:
    """What must not change of pods that go on: their containers, how often these restarted, and their GPUs."""
    held = node.held()
    found = []
    for name in pods:
        status = node.cluster.api.get("Pod", name)["status"]["containerStatuses"][0]
        found.append((status["containerID"], status["restartCount"], status["ready"], held[name]))
    return found


def without_surge() -> str:
    """As the chart renders it with updateStrategy.maxSurge=0."""
    objects = [found for found in yaml.safe_load_all(MANIFEST.read_text()) if found]
    spec: Json = next(found for found in objects if found["kind"] == "DaemonSet")["spec"]
    spec["updateStrategy"]["rollingUpdate"] = {"maxSurge": 0, "maxUnavailable": 1}
    (container,) = spec["template"]["spec"]["containers"]
    container["env"] = [entry for entry in container["env"] if entry["name"] != "GPUPLUGIN_CDI_REMOVE_ON_STOP"]
    return yaml.safe_dump_all(objects)


@pytest.mark.parametrize("strategy", ["surge", "no surge"])
def test_upgrade_and_rollback_disturb_no_pod_and_give_no_gpu_twice(deployed: Deployed, strategy: str):
    node, text = deployed.node, None if strategy == "surge" else without_surge()
    deployed.load_image("1")
    deployed.load_image("2")
    deployed.apply("1", text)
    deployed.wait_allocatable(8)
    deployed.wait_ready("1")
    node.pod("holds4", 4)
    node.pod("holds2", 2)
    before = state_of(node, "holds4", "holds2")
    for step, tag in (("upgrade", "2"), ("rollback", "1")):
        with Allocatable(deployed.cluster.allocatable) as allocatable:
            if step == "upgrade":
                deployed.apply(tag, text)
            else:
                deployed.cluster.kubectl("rollout", "undo", "daemonset/gpuplugin", f"--namespace={NAMESPACE}")
            deployed.wait_ready(tag)
            deployed.wait_allocatable(8)
        print(f"\n  {step}: fewest allocatable {allocatable.fewest}, for {allocatable.gap:.1f} s less than 8")
        assert allocatable.gap <= BACK_SECONDS
        assert allocatable.fewest == 8 or strategy == "no surge"
        assert state_of(node, "holds4", "holds2") == before
    node.pod("last2", 2)
    held = node.held()
    assert len(frozenset().union(*held.values())) == sum(map(len, held.values())) == 8


VENDOR = """
import os, signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
import grpc
from gpuplugin.pb import deviceplugin_v1beta1_pb2 as api, deviceplugin_v1beta1_pb2_grpc as rpc

folder, uuids = sys.argv[1], sys.argv[2].split(",")

class Plugin(rpc.DevicePluginServicer):
    def GetDevicePluginOptions(self, request, context):
        return api.DevicePluginOptions()
    def ListAndWatch(self, request, context):
        yield api.ListAndWatchResponse(devices=[api.Device(ID=uuid, health="Healthy") for uuid in uuids])
        ended.wait()
    def Allocate(self, request, context):
        return api.AllocateResponse(container_responses=[
            api.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": ",".join(one.devices_ids)})
            for one in request.container_requests])

ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
path = f"{folder}/nvidia-gpu.sock"
if os.path.exists(path):
    os.unlink(path)
server = grpc.server(ThreadPoolExecutor(8))
rpc.add_DevicePluginServicer_to_server(Plugin(), server)
server.add_insecure_port(f"unix:{path}")
server.start()
with grpc.insecure_channel(f"unix:{folder}/kubelet.sock") as kubelet:
    rpc.RegistrationStub(kubelet).Register(
        api.RegisterRequest(version="v1beta1", endpoint="nvidia-gpu.sock", resource_name="nvidia.com/gpu"))
print("registered", flush=True)
ended.wait()
server.stop(0)
"""


class Vendor:
    """A stand-in for another vendor's device plugin: its own socket, our resource's name, the same UUIDs as ids."""

    def __init__(self, node: GpuNode) -> None:
        uuids = ",".join(gpu.uuid for gpu in node.state.snapshot.gpus)
        self._process = subprocess.Popen(
            node.cluster.enter_command([sys.executable, "-c", VENDOR, str(SOCKETS), uuids]),
            stdout=subprocess.PIPE,
            cwd=CHECKOUT,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"registered\n"

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self._process.communicate(timeout=15)


@pytest.mark.kubelet(topology_policy="none")  # the stand-in says nothing of NUMA nodes
def test_take_over_from_another_plugin_and_back_disturbs_no_pod(deployed: Deployed):
    node = deployed.node
    deployed.load_image("1")
    theirs = Vendor(node)
    try:
        deployed.wait_allocatable(8)
        node.pod("old", 3)
        with Allocatable(deployed.cluster.allocatable) as allocatable:
            before = state_of(node, "old")
            deployed.apply("1")
            deployed.wait_ready("1")
            theirs.stop()
            new = node.pod("new", 2)
        print(f"\n  to us: fewest allocatable {allocatable.fewest}, for {allocatable.gap:.1f} s less than 8")
        assert node.in_container(new) == node.held()["new"]
        assert not node.held()["new"] & node.held()["old"]
        assert state_of(node, "old") == before
        assert allocatable.gap <= BACK_SECONDS

        before = state_of(node, "old", "new")
        with Allocatable(deployed.cluster.allocatable) as allocatable:
            theirs = Vendor(node)
            deployed.delete()
            node.pod("newest", 3)
        print(f"  and back: fewest allocatable {allocatable.fewest}, for {allocatable.gap:.1f} s less than 8")
        assert "NVIDIA_VISIBLE_DEVICES=GPU-" in deployed.cluster.exec("newest", "env")
        assert state_of(node, "old", "new") == before
        held = node.held()
        assert len(frozenset().union(*held.values())) == sum(map(len, held.values())) == 8
        assert allocatable.gap <= BACK_SECONDS
    finally:
        theirs.stop()
