"""The stream by which kubelet learns how the devices of claims are, and puts it into the status of their pods.

Kubelet takes a device for unknown once nothing has been heard of it for the time that we name, so the same is said
again well before that. A daemon that hangs or ends needs no word: its devices become unknown by themselves.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gpuplugin.model.health import Level
from gpuplugin.pb import drahealth_v1_pb2 as v1
from gpuplugin.pb import drahealth_v1_pb2_grpc as v1_rpc
from gpuplugin.pb import drahealth_v1alpha1_pb2 as v1alpha1
from gpuplugin.pb import drahealth_v1alpha1_pb2_grpc as v1alpha1_rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    import grpc.aio

    from gpuplugin.model.health import DeviceHealth
    from gpuplugin.serving.latest import Latest

TIMEOUT_SECONDS: Final = 30
AGAIN_SECONDS: Final = 10.0
LONGEST_MESSAGE: Final = 1024
"""Bytes of a device's message; kubelet refuses more."""

_STATUS: Final = {Level.UNKNOWN: 0, Level.HEALTHY: 1, Level.UNHEALTHY: 2}


@dataclass(frozen=True, slots=True)
class PoolHealth:
    """How each device of a pool is."""

    pool: str
    devices: Mapping[str, DeviceHealth]


def message(api: Any, health: PoolHealth, now: float) -> Any:
    """Build what is sent, devices in order of name.

    api: the module with a version's messages · now: seconds since the epoch.
    """
    answer = api.NodeWatchResourcesResponse()
    for name, device in sorted(health.devices.items()):
        answer.devices.add(
            device=api.DeviceIdentifier(pool_name=health.pool, device_name=name),
            health=_STATUS[device.level],
            last_updated_time=int(now),
            health_check_timeout_seconds=TIMEOUT_SECONDS,
            message=_clipped(device.reason),
        )
    return answer


class HealthCalls:
    """Streams of both versions. again: seconds after which the same is said once more."""

    def __init__(self, health: Latest[PoolHealth | None], again: float = AGAIN_SECONDS) -> None:
        self._health, self._again = health, again

    async def watch(self, api: Any) -> AsyncIterator[Any]:
        """Send how all devices are: now, whenever that changes, and again from time to time."""
        async with aclosing(self._health.follow()) as changes:
            following = asyncio.ensure_future(anext(changes))
            try:
                while True:
                    await asyncio.wait([following], timeout=self._again)
                    if following.done():
                        following.result()
                        following = asyncio.ensure_future(anext(changes))
                    health = self._health.value
                    if health is not None:
                        yield message(api, health, time.time())
            finally:
                following.cancel()
                await asyncio.wait([following])


class _V1(v1_rpc.DRAResourceHealthServicer):
    def __init__(self, calls: HealthCalls) -> None:
        self._calls = calls

    async def NodeWatchResources(self, request: v1.NodeWatchResourcesRequest, context: Any) -> AsyncIterator[Any]:
        del request, context
        async for answer in self._calls.watch(v1):
            yield answer


class _V1Alpha1(v1alpha1_rpc.DRAResourceHealthServicer):
    def __init__(self, calls: HealthCalls) -> None:
        self._calls = calls

    async def NodeWatchResources(self, request: v1alpha1.NodeWatchResourcesRequest, context: Any) -> AsyncIterator[Any]:
        del request, context
        async for answer in self._calls.watch(v1alpha1):
            yield answer


def add_health_calls(server: grpc.aio.Server, health: Latest[PoolHealth | None]) -> None:
    """Have a server answer both versions of DRAResourceHealth."""
    calls = HealthCalls(health)
    v1_rpc.add_DRAResourceHealthServicer_to_server(_V1(calls), server)
    v1alpha1_rpc.add_DRAResourceHealthServicer_to_server(_V1Alpha1(calls), server)


def _clipped(text: str) -> str:
    return text.encode()[:LONGEST_MESSAGE].decode(errors="ignore")
