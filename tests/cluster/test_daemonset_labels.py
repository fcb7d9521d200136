"""Labels by the daemon as it is deployed: its service account is enough, and can do no more than that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployed import NAMESPACE, Deployed
from gpunode import GpuNode
from helm_chart import rendered
from onenode.errors import CommandError
from onenode.layout import NODE

pytestmark = pytest.mark.cluster
ACCOUNT = "gpuplugin"
OURS = ("nvidia.com/", "gpuplugin.io/")


@pytest.fixture
def deployed(bare_node: GpuNode, tmp_path: Path) -> Iterator[Deployed]:
    made = Deployed(bare_node, tmp_path)
    made.load_image("1")
    try:
        yield made
    finally:
        made.close()
        labels = dict.fromkeys(key for key in made.cluster.node()["metadata"]["labels"] if key.startswith(OURS))
        made.cluster.api.patch("Node", NODE, {"metadata": {"labels": labels}, "spec": {"taints": None}})


def test_the_service_account_may_write_our_labels_and_nothing_else(deployed: Deployed):
    deployed.apply("1", rendered("--set=config.labels.owner=node"))
    pod = deployed.wait_ready("1")
    deployed.cluster.wait_for(
        lambda: deployed.cluster.node()["metadata"]["labels"].get("nvidia.com/gpu.count") == "8", 60, "its labels"
    )
    token = deployed.cluster.kubectl(
        *("create", "token", ACCOUNT, f"--namespace={NAMESPACE}"),
        *("--bound-object-kind=Pod", f"--bound-object-name={pod['metadata']['name']}"),
    ).strip()
    free = deployed.cluster.kubectl("create", "token", ACCOUNT, f"--namespace={NAMESPACE}").strip()

    def change(what: object, by: str = token) -> None:
        deployed.cluster.kubectl(f"--token={by}", "patch", "node", NODE, "--type=merge", f"--patch={json.dumps(what)}")

    change({"metadata": {"labels": {"nvidia.com/x": "1"}}})
    change({"metadata": {"labels": {"nvidia.com/x": None}}})
    for labels in ({"example.com/a": "b"}, {"kubernetes.io/hostname": "x"}, {"kubernetes.io/arch": None}):
        with pytest.raises(CommandError, match="only labels under nvidia"):
            change({"metadata": {"labels": labels}})
    for other in (
        {"metadata": {"annotations": {"a": "b"}}},
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}},
    ):
        with pytest.raises(CommandError, match="may change only labels"):
            change(other)
    with pytest.raises(CommandError, match="only the node that it runs on"):
        change({"metadata": {"labels": {"nvidia.com/x": "1"}}}, by=free)


def test_labels_and_the_startup_taint_do_not_stand_in_each_others_way(deployed: Deployed):
    taint = {"key": "gpuplugin.io/not-ready", "effect": "NoSchedule"}
    deployed.cluster.api.patch("Node", NODE, {"spec": {"taints": [taint]}})
    deployed.apply("1", rendered("--set=config.labels.owner=node", "--set=startupTaint.enabled=true"))
    deployed.wait_ready("1")

    def settled() -> bool:
        node = deployed.cluster.node()
        return node["metadata"]["labels"].get("nvidia.com/gpu.count") == "8" and not node["spec"].get("taints")

    deployed.cluster.wait_for(settled, 60, "the labels there and the taint gone")
