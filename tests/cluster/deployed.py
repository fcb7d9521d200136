"""The daemon deployed as people do it: the image in the node's containerd, daemonset.yaml applied, helm's values.

Changed in the manifest is only what is not real here: the image's name, where the simulated host's root and device
nodes are, and the variables of the NVML stand-in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import plugin_image
import yaml
from gpunode import CDI_FOLDER, SOCKETS, GpuNode
from onenode.api import Json

CHECKOUT: Final = Path(__file__).resolve().parents[2]
MANIFEST: Final = CHECKOUT / "daemonset.yaml"
NAMESPACE: Final = "kube-system"
NAME: Final = "gpuplugin"
IMAGE: Final = "localhost/gpuplugin"
SELECTOR: Final = "app.kubernetes.io/name=gpuplugin"
SECONDS: Final = 60.0
ENVIRONMENT: Final = {
    "GPUPLUGIN_PATHS_SYSFS": "/driver-root/sys",
    "GPUPLUGIN_PATHS_PROC": "/driver-root/proc",
    "GPUPLUGIN_NVML_STATE": "/driver-root/nvml.state",
    "GPUPLUGIN_NVML_DEV": "/dev",
    "GPUPLUGIN_HEALTH_PROBE_SECONDS": "0.2",
    "GPUPLUGIN_HEALTH_QUIET_SECONDS": "1",
}
"""What a daemon in a pod is told of this node beside its driver root."""
_CHARACTER_DEVICES: Final = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}


class Deployed:
    """The DaemonSet and what belongs to it on one node. `node` is the machine that it finds."""

    def __init__(self, node: GpuNode, folder: Path) -> None:
        self.node, self.cluster, self._folder = node, node.cluster, folder
        self._applied = ""
        for name, numbers in _CHARACTER_DEVICES.items():
            _make_device(node.host.root / "dev" / name, *numbers)
        for name in ("mqueue", "pts", "shm"):  # where a runtime mounts, also below a /dev that is the host's
            (node.host.root / "dev" / name).mkdir(exist_ok=True)

    def load_image(self, tag: str) -> str:
        """Have an image of that tag in the node's containerd; each tag is an image of its own. Returns its name."""
        name = f"{IMAGE}:{tag}"
        ctr = [str(self.cluster.binaries / "ctr"), f"--address={self.cluster.layout.containerd_socket}", "-n=k8s.io"]
        file = self._folder / f"{tag}.tar"
        plugin_image.archive(name, plugin_image.layers(), file, label=tag)
        self.cluster.enter(*ctr, "images", "import", str(file))
        file.unlink()
        return name

    def apply(self, tag: str = "1", text: str | None = None, **environment: str) -> None:
        """Apply the manifest (daemonset.yaml, or a rendering of the chart) for this node, with that image."""
        objects = [found for found in yaml.safe_load_all(text or MANIFEST.read_text()) if found]
        for found in objects:
            if found["kind"] == "DaemonSet":
                self.adapt(found["spec"]["template"]["spec"], f"{IMAGE}:{tag}", **environment)
        self._applied = yaml.safe_dump_all(objects)
        self.cluster.kubectl("apply", "--filename=-", text=self._applied)

    def adapt(self, pod: Json, image: str, **environment: str) -> None:
        """Change a pod's spec to what this node is."""
        root = str(self.node.host.root)
        (container,) = pod["containers"]
        container |= {"image": image, "imagePullPolicy": "Never"}
        values = {entry["name"]: entry for entry in container.get("env", [])}
        for name, value in {
            "NVIDIA_DRIVER_ROOT": root,
            **ENVIRONMENT,
            **environment,
        }.items():
            values[name] = {"name": name, "value": value}
        container["env"] = list(values.values())
        for volume in pod["volumes"]:
            if volume["name"] in {"driver-root", "dev"}:
                volume["hostPath"]["path"] = root if volume["name"] == "driver-root" else f"{root}/dev"

    def pods(self) -> list[Json]:
        """The daemon's pods, ended ones too."""
        return self.cluster.api.list("Pod", namespace=NAMESPACE, selector=SELECTOR)

    def running(self) -> list[Json]:
        """Its pods that run and are not told to end."""
        return [
            pod
            for pod in self.pods()
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]

    def is_ready(self, pod: Json) -> bool:
        """Whether kubelet has found it ready."""
        conditions = pod["status"].get("conditions", [])
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def wait_ready(self, tag: str = "1", seconds: float = SECONDS) -> Json:
        """The one pod, once it runs that image, is ready, and no other is left."""

        def only() -> Json | None:
            pods = self.pods()
            if len(pods) != 1 or pods[0]["spec"]["containers"][0]["image"] != f"{IMAGE}:{tag}":
                return None
            return pods[0] if self.is_ready(pods[0]) else None

        with self.telling():
            return self.cluster.wait_for(only, seconds, f"the daemon's pod of image {tag} ready, alone")

    def wait_allocatable(self, count: int = 8, seconds: float = 30.0) -> float:
        """Wait until the node has that many GPUs; returns how long it took."""
        with self.telling():
            return self.node.wait_allocatable(count, seconds)

    def log(self, pod: Json) -> list[Json]:
        """What a pod's daemon has logged."""
        text = self.cluster.api.log(pod["metadata"]["name"], namespace=NAMESPACE)
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def events(self, reason: str) -> list[str]:
        """What kubelet has told of the daemon's pods, for one reason (`Unhealthy`)."""
        found = self.cluster.api.list("Event", namespace=NAMESPACE)
        return [event.get("note") or event.get("message", "") for event in found if event["reason"] == reason]

    def delete(self) -> None:
        """`kubectl delete -f`, and wait until the pods are gone."""
        self.cluster.kubectl("delete", "--filename=-", "--ignore-not-found", text=self._applied)
        self.cluster.wait_for(lambda: not self.pods(), SECONDS, "the daemon's pods gone")
        self._applied = ""

    def close(self) -> None:
        """Leave the cluster as it was."""
        if self._applied:
            self.delete()

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Add the story to whatever goes wrong inside."""
        try:
            yield
        except Exception as error:
            error.add_note(self.story())
            raise

    def story(self) -> str:
        """What the pods are and say, for a failed test."""
        parts = []
        for pod in self.pods():
            name = pod["metadata"]["name"]
            status = json.dumps(pod["status"].get("containerStatuses", pod["status"]), indent=1)
            try:
                said = self.cluster.api.log(name, namespace=NAMESPACE)[-4000:]
            except Exception as error:  # noqa: BLE001 - whatever it is, the rest is still worth reading
                said = str(error)
            parts.append(f"--- {name}\n{status}\n{said}")
        for namespace in (NAMESPACE, "default"):
            found = self.cluster.api.list("Event", namespace=namespace)
            parts += [f"{event['reason']}: {event.get('message') or event.get('note')}" for event in found]
        return "\n".join(parts)


def resident(container_id: str) -> float:
    """MiB resident of the process in a container that has the most."""
    most = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if container_id not in (process / "cgroup").read_text():
                continue
            pages = int((process / "statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
        most = max(most, pages)
    return round(most * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def container_id(pod: Json) -> str:
    """The id that the runtime has given a pod's container."""
    identity: str = pod["status"]["containerStatuses"][0]["containerID"]
    return identity.rpartition("/")[2]


def traces() -> list[Path]:
    """Whatever of the daemon is on the node outside its pods."""
    found = [*SOCKETS.glob("gpuplugin-*"), *Path("/etc/cdi").glob("gpuplugin*"), *Path("/run/gpuplugin").glob("*")]
    found += Path("/var/lib/gpuplugin").glob("*")
    return [*found, *(entry for folder in {CDI_FOLDER, Path("/run/cdi")} for entry in folder.glob("*gpuplugin*"))]


def _make_device(path: Path, major: int, minor: int) -> None:
    if not path.exists():
        os.mknod(path, 0o020666, os.makedev(major, minor))
        path.chmod(0o666)
