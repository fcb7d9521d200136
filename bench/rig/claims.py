"""A node whose daemon also talks to an API server: the stand-in's process, a kubeconfig for it, and kubelet's pods."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import urllib.request
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio

from gpuplugin.pb import podresources_v1_pb2 as pods
from gpuplugin.pb import podresources_v1_pb2_grpc as pods_rpc
from rig.node import Node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rig.node import Way

NODE_NAME = "bench"


class NoPods(pods_rpc.PodResourcesListerServicer):
    """Kubelet's word that no pod has any device."""

    async def List(  # noqa: N802 - gRPC's name
        self, request: pods.ListPodResourcesRequest, context: object
    ) -> pods.ListPodResourcesResponse:
        """Tell of none."""
        del request, context
        return pods.ListPodResourcesResponse()

    async def GetAllocatableResources(  # noqa: N802 - likewise
        self, request: pods.AllocatableResourcesRequest, context: object
    ) -> pods.AllocatableResourcesResponse:
        """Tell of no device that could be given."""
        del request, context
        return pods.AllocatableResourcesResponse()


class ApiServer:
    """The stand-in's process, while it runs."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"

    async def counts(self) -> dict[str, int]:
        """Requests so far, by method and kind: ``GET nodes``."""
        return await asyncio.to_thread(self._counts)

    def _counts(self) -> dict[str, int]:
        with urllib.request.urlopen(f"{self._address}/counts") as answer:
            found: dict[str, int] = json.load(answer)
        return found

    def write_kubeconfig(self, path: Path) -> None:
        """Write how to reach it."""
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "bench",
                    "clusters": [{"name": "bench", "cluster": {"server": self._address}}],
                    "users": [{"name": "bench", "user": {"token": "bench"}}],
                    "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
                }
            )
        )


@asynccontextmanager
async def api_server() -> AsyncIterator[ApiServer]:
    """Run the stand-in."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = str(Path(__file__).with_name("api_server.py"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, script, str(port), NODE_NAME, stdout=asyncio.subprocess.PIPE
    )
    await process.stdout.readline()
    try:
        yield ApiServer(port)
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def node_with_api(way: Way, **settings: str) -> AsyncIterator[tuple[Node, ApiServer]]:
    """Give a node whose daemon has been started with an API server, a kubelet without pods, and claims on all GPUs.

    settings: flags of the daemon, in place of or beside `dra.gpus`.
    """
    flags = {"dra_gpus": "all", "node_name": NODE_NAME, **settings}
    async with api_server() as server:
        with Node(way=way, **flags) as node:
            server.write_kubeconfig(node.folder / "kubeconfig")
            node.command.append(f"--kubeconfig={node.folder / 'kubeconfig'}")
            for folder in ("plugins_registry", "plugins", "pods", "pod-resources"):
                (node.folder / folder).mkdir()
            lister = grpc.aio.server()
            pods_rpc.add_PodResourcesListerServicer_to_server(NoPods(), lister)
            lister.add_insecure_port(f"unix:{node.folder}/pod-resources/kubelet.sock")
            await lister.start()
            async with node.kubelet:
                try:
                    await node.start()
                    yield node, server
                except TimeoutError:
                    print(node.log.read_text(encoding="utf-8"), file=sys.stderr)
                    raise
                finally:
                    await node.stop()
                    await lister.stop(None)
