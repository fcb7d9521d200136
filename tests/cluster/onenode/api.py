"""The Kubernetes API as the tests want it: any kind, plain JSON, milliseconds a call.

kubectl would do the same in a process of a hundred milliseconds for each call, which on two cores is what a test
spends its time on. Kinds are looked up in the server's own discovery, so that this knows none of them.
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from onenode.credentials import admin_token
from onenode.errors import ApiError
from onenode.layout import API_PORT, HOST, Layout

Json = dict[str, Any]
Objects = list[Json]
_OWNER = "tests"
_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@dataclass(frozen=True)
class Resource:
    """Where the API server keeps a kind."""

    root: str
    plural: str
    namespaced: bool

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        parts = [self.root, *(["namespaces", namespace] if self.namespaced else []), self.plural, name, subresource]
        return "/".join(part for part in parts if part)


class Api:
    """A client with the administrator's token.

    `kind` is a kind (`Pod`) or its plural (`pods`), `namespace` is left aside for kinds that have none. Every call
    raises ApiError where the server says no, OSError where there is no server.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._resources: dict[str, Resource] = {}

    def get(self, kind: str, name: str, *, namespace: str = "default") -> Json:
        """One object."""
        return self._json("GET", self._resource(kind).path(namespace, name))

    def list(self, kind: str, *, namespace: str = "default", selector: str = "") -> Objects:
        """The objects of a kind, all of them or those whose labels fit."""
        query = {"labelSelector": selector} if selector else {}
        items: Objects = self._json("GET", self._resource(kind).path(namespace), query=query)["items"]
        return items

    def apply(self, *objects: str | Mapping[str, Any], namespace: str = "default") -> Objects:
        """Apply objects, server-side and by force; each is an object or YAML text of any number of them."""
        answers = []
        for wanted in (found for given in objects for found in _documents(given)):
            metadata = wanted["metadata"]
            where = self._resource(wanted["kind"]).path(metadata.get("namespace", namespace), metadata["name"])
            query = {"fieldManager": _OWNER, "force": "true"}
            answers.append(self._json("PATCH", where, body=wanted, form="apply-patch+yaml", query=query))
        return answers

    def patch(
        self, kind: str, name: str, change: Mapping[str, Any], *, namespace: str = "default", part: str = ""
    ) -> Json:
        """Merge `change` into an object, or into its subresource `part` (`status`)."""
        where = self._resource(kind).path(namespace, name, part)
        return self._json("PATCH", where, body=change, form="merge-patch+json")

    def delete(self, kind: str, name: str, *, namespace: str = "default", grace: int = 1) -> None:
        """Ask for an object's end, `grace` seconds after its processes were told; what is gone already is no error."""
        query = {"gracePeriodSeconds": str(grace), "propagationPolicy": "Background"}
        try:
            self._json("DELETE", self._resource(kind).path(namespace, name), query=query)
        except ApiError as error:
            if error.reason != "NotFound":
                raise

    def exists(self, kind: str, name: str, *, namespace: str = "default") -> bool:
        """Whether there is such an object."""
        try:
            self.get(kind, name, namespace=namespace)
        except ApiError as error:
            if error.reason != "NotFound":
                raise
            return False
        return True

    def log(self, pod: str, *, container: str = "", namespace: str = "default", previous: bool = False) -> str:
        """What a pod's container has printed."""
        query = {"container": container} if container else {}
        query |= {"previous": "true"} if previous else {}
        path = self._resource("Pod").path(namespace, pod, "log")
        return self.request("GET", path, query=query).decode(errors="replace")

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        form: str = "json",
        query: Mapping[str, str] | None = None,
        accept: str = "*/*",
    ) -> bytes:
        """One HTTP request; `form` is the body's media type, after `application/`."""
        url = f"https://{HOST}:{API_PORT}{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        headers = {
            "Authorization": f"Bearer {admin_token(self._layout)}",
            "Accept": accept,
            "Content-Type": f"application/{form}",
        }
        data = json.dumps(body).encode() if body is not None else None
        trust = ssl.create_default_context(cafile=str(self._layout.certificates / "apiserver.crt"))
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30, context=trust) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error.code, error.read()) from None

    def _json(self, method: str, path: str, **arguments: Any) -> Json:
        answer: Json = json.loads(self.request(method, path, **arguments))
        return answer

    def _resource(self, kind: str) -> Resource:
        if kind not in self._resources:
            self._discover()
        try:
            return self._resources[kind]
        except KeyError:
            raise ApiError(404, "NotFound", f"the API server has no kind {kind}") from None

    def _discover(self) -> None:
        for root in ("/api", "/apis"):
            for group in json.loads(self.request("GET", root, accept=_DISCOVERY))["items"]:
                group_name = group["metadata"].get("name", "")
                for version in group["versions"]:
                    prefix = "/".join(part for part in (root, group_name, version["version"]) if part)
                    for found in version["resources"]:
                        resource = Resource(prefix, found["resource"], found["scope"] == "Namespaced")
                        # Groups and versions come best first; events are in two groups, for example.
                        self._resources.setdefault(found["responseKind"]["kind"], resource)
                        self._resources.setdefault(found["resource"], resource)


def _documents(given: str | Mapping[str, Any]) -> list[Json]:
    return [found for found in yaml.safe_load_all(given) if found] if isinstance(given, str) else [dict(given)]


def _refusal(status: int, body: bytes) -> ApiError:
    try:
        answer = json.loads(body)
        return ApiError(status, answer["reason"], answer["message"])
    except (ValueError, LookupError):
        return ApiError(status, "Unknown", body.decode(errors="replace"))
