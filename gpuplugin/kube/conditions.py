"""Conditions of a Node that are ours by server-side apply, found again and taken away as labels are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gpuplugin.kube.client import FIELD_MANAGER
from gpuplugin.kube.kinds import Kind
from gpuplugin.kube.labels import LabelledMeta  # noqa: TC001 - msgspec reads it
from gpuplugin.kube.objects import Object

if TYPE_CHECKING:
    from gpuplugin.kube.client import Kube


class ConditionedNode(Object, frozen=True):
    """A Node, of which only who owns what is of interest."""

    metadata: LabelledMeta

    def has_ours(self, condition: str) -> bool:
        """Whether we have applied a condition of this type."""
        key = f"k:{json.dumps({'type': condition}, separators=(',', ':'))}"
        return key in self.metadata.applied(FIELD_MANAGER, "f:status", "f:conditions")


CONDITIONED_NODES = Kind("", "v1", "Node", "nodes", namespaced=False, type=ConditionedNode)


async def remove_from_nodes(kube: Kube, condition: str, name: str = "") -> tuple[str, ...]:
    """Take our condition off one Node, or off all of them; gives those that had it. Raises KubeError's kinds."""
    nodes = (await kube.get(CONDITIONED_NODES, name),) if name else (await kube.list(CONDITIONED_NODES))[0]
    found = [node.metadata for node in nodes if node.has_ours(condition)]
    for node in found:
        body = {
            "apiVersion": CONDITIONED_NODES.api_version,
            "kind": CONDITIONED_NODES.name,
            "metadata": {"uid": node.uid},
            "status": {},
        }
        await kube.apply(CONDITIONED_NODES, node.name, body, subresource="status")
    return tuple(node.name for node in found)
