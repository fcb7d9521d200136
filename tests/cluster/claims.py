"""The node with claims: dra.yaml applied, and the daemon at the API server as its service account on this node."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpunode import CHECKOUT, READY_SECONDS, GpuNode
from onenode import Cluster
from onenode.api import Json
from onenode.layout import API_PORT, HOST, KUBELET_FOLDER, NODE
from onenode.pods import busybox_pod

DRIVER: Final = "gpu.nvidia.com"
ACCOUNT: Final = "gpuplugin"
RECORDS: Final = KUBELET_FOLDER / "plugins" / DRIVER / "claims"
POLICY_SECONDS: Final = 30.0
CLEAN_SECONDS: Final = 150.0


def claim(name: str, *requests: Mapping[str, Any], constraints: list[Json] | None = None, **spec: Any) -> Json:
    """A ResourceClaim of those requests."""
    devices: Json = {"requests": list(requests), **({"constraints": constraints} if constraints else {}), **spec}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": devices},
    }


def request(name: str, count: int = 1, *, cel: str = "", admin: bool = False) -> Json:
    """A request of GPUs, those for which the CEL expression holds."""
    exactly: Json = {"deviceClassName": DRIVER, "count": count}
    if cel:
        exactly["selectors"] = [{"cel": {"expression": cel}}]
    if admin:
        exactly["adminAccess"] = True
    return {"name": name, "exactly": exactly}


def claiming_pod(name: str, *claims: str, command: tuple[str, ...] = (), **spec: Any) -> Json:
    """A pod whose container has those claims."""
    pod = busybox_pod(
        name, *command, resourceClaims=[{"name": one, "resourceClaimName": one} for one in claims], **spec
    )
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": one} for one in claims]}
    return pod


class ClaimNode(GpuNode):
    """`start` starts the daemon with GPUs for claims: all of them unless `GPUPLUGIN_DRA_GPUS` says otherwise."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        super().__init__(cluster, folder)
        shutil.rmtree(RECORDS, ignore_errors=True)  # of a daemon that ended before kubelet had it unprepare all
        self.kubeconfig = folder / "kubeconfig"
        cluster.api.apply((CHECKOUT / "dra.yaml").read_text())
        cluster.api.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": "kube-system"}}
        )
        self.kubeconfig.write_text(json.dumps(_kubeconfig(cluster, node_token(cluster))))
        self._environment |= {
            "GPUPLUGIN_DRA_GPUS": "all",
            "NODE_NAME": NODE,
            "KUBECONFIG": str(self.kubeconfig),
        }

    def spawn(self, log: Any, **settings: str) -> subprocess.Popen[bytes]:
        """As GpuNode's; with GPUPLUGIN_TEST_KILL the daemon kills itself at that point, see killed_daemon."""
        if "GPUPLUGIN_TEST_KILL" not in settings:
            return super().spawn(log, **settings)
        return subprocess.Popen(
            self.cluster.enter_command([sys.executable, str(Path(__file__).with_name("killed_daemon.py"))]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**self._environment, **settings},
            start_new_session=True,
        )

    def start_publishing(self, devices: int = 8, **settings: str) -> None:
        """Start the daemon, and wait until kubelet has registered it and the scheduler sees the devices."""
        self.start(**settings)
        self.wait_said("registered with kubelet", driver=DRIVER)
        self.wait_devices(devices)

    def wait_devices(self, count: int) -> None:
        """Wait until so many devices without a taint are published."""
        try:
            self.cluster.wait_for(lambda: len(self.untainted()) == count, READY_SECONDS, f"{count} devices published")
        except Exception as error:
            error.add_note("--- daemon\n" + "\n".join(json.dumps(entry) for entry in self.log()[-30:]))
            raise

    def devices(self) -> list[Json]:
        """All devices that are published."""
        slices = [one for one in self.cluster.api.list("ResourceSlice") if one["spec"]["driver"] == DRIVER]
        return [device for one in slices for device in one["spec"].get("devices", [])]

    def untainted(self) -> list[str]:
        """Names of those without a taint."""
        return [device["name"] for device in self.devices() if not device.get("taints")]

    def uuid(self, device: str) -> str:
        """The UUID of a published device."""
        (found,) = (one for one in self.devices() if one["name"] == device)
        uuid: str = found["attributes"]["uuid"]["string"]
        return uuid

    def allocated(self, name: str) -> frozenset[str]:
        """The UUIDs of the GPUs that a claim has been allocated."""
        status = self.cluster.api.get("ResourceClaim", name)["status"]
        return frozenset(self.uuid(one["device"]) for one in status["allocation"]["devices"]["results"])

    def claiming(self, name: str, *requests: Mapping[str, Any], constraints: list[Json] | None = None) -> Json:
        """Make a claim and a pod of that name that has it, and wait until the pod runs."""
        self.cluster.api.apply(claim(name, *requests, constraints=constraints), claiming_pod(name, name))
        return self.runs(name)

    def runs(self, name: str) -> Json:
        """The pod, once it runs."""
        try:
            return self.cluster.wait_for_phase(name, "Running")
        except Exception as error:
            error.add_note("--- events\n" + "\n".join(self.events(name)))
            error.add_note("--- daemon\n" + "\n".join(json.dumps(entry) for entry in self.log()[-30:]))
            raise

    def events(self, pod: str) -> list[str]:
        """What has been told of a pod."""
        return [one["message"] for one in self.cluster.api.list("Event") if one["involvedObject"]["name"] == pod]

    def wait_event(self, pod: str, words: str) -> str:
        """The first such Event of a pod, once there is one."""
        return self.cluster.wait_for(
            lambda: next((text for text in self.events(pod) if words in text), None), READY_SECONDS, f"Event: {words}"
        )

    def recorded(self) -> dict[str, frozenset[str]]:
        """UUIDs of GPUs by claim name, as recorded on the node."""
        found = {}
        for path in RECORDS.glob("*.json"):
            record = json.loads(path.read_text())
            found[record["name"]] = frozenset(device["gpu"] for device in record["devices"])
        return found

    def end_claims(self, *pods: str) -> None:
        """Delete pods with the claims of their names, and wait until nothing of them is prepared."""
        for name in pods:
            self.cluster.api.delete("Pod", name)
            self.cluster.api.delete("ResourceClaim", name)
        self.cluster.wait_for(
            lambda: not self.recorded().keys() & set(pods) or None, CLEAN_SECONDS, f"{pods} unprepared"
        )

    def close(self) -> None:
        """End the pods with claims while there is a daemon to unprepare them, and then the daemon and its slices."""
        try:
            self._end_all_claims()
        finally:
            super().close()
            shutil.rmtree(RECORDS, ignore_errors=True)
            (RECORDS.parent / "device-names.json").unlink(missing_ok=True)
            for one in self.cluster.api.list("ResourceSlice"):
                self.cluster.api.delete("ResourceSlice", one["metadata"]["name"])

    def _end_all_claims(self) -> None:
        if not self.cluster.is_complete:
            self.cluster.up()
        pods = [one["metadata"]["name"] for one in self.cluster.api.list("Pod") if _has_claims(one)]
        if not pods and not self.recorded():
            return
        if self._process is None or self._process.poll() is not None:
            self.start()
        self._process.send_signal(signal.SIGCONT)
        for name in pods:
            self.cluster.api.delete("Pod", name)
        self.cluster.wait_for(
            lambda: (not self.recorded() and not any(self.cluster.api.exists("Pod", name) for name in pods)) or None,
            CLEAN_SECONDS,
            "the pods with claims gone",
        )

    def kill(self) -> None:
        """End the daemon as a crash would."""
        self.stop(signal.SIGKILL)


def node_token(cluster: Cluster, node: str = NODE) -> str:
    """A token of the daemon's service account as a pod on that node has it."""
    uid = cluster.api.get("Node", node)["metadata"]["uid"]
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "audiences": ["https://kubernetes.default.svc"],
            "expirationSeconds": 7200,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid},
        },
    }
    path = f"/api/v1/namespaces/kube-system/serviceaccounts/{ACCOUNT}/token"
    answer = cluster.wait_for(
        lambda: json.loads(cluster.api.request("POST", path, body=body)), POLICY_SECONDS, "a token"
    )
    token: str = answer["status"]["token"]
    return token


def _has_claims(pod: Json) -> bool:
    return bool(pod["spec"].get("resourceClaims") or pod["status"].get("extendedResourceClaimStatus"))


def _kubeconfig(cluster: Cluster, token: str) -> Json:
    authority = str(cluster.layout.certificates / "apiserver.crt")
    server = {"server": f"https://{HOST}:{API_PORT}", "certificate-authority": authority}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": server}],
        "users": [{"name": ACCOUNT, "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": ACCOUNT}}],
    }
