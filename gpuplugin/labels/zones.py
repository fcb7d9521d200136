"""A NodeResourceTopology object: what each NUMA node has, for schedulers that look at that before kubelet does.

The kind is ``topology.node.k8s.io/v1alpha2``. Only our own resources are in it; a scheduler takes a resource that no
zone has for one of the node as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpuplugin.model.ids import NumaId, ResourceName
    from gpuplugin.model.inventory import NumaNode

API_VERSION: Final = "topology.node.k8s.io/v1alpha2"
KIND: Final = "NodeResourceTopology"


@dataclass(frozen=True, slots=True)
class Amount:
    """How much of a resource a NUMA node has: of devices at all, of usable ones, and of usable ones that are free."""

    resource: ResourceName
    numa: NumaId
    capacity: int
    allocatable: int
    available: int


def topology_object(
    node: str, numa_nodes: Sequence[NumaNode], amounts: Iterable[Amount], attributes: Mapping[str, str]
) -> dict[str, Any]:
    """Give the object, ready for server-side apply. Devices on no known NUMA node are in none of its zones.

    attributes: of the node, such as ``topologyManagerPolicy``, by which schedulers know how strict kubelet is.
    """
    by_numa: dict[NumaId, list[Amount]] = {numa.id: [] for numa in numa_nodes}
    for amount in amounts:
        by_numa.setdefault(amount.numa, []).append(amount)
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": node},
        "attributes": [{"name": name, "value": value} for name, value in sorted(attributes.items())],
        "zones": [_zone(numa, by_numa[numa], numa_nodes) for numa in sorted(by_numa)],
    }


def _zone(numa: NumaId, amounts: Iterable[Amount], numa_nodes: Sequence[NumaNode]) -> dict[str, Any]:
    distances = next((node.distances for node in numa_nodes if node.id == numa), ())
    costs = [
        {"name": _name(other.id), "value": distance} for other, distance in zip(numa_nodes, distances, strict=False)
    ]
    resources = [
        {
            "name": amount.resource,
            "capacity": f"{amount.capacity}",
            "allocatable": f"{amount.allocatable}",
            "available": f"{amount.available}",
        }
        for amount in sorted(amounts, key=lambda amount: amount.resource)
    ]
    return {"name": _name(numa), "type": "Node", "costs": costs, "resources": resources}


def _name(numa: NumaId) -> str:
    return f"node-{numa}"
