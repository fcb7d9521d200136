"""Where labels of a node can be kept in the Kubernetes API, such that ours are told from everybody else's.

We write by server-side apply in a name of our own, and the server remembers which fields that name owns. So what is
ours can be found again by another process, changed as a whole and taken away as a whole, and nothing else of the Node
is ever touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import field

from gpuplugin.errors import KubeNotFound
from gpuplugin.kube.kinds import Kind
from gpuplugin.kube.objects import Meta, Object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplugin.kube.client import Kube

MANAGER: Final = "gpuplugin-labels"
NODE_NAME_LABEL: Final = "nfd.node.kubernetes.io/node-name"
_PREFIX: Final = "gpuplugin-"


class ManagedFields(Object, frozen=True):
    """A ManagedFieldsEntry. fields_v1: nested, ``f:metadata`` → ``f:labels`` → ``f:<key>``."""

    manager: str = ""
    operation: str = ""
    fields_v1: dict[str, Any] = field(default_factory=dict)


class LabelledMeta(Object, frozen=True):
    """The ObjectMeta of a Node, with who owns what."""

    name: str
    uid: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    managed_fields: tuple[ManagedFields, ...] = ()

    @property
    def ours(self) -> dict[str, str]:
        """The labels that MANAGER has applied and that nobody has changed since."""
        keys = {key.removeprefix("f:") for key in self.applied(MANAGER, "f:metadata", "f:labels")}
        return {key: value for key, value in self.labels.items() if key in keys}

    def applied(self, manager: str, part: str, fields: str) -> frozenset[str]:
        """What that manager has applied of a part's fields: ``f:metadata``, ``f:labels``."""
        return frozenset(
            key
            for entry in self.managed_fields
            if entry.manager == manager and entry.operation == "Apply"
            for key in entry.fields_v1.get(part, {}).get(fields, {})
        )


class LabelledNode(Object, frozen=True):
    """A Node, of which only its labels are of interest."""

    metadata: LabelledMeta


class NodeFeatureSpec(Object, frozen=True):
    """What we use of a NodeFeatureSpec."""

    labels: dict[str, str] = field(default_factory=dict)


class NodeFeature(Object, frozen=True):
    """nfd.k8s-sigs.io/v1alpha1: Node Feature Discovery puts its labels on the Node."""

    metadata: Meta
    spec: NodeFeatureSpec = NodeFeatureSpec()


LABELLED_NODES = Kind("", "v1", "Node", "nodes", namespaced=False, type=LabelledNode)
NODE_FEATURES = Kind("nfd.k8s-sigs.io", "v1alpha1", "NodeFeature", "nodefeatures", namespaced=True, type=NodeFeature)


class LabelsOnNode:
    """Labels straight on the Node. It must exist: a write for one that is gone is a KubeConflict, and makes none."""

    def __init__(self, kube: Kube, name: str) -> None:
        self._kube, self._name, self._uid = kube, name, ""

    async def read(self) -> dict[str, str]:
        """Give our labels as they are there now. Raises KubeError's kinds."""
        found = await self._kube.get(LABELLED_NODES, self._name)
        self._uid = found.metadata.uid
        return found.metadata.ours

    async def write(self, labels: Mapping[str, str]) -> None:
        """Have exactly these, to be called after `read`. Raises KubeError's kinds."""
        await _apply(self._kube, self._name, self._uid, labels)


class LabelsInFeature:
    """Labels in a NodeFeature object of our own, ``gpuplugin-<node>``."""

    def __init__(self, kube: Kube, namespace: str, node: str) -> None:
        self._kube, self._namespace, self._node = kube, namespace, node

    async def read(self) -> dict[str, str]:
        """Give the labels in the object; none where there is no object. Raises KubeError's kinds."""
        try:
            found = await self._kube.get(NODE_FEATURES, f"{_PREFIX}{self._node}", namespace=self._namespace)
        except KubeNotFound:
            return {}
        return dict(found.spec.labels)

    async def write(self, labels: Mapping[str, str]) -> None:
        """Have exactly these; the object is made where it is not there. Raises KubeError's kinds."""
        name = f"{_PREFIX}{self._node}"
        body = {
            "apiVersion": NODE_FEATURES.api_version,
            "kind": NODE_FEATURES.name,
            "metadata": {"name": name, "namespace": self._namespace, "labels": {NODE_NAME_LABEL: self._node}},
            "spec": {"features": {"flags": {}, "attributes": {}, "instances": {}}, "labels": dict(labels)},
        }
        await self._kube.apply(NODE_FEATURES, name, body, namespace=self._namespace, manager=MANAGER)


async def remove_from_nodes(kube: Kube, name: str = "") -> tuple[str, ...]:
    """Take our labels off one Node, or off all of them; gives those that had some. Raises KubeError's kinds."""
    nodes = (await kube.get(LABELLED_NODES, name),) if name else (await kube.list(LABELLED_NODES))[0]
    labelled = [node.metadata for node in nodes if node.metadata.ours]
    for node in labelled:
        await _apply(kube, node.name, node.uid, {})
    return tuple(node.name for node in labelled)


async def remove_features(kube: Kube, namespace: str, name: str = "") -> tuple[str, ...]:
    """Delete our NodeFeature object of one node, or those of all; gives those nodes. Raises KubeError's kinds."""
    if name:
        gone = await kube.delete(NODE_FEATURES, f"{_PREFIX}{name}", namespace=namespace)
        return (name,) if gone else ()
    found = (await kube.list(NODE_FEATURES, namespace=namespace))[0]
    nodes = [one.metadata.labels.get(NODE_NAME_LABEL, "") for one in found]
    ours = [node for node, one in zip(nodes, found, strict=True) if one.metadata.name == f"{_PREFIX}{node}"]
    for node in ours:
        await kube.delete(NODE_FEATURES, f"{_PREFIX}{node}", namespace=namespace)
    return tuple(ours)


async def _apply(kube: Kube, name: str, uid: str, labels: Mapping[str, str]) -> None:
    body = {
        "apiVersion": LABELLED_NODES.api_version,
        "kind": LABELLED_NODES.name,
        "metadata": {"uid": uid, "labels": dict(labels)},
    }
    await kube.apply(LABELLED_NODES, name, body, manager=MANAGER)
