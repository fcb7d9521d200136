"""What the daemon's container must be allowed, found out under the device cgroup: docs/permissions.md is this in words.

The NVML stand-in opens nvidiactl and nvidia0 … with the driver's device numbers, as the driver's own library does.
"""

from __future__ import annotations

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from deployed import IMAGE, MANIFEST, Deployed
from gpunode import GPU, GpuNode
from onenode.api import Json

pytestmark = pytest.mark.cluster
UNPRIVILEGED: dict[str, Any] = {
    "runAsUser": 0,
    "runAsGroup": 0,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture
def deployed(bare_node: GpuNode, tmp_path: Path) -> Deployed:
    made = Deployed(bare_node, tmp_path)
    made.load_image("1")
    return made


def pod_of(deployed: Deployed, name: str, context: Json, *, dev: bool = True, limits: Json | None = None) -> Json:
    """The DaemonSet's pod with another security context, as a pod of its own."""
    daemonset = next(found for found in yaml.safe_load_all(MANIFEST.read_text()) if found["kind"] == "DaemonSet")
    spec = copy.deepcopy(daemonset["spec"]["template"]["spec"])
    spec |= {"serviceAccountName": "default", "restartPolicy": "Never"}
    spec.pop("priorityClassName")
    deployed.adapt(spec, f"{IMAGE}:1")
    (container,) = spec["containers"]
    container["securityContext"] = context
    if limits:
        container["resources"] = {"limits": limits}
    if not dev:
        container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] != "dev"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def features_of(deployed: Deployed, name: str) -> Json:
    """What the daemon in that pod has said it found, once it has."""
    return deployed.cluster.wait_for(
        lambda: next(iter(said(deployed, name, "features")), None), 30, f"{name}'s features in its log"
    )


def said(deployed: Deployed, name: str, event: str) -> list[Json]:
    text = deployed.cluster.api.log(name)
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


def refusal_of(deployed: Deployed, name: str) -> str:
    found: Json = deployed.cluster.wait_for(
        lambda: next(iter(said(deployed, name, "the GPUs cannot be looked at: trying again")), None),
        30,
        f"{name}'s refusal in its log",
    )
    return str(found["reason"])


def test_the_device_cgroup_refuses_whatever_capabilities_and_mounts_there_are(deployed: Deployed):
    capable = {**UNPRIVILEGED, "allowPrivilegeEscalation": True, "capabilities": {"add": ["ALL"]}}
    capable["seccompProfile"] = {"type": "Unconfined"}
    for name, context in {"plain": UNPRIVILEGED, "capable": capable}.items():
        deployed.cluster.api.apply(pod_of(deployed, name, context))
        reason = refusal_of(deployed, name)
        ready = deployed.cluster.wait_for(
            partial(unready, deployed, name), 30, f"why {name} is not ready, in its events"
        )
        print(f"\n  {name}: {reason}\n  event: {ready}")
        assert "may not open the device nodes" in ready
        assert "run the container privileged" in ready


def unready(deployed: Deployed, name: str) -> str | None:
    found = deployed.cluster.api.list("Event")
    texts = [e.get("message") or e.get("note") for e in found if e["reason"] == "Unhealthy" and about(e) == name]
    return next((text for text in texts if text and text.startswith("Readiness")), None)


def about(event: Json) -> str:
    return str((event.get("involvedObject") or event.get("regarding"))["name"])


def test_privileged_is_enough_by_itself(deployed: Deployed):
    context = {"runAsUser": 0, "runAsGroup": 0, "readOnlyRootFilesystem": True, "privileged": True}
    deployed.cluster.api.apply(pod_of(deployed, "privileged", context))
    found = features_of(deployed, "privileged")
    print("\n ", found)
    assert (found["control_node"], found["cdi"], found["kubelet"]) == ("ok", "writable", True)
    deployed.wait_allocatable(8)
    assert said(deployed, "privileged", "hot plug") == []


@pytest.mark.kubelet(topology_policy="none")  # a pod of all GPUs is on both NUMA nodes
def test_passed_devices_are_enough_with_no_capability_at_all(deployed: Deployed):
    """What a vendor's runtime class does for the pod; here an earlier daemon passes all GPUs to it."""
    deployed.node.start_ready()
    deployed.cluster.api.apply(pod_of(deployed, "passed", UNPRIVILEGED, dev=False, limits={GPU: "8"}))
    found = features_of(deployed, "passed")
    print("\n ", found)
    assert (found["control_node"], found["capabilities"], found["user"]) == ("ok", "none", 0)
    assert len(said(deployed, "passed", "registered with kubelet")) == 1
    assert said(deployed, "passed", "hot plug") == []
