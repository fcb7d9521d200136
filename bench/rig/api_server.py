"""A stand-in API server in a process of its own: one node's requests, answered from memory over HTTP, and counted.

``python bench/rig/api_server.py PORT NODE``. It keeps what is written, as a whole, and knows the Node from the start.
Claims are named for what they are allocated: ``c-<number>-<gpu>-<gpu>…`` has the devices ``gpu-<gpu>`` of the node's
pool. A watch tells of nothing and ends when it was asked to. ``GET /counts`` gives the requests so far, by method and
kind of object. A real one answers a millisecond later, with TLS.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections import Counter
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

DRIVER = "gpu.nvidia.com"
Json = dict[str, Any]
NO_SUCH = {"kind": "Status", "code": 404, "reason": "NotFound", "message": "there is none"}
COUNTS = "/counts"


def claim(node: str, name: str) -> Json:
    """The claim of that name."""
    devices = [f"gpu-{gpu}" for gpu in name.split("-")[2:]]
    results = [{"request": "gpus", "driver": DRIVER, "pool": node, "device": device} for device in devices]
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": f"pod-{name}", "uid": f"uid-pod-{name}"}],
        },
    }


def owned(fields: Any) -> Json:
    """What an apply owns, as managed fields spell it."""
    return {f"f:{name}": owned(value) for name, value in fields.items()} if isinstance(fields, dict) else {}


class Server:
    """Answers one node."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._objects: dict[str, Json] = {f"/api/v1/nodes/{node}": {"metadata": {"name": node, "uid": "uid-node"}}}
        self._versions = itertools.count(1)
        self.counts: Counter[str] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection, for as long as it lasts."""
        try:
            while line := await reader.readline():
                method, target, _ = line.decode().split()
                length = 0
                while (header := await reader.readline()) not in (b"\r\n", b""):
                    name, _, value = header.decode().partition(":")
                    if name.lower() == "content-length":
                        length = int(value)
                body = await reader.readexactly(length)
                where = urlsplit(target)
                query = {name: values[-1] for name, values in parse_qs(where.query).items()}
                if query.get("watch") == "true":
                    self.counts[f"WATCH {_kind(where.path)}"] += 1
                    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(float(query["timeoutSeconds"])):
                            await reader.read()  # until it goes away
                            return
                    writer.write(b"0\r\n\r\n")
                    continue
                code, found = self._answer(method, where.path, query, json.loads(body) if body else {})
                answer = json.dumps(found).encode()
                writer.write(b"HTTP/1.1 %d -\r\nContent-Type: application/json\r\n" % code)
                writer.write(b"Content-Length: %d\r\n\r\n" % len(answer) + answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Json]:
        if path == COUNTS:
            return 200, dict(self.counts)
        self.counts[f"{method} {_kind(path)}"] += 1
        if "/resourceclaims/" in path:
            return 200, claim(self._node, path.split("/")[7])
        path = path.removesuffix("/status")
        if method == "GET":
            return self._read(path)
        if method == "DELETE":
            return (200, self._objects.pop(path)) if path in self._objects else (404, NO_SUCH)
        return 200, self._write(method, path, query.get("fieldManager", ""), body)

    def _read(self, path: str) -> tuple[int, Json]:
        if path in self._objects:
            return 200, self._objects[path]
        items = [found for where, found in self._objects.items() if where.rpartition("/")[0] == path]
        if items or _is_list(path):
            return 200, {"metadata": {"resourceVersion": f"{next(self._versions)}"}, "items": items}
        return 404, NO_SUCH

    def _write(self, method: str, path: str, manager: str, body: Json) -> Json:
        if method == "POST":
            path = f"{path}/{body['metadata']['name']}"
        before = self._objects.get(path, {}) if method == "PATCH" else {}
        self._objects[path] = written = _merged(before, body)
        meta = written["metadata"]
        meta |= {"resourceVersion": f"{next(self._versions)}"}
        meta.setdefault("uid", f"uid-{path.rpartition('/')[2]}")
        others = [one for one in meta.get("managedFields", ()) if one["manager"] != manager]
        meta["managedFields"] = [*others, {"manager": manager, "operation": "Apply", "fieldsV1": owned(body)}]
        return written


def _merged(before: Any, after: Any) -> Any:
    if isinstance(before, dict) and isinstance(after, dict):
        return before | {name: _merged(before.get(name), value) for name, value in after.items()}
    return after


def _is_list(path: str) -> bool:
    """Whether a path ends in a kind: ``/api/v1/nodes``, ``/apis/<group>/<version>/[namespaces/<one>/]<kind>``."""
    parts = path.strip("/").split("/")
    prefix = 2 if parts[0] == "api" else 3
    return len(parts) in (prefix + 1, prefix + 3 if "namespaces" in parts else prefix + 1)


def _kind(path: str) -> str:
    parts = path.strip("/").split("/")
    after = parts[2 if parts[0] == "api" else 3 :]
    if after[0] == "namespaces" and len(after) > 2:
        after = after[2:]
    return after[0]


async def main() -> None:
    port, node = int(sys.argv[1]), sys.argv[2]
    server = await asyncio.start_server(Server(node).serve, "127.0.0.1", port)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
