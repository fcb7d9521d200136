"""Preparing claims, as kubelet has it done: gRPC to the daemon, the claim from an API server, the record on the disk.

Run from the repository root: ``python bench/dra.py``. The API server is a stand-in in a process of its own, which
answers from memory over HTTP (see ``rig/api_server.py``); everything else is the daemon as it is on a node. The
reference is NVIDIA's DRA driver, measured with a mock of 8 H100 and a real API server on two cores.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc.aio
from memory import resident_mib
from rig import report
from rig.claims import node_with_api
from rig.node import Way, count, ways

from gpuplugin.pb import dra_v1_pb2 as api
from gpuplugin.pb import dra_v1_pb2_grpc as rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from rig.node import Node

PREPARE, UNPREPARE = (5.0, 15.0), (5.0, 15.0)
AT_ONCE = (60.0, 120.0)
REFERENCE = {
    ("Prepare", 1): "7.3-8.2 / 16",
    ("Prepare", 4): "8.6-9.0 / 17",
    ("Prepare", 8): "9.8-10.8 / 20",
    ("Unprepare", 1): "2.1-2.4 / 5-8",
    ("Unprepare", 4): "2.9-3.0 / 7-11",
    ("Unprepare", 8): "3.3-3.7 / 7",
}
SOON = 30.0
_numbers = itertools.count()


class Kubelet:
    """Prepares and unprepares over the daemon's socket. Times are milliseconds."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = rpc.DRAPluginStub(channel)

    async def prepare(self, gpus: Sequence[int]) -> tuple[float, api.Claim]:
        """Prepare a new claim of those GPUs. Raises RuntimeError with the daemon's words."""
        name = "-".join(map(str, ("c", next(_numbers), *gpus)))
        claim = api.Claim(namespace="default", name=name, uid=f"uid-{name}")
        began = time.perf_counter()
        answer = await self._stub.NodePrepareResources(api.NodePrepareResourcesRequest(claims=[claim]))
        taken = (time.perf_counter() - began) * 1000
        (entry,) = answer.claims.values()
        if entry.error or len(entry.devices) != len(gpus):
            raise RuntimeError(entry.error or "devices are missing")
        return taken, claim

    async def unprepare(self, claim: api.Claim) -> float:
        """Take it back."""
        began = time.perf_counter()
        answer = await self._stub.NodeUnprepareResources(api.NodeUnprepareResourcesRequest(claims=[claim]))
        taken = (time.perf_counter() - began) * 1000
        if answer.claims[claim.uid].error:
            raise RuntimeError(answer.claims[claim.uid].error)
        return taken

    async def usable(self) -> None:
        """Wait until the daemon knows its devices and who has them."""
        async with asyncio.timeout(SOON):
            while True:
                try:
                    _, claim = await self.prepare(range(8))
                except RuntimeError:
                    await asyncio.sleep(0.05)
                else:
                    await self.unprepare(claim)
                    return


@asynccontextmanager
async def serving(way: Way) -> AsyncIterator[tuple[Kubelet, Node]]:
    """A daemon that serves claims on all GPUs."""
    async with node_with_api(way) as (node, _), grpc.aio.insecure_channel(f"unix:{await _socket(node)}") as channel:
        kubelet = Kubelet(channel)
        await kubelet.usable()
        yield kubelet, node


async def _socket(node: Node) -> Path:
    async with asyncio.timeout(SOON):
        while True:
            for path in node.folder.glob("plugins/*/gpuplugin-dra-*.sock"):
                return path
            await asyncio.sleep(0.02)


async def measure(way: Way) -> None:
    report.title(f"claims, {way.value}")
    async with serving(way) as (kubelet, node):
        for size in (1, 4, 8):
            what = f"{size} device{'s' * (size > 1)}"
            await _pairs(kubelet, what, range(size), size)
            report.times(f"Prepare, {what}, of this in the daemon", _in_daemon(node, size), PREPARE)
        held = [(await kubelet.prepare([gpu]))[1] for gpu in range(7)]
        await _pairs(kubelet, "1 device, 7 claims held", [7], 1, "16.5 / 26.6", "")
        for claim in held:
            await kubelet.unprepare(claim)
        prepared, unprepared = [], []
        for _ in range(count(30)):
            began = time.perf_counter()
            claims = [claim for _, claim in await asyncio.gather(*(kubelet.prepare([gpu]) for gpu in range(8)))]
            middle = time.perf_counter()
            await asyncio.gather(*map(kubelet.unprepare, claims))
            prepared.append((middle - began) * 1000)
            unprepared.append((time.perf_counter() - middle) * 1000)
        report.times("8 claims of 1 device at once: all Prepares", prepared, AT_ONCE, "722")
        report.times("8 claims of 1 device at once: all Unprepares", unprepared, AT_ONCE, "706")
        report.value("RSS with claims served", resident_mib(node.pid), "MiB", 80, "76-92")


def _in_daemon(node: Node, size: int) -> list[float]:
    """Milliseconds from its hearing a call to its having the answer, as its log has them: without Python's gRPC."""
    lines = (json.loads(line) for line in node.log.read_text(encoding="utf-8").splitlines() if line[:1] == "{")
    prepared = (line for line in lines if line["event"] == "claim prepared")
    return [line["milliseconds"] for line in prepared if len(line["devices"]) == size]


async def _pairs(
    kubelet: Kubelet, what: str, gpus: Sequence[int], size: int, prepare: str = "", unprepare: str = ""
) -> None:
    prepared, unprepared = [], []
    for number in range(-5, count(200)):
        taken, claim = await kubelet.prepare(gpus)
        back = await kubelet.unprepare(claim)
        if number >= 0:
            prepared.append(taken)
            unprepared.append(back)
    report.times(f"Prepare, {what}", prepared, PREPARE, prepare or REFERENCE["Prepare", size])
    report.times(f"Unprepare, {what}", unprepared, UNPREPARE, unprepare or REFERENCE["Unprepare", size])


if __name__ == "__main__":
    for one in ways():
        asyncio.run(measure(one))
