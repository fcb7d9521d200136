"""What metrics cost: a scrape of 8 GPUs and of 56 MIG devices, and CPU and memory of collecting every second.

Run from the repository root: ``python bench/metrics.py``. Each scrape waits for a snapshot that nobody has asked for
before, so that the figure is with the text's being written; what Prometheus gets is compressed, as it asks for it.
CPU and memory are those of the whole daemon with metrics and without, all at rest but for the collection; with the C
library its own work is next to nothing, so what the driver takes for the same calls comes on top on a real node.
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc.aio
from lists import MIG_DEVICES, divide
from memory import resident_mib
from rig import report
from rig.node import QUICK, Node, Way, count, ways
from startup import cpu_ms

from gpuplugin.pb import podresources_v1_pb2 as api
from gpuplugin.pb import podresources_v1_pb2_grpc as rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

GPU = "nvidia.com/gpu"
SETTLE_SECONDS, IDLE_SECONDS = (1.0, 1.0) if QUICK else (10.0, 30.0)
FRESH_SECONDS = 0.2
BUDGET_MS, TAIL_MS, BUDGET_PERCENT, BUDGET_MIB = 5.0, 50.0, 1.0, 80


class Lister(rpc.PodResourcesListerServicer):
    """A kubelet by which each device that is offered is some pod's."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def List(self, request: object, context: object) -> api.ListPodResourcesResponse:  # noqa: N802, ARG002
        """Answer at once."""
        answer = api.ListPodResourcesResponse()
        for number, device in enumerate(self._node.kubelet.devices(GPU)):
            container = answer.pod_resources.add(name=f"training-{number}", namespace="team").containers.add(
                name="main"
            )
            container.devices.add(resource_name=GPU, device_ids=[device.id])
        return answer


@asynccontextmanager
async def running(way: Way, *, mig: bool, **settings: str) -> AsyncIterator[Node]:
    """A node whose daemon offers all it has, with a pod on each device."""
    strategy = "single" if mig else "none"
    with Node(way=way, mig_strategy=strategy, **settings) as node:
        node.command.append(f"--paths-kubelet={node.folder}")
        if mig:
            divide(node)
        server = grpc.aio.server()
        rpc.add_PodResourcesListerServicer_to_server(Lister(node), server)
        (node.folder / "pod-resources").mkdir()
        server.add_insecure_port(f"unix:{node.folder}/pod-resources/kubelet.sock")
        await server.start()
        async with node.kubelet:
            try:
                await node.start()
                await node.offered(8 * MIG_DEVICES if mig else 8)
                yield node
            finally:
                await node.stop()
                await server.stop(None)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def metrics(port: int, seconds: float) -> dict[str, str]:
    return {
        "metrics_enabled": "true",
        "metrics_address": f"127.0.0.1:{port}",
        "metrics_interval_seconds": f"{seconds}",
    }


def scrape(connection: http.client.HTTPConnection, encoding: str = "gzip") -> tuple[float, bytes]:
    """Milliseconds, and what came."""
    began = time.perf_counter()
    connection.request("GET", "/metrics", headers={"Accept-Encoding": encoding})
    answer = connection.getresponse()
    body = answer.read()
    took = (time.perf_counter() - began) * 1000
    if answer.status != http.client.OK:
        raise LookupError(f"status {answer.status}: {body[:100]!r}")
    return took, body


async def scrapes(way: Way, *, mig: bool) -> None:
    port = free_port()
    async with running(way, mig=mig, **metrics(port, FRESH_SECONDS)):
        await asyncio.sleep(SETTLE_SECONDS)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        fresh, again = [], []
        for _ in range(count(150)):
            await asyncio.sleep(1.5 * FRESH_SECONDS)
            fresh.append((await asyncio.to_thread(scrape, connection))[0])
            again.append((await asyncio.to_thread(scrape, connection))[0])
        _, zipped = await asyncio.to_thread(scrape, connection)
        _, plain = await asyncio.to_thread(scrape, connection, "identity")
        connection.close()
    lines = plain.count(b"\n") - 2 * plain.count(b"# HELP")
    report.title(f"scrape of {'56 MIG devices' if mig else '8 GPUs'} with pods, {way.value}: {lines} series")
    report.times("the first one of a snapshot", fresh, (BUDGET_MS, TAIL_MS))
    report.times("another one of it", again)
    report.value("what is sent", len(zipped) / 1024, "KiB")
    report.value("what that is uncompressed", len(plain) / 1024, "KiB")


async def at_rest(way: Way, *, mig: bool, **settings: str) -> tuple[float, float]:
    """The share of a core in percent, and resident memory in MiB; with metrics, they are scraped every ten seconds."""
    async with running(way, mig=mig, **settings) as node:
        connection = None
        if "metrics_address" in settings:
            connection = http.client.HTTPConnection(settings["metrics_address"], timeout=10)
        await asyncio.sleep(SETTLE_SECONDS)
        before, began = cpu_ms(node.pid), time.monotonic()
        while (passed := time.monotonic() - began) < IDLE_SECONDS:
            if connection is not None:
                await asyncio.to_thread(scrape, connection)
            await asyncio.sleep(min(10.0, IDLE_SECONDS - passed))
        share = (cpu_ms(node.pid) - before) / ((time.monotonic() - began) * 1000) * 100
        return share, resident_mib(node.pid)


async def costs(way: Way, *, mig: bool) -> None:
    without, lean = await at_rest(way, mig=mig)
    collecting, full = await at_rest(way, mig=mig, **metrics(free_port(), 1.0))
    report.title(f"collecting {'56 MIG devices' if mig else '8 GPUs'} every second, {way.value}")
    report.value("CPU of one core for it", collecting - without, "%", BUDGET_PERCENT, "131 %")
    report.value("CPU of one core, the whole daemon", collecting, "%")
    report.value("resident memory for it", full - lean, "MiB")
    report.value("resident memory, the whole daemon", full, "MiB", BUDGET_MIB, "400 to 500 MiB")


async def main() -> None:
    way = ways()[0]
    for mig in (False, True) if way is Way.LIBRARY else (False,):
        await scrapes(way, mig=mig)
        await costs(way, mig=mig)


if __name__ == "__main__":
    asyncio.run(main())
