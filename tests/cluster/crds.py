"""Custom resources that the daemon writes, as far as their published shape matters; written here, not fetched."""

from __future__ import annotations

from typing import Any

from onenode import Cluster
from onenode.api import Json
from onenode.errors import ApiError

AMOUNT: Json = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}


def _object(required: tuple[str, ...] = (), **properties: Any) -> Json:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


TEXT: Json = {"type": "string"}
PAIRS = _list(_object(("name", "value"), name=TEXT, value=TEXT))
RESOURCE = _object(
    ("name", "capacity", "allocatable", "available"),
    name=TEXT,
    capacity=AMOUNT,
    allocatable=AMOUNT,
    available=AMOUNT,
)
ZONE = _object(
    ("name", "type"),
    name=TEXT,
    type=TEXT,
    parent=TEXT,
    costs=_list(_object(("name", "value"), name=TEXT, value={"type": "integer", "format": "int64"})),
    attributes=PAIRS,
    resources=_list(RESOURCE),
)
NODE_RESOURCE_TOPOLOGY = {
    **_object(("zones",), topologyPolicies=_list(TEXT), zones=_list(ZONE), attributes=PAIRS),
}

ANY_MAP: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
NODE_FEATURE = _object(
    ("spec",),
    spec=_object(
        features=_object(("attributes", "flags", "instances"), attributes=ANY_MAP, flags=ANY_MAP, instances=ANY_MAP),
        labels={"type": "object", "additionalProperties": TEXT},
    ),
)


def install(cluster: Cluster, group: str, version: str, kind: str, plural: str, schema: Json, *, scope: str) -> str:
    """Have the API server know a kind, and wait until it does. Returns the definition's name, for its removal."""
    name = f"{plural}.{group}"
    cluster.api.apply(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": name,
                "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},  # k8s.io groups need a word
            },
            "spec": {
                "group": group,
                "scope": scope,
                "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
                "versions": [
                    {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
                ],
            },
        }
    )

    def served() -> bool:
        try:
            cluster.api.list(kind)
        except ApiError:
            return False
        return True

    cluster.wait_for(served, 30, f"{name} served")
    return name
