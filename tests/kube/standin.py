"""An API server in this process, behind the HTTP client's transport: for the faults that a real one has too rarely.

It keeps objects, versions and watches the way the real one does, as far as our calls can tell; the tests on the real
cluster hold it to that.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx

Json = dict[str, Any]
Fault = Callable[[httpx.Request], httpx.Response | Exception | None]

KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "test",
    "clusters": [{"name": "test", "cluster": {"server": "http://stand-in"}}],
    "users": [{"name": "test", "user": {"token": "secret"}}],
    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
}


def kubeconfig(folder: Path, server: str = "http://stand-in") -> Path:
    path = folder / "kubeconfig"
    path.write_text(json.dumps(KUBECONFIG | {"clusters": [{"name": "test", "cluster": {"server": server}}]}))
    return path


def refusal(code: int, reason: str = "", message: str = "no", headers: dict[str, str] | None = None) -> httpx.Response:
    return httpx.Response(
        code, json={"kind": "Status", "code": code, "reason": reason, "message": message}, headers=headers
    )


class Hang(Exception):
    """As a fault: the request is taken and never answered."""


@dataclass(eq=False)
class Watcher:
    """One watch that is open. `end`, `cut`: the server ends it, the connection breaks."""

    fields: dict[str, str]
    lines: asyncio.Queue[bytes | Exception | None] = field(default_factory=asyncio.Queue)

    def end(self) -> None:
        self.lines.put_nowait(None)

    def cut(self) -> None:
        self.lines.put_nowait(httpx.ReadError("connection reset by peer"))

    def send(self, kind: str, what: Json) -> None:
        self.lines.put_nowait(json.dumps({"type": kind, "object": what}).encode() + b"\n")


class _Stream(httpx.AsyncByteStream):
    def __init__(self, api: StandInApi, watcher: Watcher) -> None:
        self._api, self._watcher = api, watcher

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (line := await self._watcher.lines.get()) is not None:
            if isinstance(line, Exception):
                raise line
            for half in (line[:7], line[7:]):  # lines do not come whole on a network
                yield half

    async def aclose(self) -> None:
        self._api.watchers.discard(self._watcher)


class StandInApi(httpx.AsyncBaseTransport):
    """objects: by path · asked: (method, path and query) of each request · drops: fields of devices and specs that the
    server does not know · faults: asked in turn for each request; the first that gives something decides.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.asked: list[tuple[str, httpx.URL]] = []
        self.drops: set[str] = set()
        self.faults: list[Fault] = []
        self.watchers: set[Watcher] = set()
        self.muted = False
        self.page = 500
        self.oldest = 0
        self._events: list[tuple[int, str, Json]] = []
        self._version = itertools.count(1)
        self._now = 0

    # -- what tests do to it ------------------------------------------------

    @property
    def writes(self) -> list[str]:
        return [f"{method} {url.path}" for method, url in self.asked if method != "GET" and "dryRun" not in url.params]

    def fail(self, response: Callable[[], httpx.Response | Exception], times: int = 1, method: str = "") -> None:
        left = iter(range(times))

        def fault(request: httpx.Request) -> httpx.Response | Exception | None:
            if method and request.method != method:
                return None
            return response() if next(left, None) is not None else None

        self.faults.append(fault)

    def put(self, path: str, what: Json) -> Json:
        """Create or replace an object, as somebody else would."""
        return self._store(path, what, "MODIFIED" if path in self.objects else "ADDED")

    def remove(self, path: str) -> None:
        gone = self.objects.pop(path)
        gone["metadata"]["resourceVersion"] = str(self._tick())
        self._tell("DELETED", gone)

    def compact(self) -> None:
        """Forget what was before now: watches from then on are told 410."""
        self.oldest = self._now
        self._events.clear()

    # -- as a server --------------------------------------------------------

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((request.method, request.url))
        for fault in self.faults:
            outcome = fault(request)
            if isinstance(outcome, Hang):
                await asyncio.Event().wait()
            if isinstance(outcome, Exception):
                raise outcome
            if outcome is not None:
                return outcome
        path, query = request.url.path, dict(request.url.params)
        body = json.loads(request.content) if request.content else {}
        if request.method == "POST":
            return self._create(f"{path}/{body['metadata']['name']}", body, dry="dryRun" in query)
        if request.method == "GET" and path.rsplit("/", 1)[-1] in ("resourceslices", "resourceclaims", "nodes"):
            return self._watch(query) if query.get("watch") else self._list(path, query)
        path = path.removesuffix("/status")
        if path not in self.objects:
            return refusal(404, "NotFound", f"{path} not found")
        return {"GET": self._get, "PUT": self._replace, "PATCH": self._apply, "DELETE": self._delete}[request.method](
            path, body
        )

    def _get(self, path: str, _body: Json) -> httpx.Response:
        return httpx.Response(200, json=self.objects[path])

    def _delete(self, path: str, body: Json) -> httpx.Response:
        wanted = body.get("preconditions", {}).get("uid")
        if wanted and wanted != self.objects[path]["metadata"]["uid"]:
            return refusal(409, "Conflict", "the UID in the precondition does not match")
        self.remove(path)
        return httpx.Response(200, json={"kind": "Status", "status": "Success"})

    def _create(self, path: str, body: Json, *, dry: bool) -> httpx.Response:
        if path in self.objects:
            return refusal(409, "AlreadyExists", f"{path} already exists")
        if dry:
            return httpx.Response(201, json=self._admitted(body))
        return httpx.Response(201, json=self._store(path, body, "ADDED"))

    def _replace(self, path: str, body: Json) -> httpx.Response:
        there = self.objects[path]["metadata"]
        if body["metadata"].get("resourceVersion", there["resourceVersion"]) != there["resourceVersion"]:
            return refusal(409, "Conflict", "the object has been modified")
        return httpx.Response(200, json=self._store(path, body, "MODIFIED"))

    def _apply(self, path: str, body: Json) -> httpx.Response:
        there = self.objects[path]
        if body.get("metadata", {}).get("uid", there["metadata"]["uid"]) != there["metadata"]["uid"]:
            return refusal(409, "Conflict", "the UID does not match")
        merged = there | {"status": there.get("status", {}) | body.get("status", {})}
        return httpx.Response(200, json=self._store(path, merged, "MODIFIED"))

    def _list(self, path: str, query: dict[str, str]) -> httpx.Response:
        fields, start = _fields(query), int(query.get("continue", 0))
        within = [
            one
            for where, one in sorted(self.objects.items())
            if path in (_kind(where), _kind(where, everywhere=True)) and _fits(one, fields)
        ]
        limit = min(int(query.get("limit", 500)), self.page)
        more = {"continue": str(start + limit)} if len(within) > start + limit else {}
        items = [{key: part for key, part in one.items() if key not in ("kind", "apiVersion")} for one in within]
        return httpx.Response(
            200,
            json={
                "metadata": {"resourceVersion": str(self._now), **more},
                "items": items[start : start + limit] or None,
            },
        )

    def _watch(self, query: dict[str, str]) -> httpx.Response:
        since = int(query["resourceVersion"])
        watcher = Watcher(_fields(query))
        self.watchers.add(watcher)
        if since < self.oldest:
            watcher.send("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
            watcher.end()
        for version, kind, one in self._events:
            if version > since and _fits(one, watcher.fields):
                watcher.send(kind, one)
        return httpx.Response(200, stream=_Stream(self, watcher))

    def _admitted(self, body: Json) -> Json:
        taken: Json = copy.deepcopy(body)
        spec = taken.get("spec", {})
        for lost in self.drops:
            spec.pop(lost, None)
            for device in spec.get("devices", ()):
                device.pop(lost, None)
        for device in spec.get("devices", ()):
            for taint in device.get("taints", ()):
                taint.setdefault("timeAdded", "2026-01-01T00:00:00Z")
        return taken

    def _store(self, path: str, body: Json, kind: str) -> Json:
        taken = self._admitted(body)
        before = self.objects.get(path)
        meta = taken["metadata"]
        meta["uid"] = before["metadata"]["uid"] if before else f"uid-{next(self._version)}"
        meta["resourceVersion"] = before["metadata"]["resourceVersion"] if before else ""
        if taken == before:
            return before
        meta["resourceVersion"] = str(self._tick())
        self.objects[path] = taken
        self._tell(kind, taken)
        return taken

    def _tick(self) -> int:
        self._now = next(self._version)
        return self._now

    def _tell(self, kind: str, one: Json) -> None:
        seen = copy.deepcopy(one)
        self._events.append((self._now, kind, seen))
        if not self.muted:
            for watcher in self.watchers:
                if _fits(seen, watcher.fields):
                    watcher.send(kind, seen)


def _fields(query: dict[str, str]) -> dict[str, str]:
    return dict(part.split("=", 1) for part in query.get("fieldSelector", "").split(",") if part)


def _kind(path: str, *, everywhere: bool = False) -> str:
    """The path of all objects of an object's kind, in its namespace or in all."""
    kind = path.rpartition("/")[0]
    return re.sub("/namespaces/[^/]+", "", kind) if everywhere else kind


def _fits(one: Json, fields: dict[str, str]) -> bool:
    return all(one.get("spec", {}).get(name.removeprefix("spec.")) == value for name, value in fields.items())
