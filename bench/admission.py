"""What kubelet waits for when it admits a pod: GetPreferredAllocation and Allocate, over the daemon's own socket.

Run from the repository root: ``python bench/admission.py``. The client's share is in the figures, as kubelet's is in
practice; it is a synchronous one, which is the quicker kind in Python. Requests are of 1 to 6 GPUs, with any of the
healthy ones free.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from rig import report
from rig.node import GPU, RECOVER_AT_ONCE, count, running, ways

from gpuplugin.pb import deviceplugin_v1beta1_pb2 as api
from gpuplugin.pb import deviceplugin_v1beta1_pb2_grpc as rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from rig.node import Node

BUDGET = (1.5, 5.0)
STREAMS = 24
CHURN_SECONDS = 0.05
FALLS_OFF_THE_BUS = 79
PREFER, ALLOCATE, BOTH = "GetPreferredAllocation", "Allocate", "both, one after the other"


def admit(socket: Path, devices: Sequence[str], calls: int) -> dict[str, list[float]]:
    """Milliseconds of each call, and of the pair."""
    dice, taken = random.Random(1), {PREFER: [], ALLOCATE: [], BOTH: []}
    with grpc.insecure_channel(f"unix:{socket}", options=[("grpc.default_authority", "localhost")]) as channel:
        stub = rpc.DevicePluginStub(channel)
        for number in range(-20, calls):  # the first ones connect and warm up
            free = dice.sample(devices, dice.randint(1, len(devices)))
            wanted = api.PreferredAllocationRequest()
            wanted.container_requests.add(available_deviceIDs=free, allocation_size=dice.randint(1, min(6, len(free))))
            began = time.perf_counter()
            preferred = stub.GetPreferredAllocation(wanted)
            between = time.perf_counter()
            request = api.AllocateRequest()
            request.container_requests.add(devices_ids=preferred.container_responses[0].deviceIDs)
            middle = time.perf_counter()
            stub.Allocate(request)
            ended = time.perf_counter()
            if number >= 0:
                taken[PREFER].append((between - began) * 1000)
                taken[ALLOCATE].append((ended - middle) * 1000)
                taken[BOTH].append((ended - began) * 1000)
    return taken


@contextlib.asynccontextmanager
async def streams(socket: Path, number: int) -> AsyncIterator[None]:
    """Keep that many ListAndWatch streams open, and read them."""

    async def follow(stub: rpc.DevicePluginStub) -> None:
        async for _ in stub.ListAndWatch(api.Empty()):
            pass

    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        stub = rpc.DevicePluginStub(channel)
        tasks = [asyncio.create_task(follow(stub)) for _ in range(number)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def churn(node: Node, gpus: Sequence[int]) -> AsyncIterator[None]:
    """Let the GPUs fall ill in turn; the daemon takes each back a moment later."""

    async def fall_ill() -> None:
        for gpu in itertools.cycle(gpus):
            node.state.xid(gpu, FALLS_OFF_THE_BUS)
            await asyncio.sleep(CHURN_SECONDS)

    task = asyncio.create_task(fall_ill())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def show(what: str, taken: dict[str, list[float]], *, reference: bool = False) -> None:
    report.title(f"admission, {what}")
    references = (
        {PREFER: "p50 3.1 to 4.9 ms (3 of 8)", ALLOCATE: "p50 0.08 to 0.13, p99 0.33 to 1.1 ms"} if reference else {}
    )
    for name, milliseconds in taken.items():
        report.times(name, milliseconds, BUDGET, references.get(name, ""))


async def measure(machine: str, gpus: int, what: str, *, disturbed: bool = False, reference: bool = False) -> None:
    settings = RECOVER_AT_ONCE if disturbed else {}
    async with running(machine, gpus, ways()[0], **settings) as node, contextlib.AsyncExitStack() as stack:
        devices = [device.id for device in node.kubelet.devices(GPU)]
        if disturbed:
            well = [gpu.uuid for gpu in node.state.snapshot.gpus if gpu.index < gpus - 2]
            devices = [device for device in devices if device in well]
            await stack.enter_async_context(streams(node.socket, STREAMS))
            await stack.enter_async_context(churn(node, range(gpus - 2, gpus)))
        loop = asyncio.get_running_loop()
        with ProcessPoolExecutor(1, get_context("spawn")) as client:  # of its own: the disturbances must not slow it
            taken = await loop.run_in_executor(client, admit, node.socket, devices, count(2500))
    show(what, taken, reference=reference)


async def main() -> None:
    await measure("hgx-h100", 8, "8 GPUs", reference=True)
    await measure("hgx-h100", 8, f"8 GPUs, {STREAMS} streams, 20 XIDs a second", disturbed=True)
    await measure("hgx-16", 16, "16 GPUs")


if __name__ == "__main__":
    asyncio.run(main())
