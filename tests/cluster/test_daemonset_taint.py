"""A node that comes with the startup taint, the daemon that takes it away, and how little else it may do."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployed import NAMESPACE, Deployed
from gpunode import GPU, GpuNode
from helm_chart import rendered
from onenode.layout import API_PORT, HOST, NODE
from onenode.pods import busybox_pod

pytestmark = pytest.mark.cluster
KEY = "gpuplugin.io/not-ready"
ACCOUNT = "gpuplugin"


@pytest.fixture
def deployed(bare_node: GpuNode, tmp_path: Path) -> Iterator[Deployed]:
    made = Deployed(bare_node, tmp_path)
    made.load_image("1")
    try:
        yield made
    finally:
        made.close()
        made.cluster.api.patch("Node", NODE, {"spec": {"taints": None}})


def keys(deployed: Deployed) -> list[str]:
    return [taint["key"] for taint in deployed.cluster.node()["spec"].get("taints", [])]


def test_no_pod_comes_before_the_gpus_can_be_had(deployed: Deployed):
    ours, theirs = {"key": KEY, "effect": "NoSchedule"}, {"key": "example.com/theirs", "effect": "PreferNoSchedule"}
    deployed.cluster.api.patch("Node", NODE, {"spec": {"taints": [theirs, ours]}})
    deployed.node.state.driver(False)
    deployed.apply("1", rendered("--set=startupTaint.enabled=true"))
    deployed.cluster.api.apply(busybox_pod("early", limits={GPU: 4}))
    deployed.cluster.wait_for(
        lambda: any("cannot be looked at" in text for text in deployed.events("Unhealthy")), 30, "the reason, told"
    )
    assert keys(deployed) == ["example.com/theirs", KEY]
    assert deployed.cluster.api.get("Pod", "early")["status"]["phase"] == "Pending"
    deployed.node.state.driver(True)
    deployed.cluster.wait_for_phase("early", "Running")
    assert keys(deployed) == ["example.com/theirs"]
    pod = deployed.wait_ready("1")
    assert [entry["taint"] for entry in deployed.log(pod) if entry["event"] == "startup taint lifted"] == [KEY]

    token = deployed.cluster.kubectl(
        *("create", "token", ACCOUNT, f"--namespace={NAMESPACE}"),
        *("--bound-object-kind=Pod", f"--bound-object-name={pod['metadata']['name']}"),
    ).strip()
    deployed.cluster.api.patch("Node", NODE, {"spec": {"taints": [theirs, ours]}})
    assert "may only take the taint" in refusal(deployed, token, {"metadata": {"labels": {"a": "b"}}})
    assert "may only take the taint" in refusal(deployed, token, {"spec": {"unschedulable": True}})
    assert "may only take the taint" in refusal(deployed, token, {"spec": {"taints": []}})
    free = deployed.cluster.kubectl("create", "token", ACCOUNT, f"--namespace={NAMESPACE}").strip()
    assert "only the node that it runs on" in refusal(deployed, free, {"spec": {"taints": [theirs]}})
    assert refusal(deployed, token, {"spec": {"taints": [theirs]}}) == ""


def refusal(deployed: Deployed, token: str, change: object) -> str:
    """What the API server says against a change of the node by the daemon's account; "" where it lets it."""
    done = subprocess.run(
        [
            *(
                deployed.cluster.binaries / "kubectl",
                f"--server=https://{HOST}:{API_PORT}",
                "--insecure-skip-tls-verify",
            ),
            *(f"--token={token}", "patch", "node", NODE, "--type=merge", f"--patch={json.dumps(change)}"),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "KUBECONFIG": "/dev/null"},
    )
    return done.stderr if done.returncode else ""


def test_every_rendering_is_accepted_by_the_api_server(deployed: Deployed):
    everything = (
        "--set=startupTaint.enabled=true",
        "--set=config.dra.gpus=all",
        "--set=profiles.files.a.rescanSeconds=9",
    )
    for settings in ((), everything, ("--set=access=runtime",), ("--set=updateStrategy.maxSurge=0",)):
        strategy = ("--set=updateStrategy.maxUnavailable=1",) if "maxSurge=0" in str(settings) else ()
        deployed.cluster.kubectl("apply", "--dry-run=server", "--filename=-", text=rendered(*settings, *strategy))
