"""A stand-in API server in a process of its own: the requests of a node with claims, answered from memory over HTTP.

``python bench/rig/api_server.py PORT NODE``. Claims are named for what they are allocated: ``c-<number>-<gpu>-<gpu>…``
has the devices ``gpu-<gpu>`` of the node's pool. A real one answers a millisecond later, with TLS.
"""

from __future__ import annotations

import asyncio
import json
import sys

DRIVER = "gpu.nvidia.com"


def claim(node: str, name: str) -> dict:
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


class Server:
    """Answers one node."""

    def __init__(self, node: str) -> None:
        self._node = node

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection, for as long as it lasts."""
        try:
            while line := await reader.readline():
                method, path, _ = line.decode().split()
                length = 0
                while (header := await reader.readline()) not in (b"\r\n", b""):
                    name, _, value = header.decode().partition(":")
                    if name.lower() == "content-length":
                        length = int(value)
                body = await reader.readexactly(length)
                if "watch=true" in path:
                    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    await reader.read()  # until it goes away
                    return
                answer = json.dumps(self.answer(method, path.partition("?")[0], body)).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
                writer.write(b"Content-Length: %d\r\n\r\n" % len(answer) + answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def answer(self, method: str, path: str, body: bytes) -> dict:
        """Give the object that a request is answered with."""
        last = path.rsplit("/", 1)[-1]
        if "resourceclaims/" in path:
            return claim(self._node, path.split("/")[7])
        if "/nodes/" in path:
            return {"metadata": {"name": last, "uid": "uid-node"}}
        if method == "GET":
            return {"metadata": {"resourceVersion": "1"}, "items": []}
        written = json.loads(body)
        written["metadata"] |= {"uid": "uid-slice", "resourceVersion": "2"}
        return written


async def main() -> None:
    port, node = int(sys.argv[1]), sys.argv[2]
    server = await asyncio.start_server(Server(node).serve, "127.0.0.1", port)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
