"""The cluster's node given eight H100: a simulated host, the C stand-in for NVML, and the real daemon as a process.

The daemon runs as root in the node's mount namespace and finds everything as it would on a node with a driver
container: the library by way of the driver's root, device nodes of the real numbers, kubelet's real folders, CDI in
/var/run/cdi. What happens to the GPUs is written to the state file (`state`), which the library reads.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc
from onenode import Cluster
from onenode.api import Json
from onenode.layout import KUBELET_FOLDER, NODE
from onenode.machine import SYSTEM_PATH
from onenode.pods import busybox_pod

from gpuplugin.pb import podresources_v1_pb2 as api
from gpuplugin.pb import podresources_v1_pb2_grpc as rpc
from gpuplugin.sim.host import SimulatedHost
from gpuplugin.sim.machine import load
from gpuplugin.sim.state import State
from tests.nvml.standin.build import build_standin

GPU: Final = "nvidia.com/gpu"
MACHINE: Final = "hgx-h100"
CDI_FOLDER: Final = Path("/var/run/cdi")
SOCKETS: Final = KUBELET_FOLDER / "device-plugins"
CHECKOUT: Final = Path(__file__).resolve().parents[2]
READY_SECONDS: Final = 90.0
END_SECONDS: Final = 15.0

Held = dict[str, frozenset[str]]


class GpuNode:
    """The daemon and its machine. `folder` holds the host's files and the daemon's log."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.host = SimulatedHost(load(MACHINE), folder / "host", device_nodes="mknod")
        self._install_nvml()
        self._log_file = folder / "daemon.log"
        self._seen_before = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._environment = {
            "PATH": SYSTEM_PATH,
            "PYTHONPATH": str(CHECKOUT),  # entering a mount namespace loses the working folder
            "NVIDIA_DRIVER_ROOT": str(self.host.root),
            "NVIDIA_DEV_ROOT": str(self.host.root),
            "GPUPLUGIN_PATHS_SYSFS": str(self.host.root / "sys"),
            "GPUPLUGIN_PATHS_PROC": str(self.host.root / "proc"),
            "GPUPLUGIN_NVML_STATE": str(self.state.path),
            "GPUPLUGIN_NVML_DEV": str(self.host.root / "dev"),
            "GPUPLUGIN_PATHS_STATE": str(folder / "state"),
            "GPUPLUGIN_HEALTH_PROBE_SECONDS": "0.2",
            "GPUPLUGIN_HEALTH_QUIET_SECONDS": "1",
            "GPUPLUGIN_LOG_FORMAT": "json",
        }

    @property
    def state(self) -> State:
        """What happens to the GPUs."""
        return self.host.state

    # -- the daemon ---------------------------------------------------------

    def start(self, **settings: str) -> None:
        """Start the daemon; `settings` are environment variables beside the node's own."""
        self._seen_before = self._log_file.stat().st_size if self._log_file.exists() else 0
        with self._log_file.open("ab") as log:
            self._process = self.spawn(log, **settings)

    def spawn(self, log: Any, **settings: str) -> subprocess.Popen[bytes]:
        """Start a daemon of which the caller takes care; it ends with us, so that no later test meets it."""
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *self.cluster.enter_command([sys.executable, "-m", "gpuplugin", "run"])],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**self._environment, **settings},
            start_new_session=True,
        )

    def start_ready(self, **settings: str) -> None:
        """Start the daemon, and wait until kubelet has its devices."""
        self.start(**settings)
        self.wait_watched()
        self.wait_allocatable(8)

    def send(self, how: signal.Signals) -> None:
        """Send the daemon a signal and go on."""
        assert self._process is not None
        self._process.send_signal(how)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End the daemon; returns its exit status, negative where a signal ended it."""
        self.send(how)
        return self.wait_end()

    def wait_end(self) -> int:
        """The daemon's exit status, once it has ended by itself; subprocess.TimeoutExpired where it does not."""
        assert self._process is not None
        return self._process.wait(END_SECONDS)

    def close(self) -> None:
        """End the daemon, however it is, and remove what it leaves for the pods that outlive it."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for document in CDI_FOLDER.glob("gpuplugin.io-*"):
            document.unlink()

    # -- what it says -------------------------------------------------------

    def log(self) -> list[Json]:
        """What the daemon has logged since it was started last; a line that is no JSON is `{"text": line}`."""
        if not self._log_file.exists():
            return []
        with self._log_file.open("rb") as file:
            file.seek(self._seen_before)
            return [_entry(line) for line in file.read().decode().splitlines()]

    def said(self, event: str, **fields: object) -> list[Json]:
        """The entries of that event whose fields are these."""
        wanted = {"event": event, **fields}
        return [entry for entry in self.log() if wanted.items() <= entry.items()]

    def wait_said(self, event: str, seconds: float = READY_SECONDS, **fields: object) -> Json:
        """The first such entry, once there is one."""
        what = f"the daemon's {event!r} {fields or ''}"
        try:
            return self.cluster.wait_for(lambda: self.said(event, **fields), seconds, what)[0]
        except Exception as error:
            error.add_note("--- daemon\n" + "\n".join(json.dumps(entry) for entry in self.log()[-20:]))
            raise

    def wait_watched(self) -> None:
        """Wait until kubelet listens to the daemon that runs now, and has its eight GPUs."""
        self.wait_said("kubelet watches", resource=GPU)
        self.cluster.wait_for(lambda: len(self.healthy()) == 8, READY_SECONDS, "eight GPUs at kubelet")

    # -- what Kubernetes knows ----------------------------------------------

    def wait_forgotten(self) -> None:
        """Have the Node object count no GPU: what it says after that is of the daemon started next.

        A kubelet that has restarted without its checkpoint leaves the number that it finds there.
        """
        amounts = {"status": {"capacity": {GPU: None}, "allocatable": {GPU: None}}}
        self.cluster.api.patch("Node", NODE, amounts, part="status")
        self.cluster.wait_for(
            lambda: self.cluster.allocatable().get(GPU, "0") == "0", READY_SECONDS, "no GPU of an earlier daemon"
        )

    def wait_allocatable(self, count: int, seconds: float = READY_SECONDS) -> float:
        """Wait until the Node object says that `count` GPUs can be had; returns how long it took."""
        began = time.monotonic()
        try:
            self.cluster.wait_for(
                lambda: self.cluster.allocatable().get(GPU) == str(count), seconds, f"{count} GPUs allocatable"
            )
        except Exception as error:
            error.add_note("--- daemon\n" + "\n".join(json.dumps(entry) for entry in self.log()[-20:]))
            raise
        return time.monotonic() - began

    def healthy(self) -> frozenset[str]:
        """The GPUs that kubelet would give away, at this moment; the Node object follows at its next status update."""
        with _pod_resources() as channel:
            answer = rpc.PodResourcesListerStub(channel).GetAllocatableResources(api.AllocatableResourcesRequest())
        return frozenset(_ids(answer.devices))

    def held(self) -> Held:
        """The GPUs that kubelet has given away, by pod, without those of pods that have ended."""
        with _pod_resources() as channel:
            answer = rpc.PodResourcesListerStub(channel).List(api.ListPodResourcesRequest())
        found: dict[str, list[str]] = defaultdict(list)
        for pod in answer.pod_resources:
            for container in pod.containers:
                found[pod.name] += _ids(container.devices)
        return {pod: frozenset(ids) for pod, ids in found.items() if ids}

    # -- pods ---------------------------------------------------------------

    def pod(self, name: str, gpus: int, **limits: str | int) -> Json:
        """Make a pod that sleeps and holds GPUs, and wait until it runs."""
        self.cluster.api.apply(busybox_pod(name, limits={GPU: gpus, **limits}))
        return self.cluster.wait_for_phase(name, "Running")

    def end(self, *pods: str) -> None:
        """Delete pods, and wait until kubelet has taken their GPUs back."""
        for name in pods:
            self.cluster.api.delete("Pod", name, grace=0)
        self.cluster.wait_for(lambda: not self.held().keys() & set(pods), READY_SECONDS, f"{', '.join(pods)} gone")

    def in_container(self, pod: Json) -> frozenset[str]:
        """The GPUs whose device nodes a pod's container really has, as UUIDs; looked at from outside, without exec."""
        identity = pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
        dev = _root_of(identity) / "dev"
        by_minor = {gpu.minor: gpu.uuid for gpu in self.state.snapshot.gpus}
        nodes = [path.stat() for path in dev.iterdir() if re.fullmatch(r"nvidia\d+", path.name)]
        assert all(stat.S_ISCHR(node.st_mode) and os.major(node.st_rdev) == 195 for node in nodes)
        return frozenset(by_minor[os.minor(node.st_rdev)] for node in nodes)

    def kill_container(self, pod: str) -> None:
        """Have the first process of a pod's container die."""
        status = self.cluster.api.get("Pod", pod)["status"]["containerStatuses"][0]
        os.kill(int(_root_of(status["containerID"].rpartition("/")[2]).parent.name), signal.SIGKILL)

    def uuids(self, *indices: int) -> frozenset[str]:
        """The UUIDs of GPUs by their NVML index."""
        return frozenset(self.state.snapshot.gpu(index).uuid for index in indices)

    def _install_nvml(self) -> None:
        """Put the library that is compiled for tests where the loader looks; containers get the simulated driver's."""
        link = self.host.root / f"usr/lib/{platform.machine()}-linux-gnu/libnvidia-ml.so.1"
        link.unlink()
        shutil.copy(build_standin(), link)


def _pod_resources() -> grpc.Channel:
    return grpc.insecure_channel(
        f"unix:{KUBELET_FOLDER}/pod-resources/kubelet.sock", options=[("grpc.use_local_subchannel_pool", 1)]
    )


def _ids(devices: Any) -> Iterator[str]:
    for entry in devices:
        if entry.resource_name == GPU:
            yield from entry.device_ids


def _root_of(container: str) -> Path:
    """The root folder of a container's first process."""
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            if container in (process / "cgroup").read_text():
                return process / "root"
        except OSError:
            continue
    raise LookupError(f"container {container} has no process")


def _entry(line: str) -> Json:
    try:
        entry = json.loads(line)
    except ValueError:
        return {"text": line}
    return entry if isinstance(entry, dict) else {"text": line}
