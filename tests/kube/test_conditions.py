"""Whose condition is whose, and how ours goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuplugin.errors import KubeConflict, KubeNotFound
from gpuplugin.kube.client import Kube
from gpuplugin.kube.conditions import remove_from_nodes
from tests.kube.standin import kubeconfig
from tests.kube.test_labels import Server

TYPE = "GPUsHealthy"
OURS = {"f:status": {"f:conditions": {f'k:{{"type":"{TYPE}"}}': {".": {}, "f:type": {}}}}}
ANOTHER = {"f:status": {"f:conditions": {'k:{"type":"Ready"}': {}}}}


def node(name: str, manager: str, operation: str, fields: dict[str, Any]) -> dict[str, Any]:
    managed = [{"manager": manager, "operation": operation, "subresource": "status", "fieldsV1": fields}]
    return {"metadata": {"name": name, "uid": f"uid-{name}", "managedFields": managed}}


@pytest.fixture
def server() -> Server:
    made = Server()
    for one in (
        node("has", "gpuplugin", "Apply", OURS),
        node("other", "gpuplugin", "Apply", ANOTHER),
        node("theirs", "kubectl", "Update", OURS),
        node("edited", "gpuplugin", "Update", OURS),
        {"metadata": {"name": "new", "uid": "uid-new"}},
    ):
        made.objects[f"/api/v1/nodes/{one['metadata']['name']}"] = one
        made.objects[f"/api/v1/nodes/{one['metadata']['name']}/status"] = one
    return made


@pytest.fixture
def kube(server: Server, tmp_path: Path) -> Kube:
    return Kube(kubeconfig(tmp_path), transport=server, patience=0)


async def test_all_nodes_lose_what_we_have_applied_and_nothing_else(kube: Kube, server: Server):
    assert await remove_from_nodes(kube, TYPE) == ("has",)
    ((method, path, query, body),) = server.sent
    assert (method, path, query["fieldManager"]) == ("PATCH", "/api/v1/nodes/has/status", "gpuplugin")
    assert body == {"apiVersion": "v1", "kind": "Node", "metadata": {"uid": "uid-has"}, "status": {}}


async def test_one_node_is_asked_for_by_name(kube: Kube, server: Server):
    assert await remove_from_nodes(kube, TYPE, "other") == ()
    assert server.sent == []
    with pytest.raises(KubeNotFound):
        await remove_from_nodes(kube, TYPE, "none")


async def test_a_node_that_is_another_by_now_is_left_alone(kube: Kube, server: Server):
    server.objects["/api/v1/nodes/has/status"] = {"metadata": {"uid": "another"}}
    with pytest.raises(KubeConflict):
        await remove_from_nodes(kube, TYPE, "has")
