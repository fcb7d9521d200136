"""A change of health, on its way to every ListAndWatch stream: from the XID's being written until each stream has it.

Run from the repository root: ``python bench/fanout.py``. What NVML takes to tell of the XID is in the figures (the C
stand-in looks every millisecond, the Python double every 60). The streams are read by one Python client, whose work on
24 messages is in the figures, too.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import grpc.aio
from rig import report
from rig.node import RECOVER_AT_ONCE, count, running, ways

from gpuplugin.deviceplugin.response import device_list
from gpuplugin.model.health import HEALTHY, DeviceHealth, Level
from gpuplugin.model.ids import DeviceId, GpuUuid, NumaId, ResourceName
from gpuplugin.pb import deviceplugin_v1beta1_pb2 as api
from gpuplugin.pb import deviceplugin_v1beta1_pb2_grpc as rpc
from gpuplugin.plan.desired import OfferedDevice, OfferedResource

if TYPE_CHECKING:
    from rig.node import Node

FALLS_OFF_THE_BUS = 79
BUDGET = (50.0, 50.0)


class Watcher:
    """One stream, and what it last heard."""

    def __init__(self, stub: rpc.DevicePluginStub, changed: asyncio.Condition) -> None:
        self.ill: frozenset[str] = frozenset()
        self.heard = 0.0
        self.lists = 0
        self._stub, self._changed = stub, changed

    async def follow(self) -> None:
        """Read until cancelled."""
        async for message in self._stub.ListAndWatch(api.Empty()):
            self.heard = time.perf_counter()
            self.ill = frozenset(device.ID for device in message.devices if device.health != "Healthy")
            self.lists += 1
            async with self._changed:
                self._changed.notify_all()


async def measure(node: Node, streams: int) -> None:
    changed, each, last = asyncio.Condition(), [], []
    uuids = {gpu.index: gpu.uuid for gpu in node.state.snapshot.gpus}
    async with grpc.aio.insecure_channel(f"unix:{node.socket}") as channel:
        watchers = [Watcher(rpc.DevicePluginStub(channel), changed) for _ in range(streams)]
        tasks = [asyncio.create_task(watcher.follow()) for watcher in watchers]
        for number in range(count(40)):
            gpu = number % len(uuids)
            async with changed, asyncio.timeout(10):
                await changed.wait_for(lambda: all(w.lists and not w.ill for w in watchers))
            began = time.perf_counter()
            node.state.xid(gpu, FALLS_OFF_THE_BUS)
            async with changed, asyncio.timeout(10):
                await changed.wait_for(lambda gpu=gpu: all(uuids[gpu] in w.ill for w in watchers))
            each += [(watcher.heard - began) * 1000 for watcher in watchers]
            last.append(max(watcher.heard - began for watcher in watchers) * 1000)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    report.times(f"XID to each of {streams} streams", each, BUDGET)
    report.times(f"XID to the last of {streams} streams", last, BUDGET)


def lists() -> None:
    """What it costs to build and to serialize a list, which is done once for each change and for each stream."""
    report.title("the list itself")
    for devices in (8, 16, 256):
        half = [HEALTHY, DeviceHealth(Level.UNHEALTHY, "XID 79")]
        resource = OfferedResource(
            ResourceName("nvidia.com/gpu"),
            tuple(
                OfferedDevice(
                    DeviceId(f"GPU-3b3ebf56-c358-5715-97a4-{i:012}"), GpuUuid(f"{i}"), i, i, half[i % 2], (NumaId(0),)
                )
                for i in range(devices)
            ),
        )
        build, serialize = [], []
        for _ in range(count(500)):
            began = time.perf_counter()
            message = device_list(resource)
            middle = time.perf_counter()
            message.SerializeToString()
            build.append((middle - began) * 1000)
            serialize.append((time.perf_counter() - middle) * 1000)
        report.times(f"build, {devices} devices", build)
        report.times(f"serialize, {devices} devices", serialize)


async def main() -> None:
    way = ways()[0]
    async with running(way=way, **RECOVER_AT_ONCE) as node:
        report.title(f"fan-out, {way.value}")
        for streams in (1, 8, 24):
            await measure(node, streams)
    lists()


if __name__ == "__main__":
    asyncio.run(main())
