"""A NodeResourceTopology object, kept as it should be: read to see whether it is, and written where it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuplugin.errors import KubeNotFound
from gpuplugin.kube.kinds import Kind
from gpuplugin.kube.labels import LabelledMeta  # noqa: TC001 - msgspec reads it
from gpuplugin.kube.objects import Object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplugin.kube.client import Kube

MANAGER: Final = "gpuplugin-topology"


class NodeTopology(Object, frozen=True):
    """topology.node.k8s.io/v1alpha2; both parts are lists as they came."""

    metadata: LabelledMeta
    attributes: Any = None
    zones: Any = None


NODE_TOPOLOGIES = Kind(
    "topology.node.k8s.io",
    "v1alpha2",
    "NodeResourceTopology",
    "noderesourcetopologies",
    namespaced=False,
    type=NodeTopology,
)


async def is_there(kube: Kube, wanted: Mapping[str, Any]) -> bool:
    """Whether the object is as it should be. Raises KubeError's kinds."""
    try:
        found = await kube.get(NODE_TOPOLOGIES, wanted["metadata"]["name"])
    except KubeNotFound:
        return False
    return (found.attributes, found.zones) == (wanted["attributes"], wanted["zones"])


async def put(kube: Kube, wanted: Mapping[str, Any]) -> None:
    """Make it so, by server-side apply. Raises KubeError's kinds; KubeNotFound where the cluster lacks the kind."""
    await kube.apply(NODE_TOPOLOGIES, wanted["metadata"]["name"], wanted, manager=MANAGER)


async def remove(kube: Kube, name: str = "") -> tuple[str, ...]:
    """Delete the object of one node, or of all, where we have written it; gives the nodes. Raises KubeError's kinds."""
    try:
        found = (await kube.get(NODE_TOPOLOGIES, name),) if name else (await kube.list(NODE_TOPOLOGIES))[0]
    except KubeNotFound:
        return ()
    metas = [one.metadata for one in found]
    ours = [meta.name for meta in metas if any(entry.manager == MANAGER for entry in meta.managed_fields)]
    for node in ours:
        await kube.delete(NODE_TOPOLOGIES, node)
    return tuple(ours)
