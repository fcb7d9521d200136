"""The kinds of objects we use: where the API server has each, and what it is decoded to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from gpuplugin.kube.objects import Event, Meta, Node, Object, Pod, ResourceClaim, ResourceSlice

T = TypeVar("T", bound=Object)


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """group: empty for the core group · plural: as in URLs and RBAC · type: what an object is decoded to."""

    group: str
    version: str
    name: str
    plural: str
    namespaced: bool
    type: type[T]

    @property
    def api_version(self) -> str:
        """``resource.k8s.io/v1``, or ``v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """As in RBAC and `kubectl get`: ``resourceslices.resource.k8s.io``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL's path; without a namespace, of all of them."""
        root = "/apis" if self.group else "/api"
        inside = ("namespaces", namespace) if self.namespaced and namespace else ()
        return "/".join(part for part in (root, self.api_version, *inside, self.plural, name, subresource) if part)


SLICES = Kind("resource.k8s.io", "v1", "ResourceSlice", "resourceslices", namespaced=False, type=ResourceSlice)
CLAIMS = Kind("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", namespaced=True, type=ResourceClaim)
NODES = Kind("", "v1", "Node", "nodes", namespaced=False, type=Node)
PODS = Kind("", "v1", "Pod", "pods", namespaced=True, type=Pod)
EVENTS = Kind("", "v1", "Event", "events", namespaced=True, type=Event)


def key(meta: Meta) -> str:
    """``namespace/name``, or the name alone."""
    return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
