"""Whose labels are whose: what is read as ours, what is sent, what is taken away."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from gpuplugin.errors import KubeConflict, KubeNotFound
from gpuplugin.kube import topology
from gpuplugin.kube.client import Kube
from gpuplugin.kube.labels import MANAGER, LabelsInFeature, LabelsOnNode, remove_features, remove_from_nodes
from tests.kube.standin import kubeconfig, refusal

FEATURES = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/gpus/nodefeatures"
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"


def entry(manager: str, *keys: str, operation: str = "Apply") -> dict[str, Any]:
    fields = {"f:metadata": {"f:labels": {".": {}, **{f"f:{key}": {} for key in keys}}}}
    return {"manager": manager, "operation": operation, "fieldsV1": fields}


def node(name: str = "here", uid: str = "u", **labels: str) -> dict[str, Any]:
    managed = [
        entry(MANAGER, *(key for key in labels if key.startswith("o"))),
        entry(MANAGER, "theirs", operation="Update"),
        entry("other", "theirs", "owner"),
        {"manager": MANAGER, "operation": "Apply", "fieldsV1": {"f:spec": {}}},
    ]
    return {"metadata": {"name": name, "uid": uid, "labels": labels, "managedFields": managed}}


class Server(httpx.AsyncBaseTransport):
    """Objects by path; what was sent is in `sent`."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.sent: list[tuple[str, str, dict[str, str], Any]] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path, body = request.url.path, json.loads(request.content) if request.content else None
        if request.method != "GET":
            self.sent.append((request.method, path, dict(request.url.params), body))
        below = [one for where, one in sorted(self.objects.items()) if where.rpartition("/")[0] == path]
        if request.method == "GET" and path not in self.objects and below:
            return httpx.Response(200, json={"metadata": {}, "items": below})
        if request.method == "PATCH":
            there = self.objects.get(path)
            if body["metadata"].get("uid") and (there is None or there["metadata"]["uid"] != body["metadata"]["uid"]):
                return refusal(409, "Conflict", "uid mismatch")
            return httpx.Response(200, json=body | {"metadata": {"name": path.rpartition("/")[2]}})
        if path not in self.objects:
            return refusal(404, "NotFound", "not found")
        return httpx.Response(200, json=self.objects.pop(path) if request.method == "DELETE" else self.objects[path])


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def kube(server: Server, tmp_path: Path) -> AsyncIterator[Kube]:
    async with Kube(kubeconfig(tmp_path), transport=server, patience=1.0) as client:
        yield client


async def test_only_what_we_applied_is_ours(kube: Kube, server: Server):
    server.objects["/api/v1/nodes/here"] = node(ours="1", owner="2", theirs="3")
    outlet = LabelsOnNode(kube, "here")
    assert await outlet.read() == {"ours": "1", "owner": "2"}
    await outlet.write({"ours": "2"})
    ((_, path, query, body),) = server.sent
    assert (path, query) == ("/api/v1/nodes/here", {"fieldManager": MANAGER, "force": "true"})
    assert body["metadata"] == {"uid": "u", "labels": {"ours": "2"}}


async def test_a_node_that_is_gone_or_another_is_not_made(kube: Kube, server: Server):
    server.objects["/api/v1/nodes/here"] = node()
    outlet = LabelsOnNode(kube, "here")
    await outlet.read()
    server.objects["/api/v1/nodes/here"] = node(uid="another")
    with pytest.raises(KubeConflict):
        await outlet.write({"a": "b"})
    del server.objects["/api/v1/nodes/here"]
    with pytest.raises(KubeConflict):
        await outlet.write({"a": "b"})


async def test_labels_come_off_nodes_that_have_some(kube: Kube, server: Server):
    server.objects["/api/v1/nodes/one"] = node("one", ours="1")
    server.objects["/api/v1/nodes/two"] = node("two", theirs="1")
    assert await remove_from_nodes(kube) == ("one",)
    assert await remove_from_nodes(kube, "two") == ()
    assert [(path, body["metadata"]["labels"]) for _, path, _, body in server.sent] == [("/api/v1/nodes/one", {})]


async def test_an_object_is_made_where_there_is_none(kube: Kube, server: Server):
    outlet = LabelsInFeature(kube, "gpus", "here")
    assert await outlet.read() == {}
    await outlet.write({"a": "b"})
    ((_, path, _, body),) = server.sent
    assert path == f"{FEATURES}/gpuplugin-here"
    assert (body["metadata"]["name"], body["metadata"]["namespace"]) == ("gpuplugin-here", "gpus")
    assert body["spec"]["labels"] == {"a": "b"}


async def test_only_our_objects_are_deleted(kube: Kube, server: Server):
    for name in ("gpuplugin-one", "nvidia-features-for-one", "gpuplugin-odd"):
        labels = {"nfd.node.kubernetes.io/node-name": "one"}
        server.objects[f"{FEATURES}/{name}"] = {"metadata": {"name": name, "labels": labels}, "spec": {}}
    assert await remove_features(kube, "gpus") == ("one",)
    assert await remove_features(kube, "gpus", "one") == ()
    assert [path.rpartition("/")[2] for path in server.objects] == ["nvidia-features-for-one", "gpuplugin-odd"]


async def test_a_topology_is_written_where_it_differs(kube: Kube, server: Server):
    wanted = {"metadata": {"name": "here"}, "attributes": [], "zones": [{"name": "node-0"}]}
    assert not await topology.is_there(kube, wanted)
    await topology.put(kube, wanted)
    server.objects[f"{TOPOLOGIES}/here"] = wanted
    assert await topology.is_there(kube, wanted)
    assert not await topology.is_there(kube, wanted | {"zones": []})


async def test_topologies_of_others_stay(kube: Kube, server: Server):
    for name, manager in (("one", topology.MANAGER), ("two", "nfd")):
        managed = [{"manager": manager, "operation": "Apply"}]
        server.objects[f"{TOPOLOGIES}/{name}"] = {"metadata": {"name": name, "managedFields": managed}}
    assert await topology.remove(kube) == ("one",)
    assert await topology.remove(kube, "one") == await topology.remove(kube, "two") == ()
    assert list(server.objects) == [f"{TOPOLOGIES}/two"]


async def test_no_such_kind_is_told(kube: Kube):
    with pytest.raises(KubeNotFound):
        await remove_features(kube, "gpus")
