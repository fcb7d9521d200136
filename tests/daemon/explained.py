"""Kubelet's pod-resources API and the API server beside the daemon, and the command as people run it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from gpuplugin.pb import podresources_v1_pb2 as api
from gpuplugin.pb import podresources_v1_pb2_grpc as rpc
from tests.daemon.conftest import GPU, Bench
from tests.kube.standin import kubeconfig

RDMA = "rdma/hca"
SETTINGS = "kind: KubeletConfiguration\ntopologyManagerPolicy: single-numa-node\ncpuManagerPolicy: static\n"
GI = 1 << 30


class Lister(rpc.PodResourcesListerServicer):
    """What the stand-in kubelet has given away, and CPUs, NICs and memory: CPU 0 is reserved, two NICs a NUMA node.

    memory: bytes by pod, resource and NUMA node · of_nodes: bytes that each NUMA node has of each, none where kubelet
    does not give memory out.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.cpus: dict[str, list[int]] = {}
        self.nics: dict[str, list[str]] = {}
        self.memory: dict[str, dict[tuple[str, int], int]] = {}
        self.of_nodes: dict[str, int] = {}
        self.pinning = True

    async def List(self, request, context):  # noqa: N802 - gRPC names it
        answer = api.ListPodResourcesResponse()
        for pod in {*self.bench.kubelet.held(GPU), *self.cpus, *self.nics, *self.memory}:
            container = answer.pod_resources.add(name=pod, namespace="team").containers.add(name="main")
            container.cpu_ids.extend(self.cpus.get(pod, []))
            container.devices.add(resource_name=GPU, device_ids=self.bench.kubelet.held(GPU).get(pod, ()))
            container.devices.add(resource_name=RDMA, device_ids=self.nics.get(pod, []))
            for (name, node), size in self.memory.get(pod, {}).items():
                container.memory.add(memory_type=name, size=size, topology=_on(node))
        return answer

    async def GetAllocatableResources(self, request, context):  # noqa: N802 - likewise
        answer = api.AllocatableResourcesResponse(cpu_ids=range(1, 96) if self.pinning else [])
        for number in range(4):
            answer.devices.add(resource_name=RDMA, device_ids=[f"mlx5_{number}"], topology=_on(number // 2))
        for name, size in self.of_nodes.items():
            for node in range(2):
                answer.memory.add(memory_type=name, size=size, topology=_on(node))
        return answer


def _on(node: int) -> api.TopologyInfo:
    return api.TopologyInfo(nodes=[api.NUMANode(ID=node)])


@asynccontextmanager
async def listing(bench: Bench) -> AsyncIterator[Lister]:
    """Serve the pod-resources API, and write kubelet's settings."""
    (bench.folder / "config.yaml").write_text(SETTINGS)
    (bench.folder / "pod-resources").mkdir()
    server, lister = grpc.aio.server(), Lister(bench)
    rpc.add_PodResourcesListerServicer_to_server(lister, server)
    server.add_insecure_port(f"unix:{bench.folder}/pod-resources/kubelet.sock")
    await server.start()
    yield lister
    await server.stop(None)


class ApiServer:
    """Answers GETs with what is put into `objects`, by path; 404 for what is not there. asked: the paths, in order."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[int, dict[str, Any]]] = {}
        self.asked: list[str] = []

    def put(self, path: str, what: dict[str, Any], status: int = 200) -> None:
        self.objects[path] = (status, what)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readline()).decode().split()[1]
        while (await reader.readline()).strip():
            pass
        self.asked.append(path)
        status, what = self.objects.get(path, (404, {"kind": "Status", "reason": "NotFound", "message": "not found"}))
        body = json.dumps(what).encode()
        head = f"HTTP/1.1 {status} said\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def api_server(bench: Bench) -> AsyncIterator[tuple[ApiServer, dict[str, str]]]:
    """Serve it; also gives the settings that have the daemon ask it, as the daemon of node-1."""
    told = ApiServer()
    server = await asyncio.start_server(told.answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    path = kubeconfig(bench.folder, f"http://{host}:{port}")
    async with server:
        yield told, {"kubeconfig": str(path), "node_name": "node-1"}


def own(bench: Bench) -> str:
    return str(bench.folder / "own" / "status.sock")


async def run(bench: Bench, *arguments: str, given: str = "") -> tuple[int, str]:
    """The command in a process of its own, as in the daemon's container; its status and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpuplugin", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "GPUPLUGIN_PATHS_STATUS": own(bench)},
    )
    said, _ = await process.communicate(given.encode())
    assert process.returncode is not None
    return process.returncode, said.decode()
