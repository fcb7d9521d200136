"""A device plugin as the stand-in kubelet calls it: the RPCs, noted in a trace, with failures in kubelet's words."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from gpuplugin.pb import deviceplugin_v1beta1_pb2 as api
from gpuplugin.pb import deviceplugin_v1beta1_pb2_grpc as rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterator
    from pathlib import Path

DIAL_SECONDS = 10.0

Call = dict[str, Any]
"""One line of a trace: ``call`` and ``resource`` always; ids sorted; ``error`` where the plugin refused."""


class Refused(Exception):
    """A pod cannot be admitted; the text is what kubelet says in place of a reason."""


class DialledPlugin:
    """One plugin that has registered. trace: takes a line for each call, before it is made."""

    def __init__(self, resource: str, socket: Path, trace: Callable[[Call], None]) -> None:
        self.resource, self.socket, self._trace = resource, socket, trace
        # A pool of its own: a socket that was replaced is dialled at once, with no back-off kept from the one before.
        self._channel = grpc.aio.insecure_channel(
            f"unix:{socket}", options=[("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        )
        self._stub = rpc.DevicePluginStub(self._channel)
        self._options = api.DevicePluginOptions()

    async def dial(self) -> str:
        """Connect and ask for the plugin's options; returns why not, or an empty text."""
        try:
            self._options = await self._stub.GetDevicePluginOptions(
                api.Empty(), timeout=DIAL_SECONDS, wait_for_ready=True
            )
        except grpc.aio.AioRpcError as error:
            return f"failed to dial device plugin: {error.details()}"
        self._note(
            "GetDevicePluginOptions",
            preferred_allocation=self._options.get_preferred_allocation_available,
            pre_start=self._options.pre_start_required,
        )
        return ""

    async def lists(self) -> AsyncIterator[api.ListAndWatchResponse]:
        """Yield each list of devices; ends when the stream does, however that is."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for message in self._stub.ListAndWatch(api.Empty()):
                self._note(
                    "ListAndWatch",
                    healthy=sorted(device.ID for device in message.devices if device.health == "Healthy"),
                    unhealthy=sorted(device.ID for device in message.devices if device.health != "Healthy"),
                )
                yield message

    async def prefer(self, available: Collection[str], must: Collection[str], size: int) -> frozenset[str]:
        """Ask for advice; nothing where the plugin gives none. Raises Refused."""
        if not self._options.get_preferred_allocation_available:
            return frozenset()
        request = api.PreferredAllocationRequest()
        request.container_requests.add(
            available_deviceIDs=sorted(available), must_include_deviceIDs=sorted(must), allocation_size=size
        )
        call = self._note("GetPreferredAllocation", available=sorted(available), must_include=sorted(must), size=size)
        with _refusals(call, "device plugin GetPreferredAllocation rpc failed with err: "):
            response = await self._stub.GetPreferredAllocation(request)
        answer = response.container_responses[0].deviceIDs if response.container_responses else ()
        call["answer"] = sorted(answer)
        return frozenset(answer)

    async def allocate(self, ids: Collection[str]) -> api.ContainerAllocateResponse:
        """Allocate for one container, and announce its start where the plugin wants that. Raises Refused."""
        request = api.AllocateRequest()
        request.container_requests.add(devices_ids=ids)
        with _refusals(self._note("Allocate", ids=sorted(ids))):
            response: api.AllocateResponse = await self._stub.Allocate(request)
        if not response.container_responses:
            raise Refused(f"no containers return in allocation response {response}")
        if self._options.pre_start_required:
            with _refusals(
                self._note("PreStartContainer", ids=sorted(ids)),
                "device plugin PreStartContainer rpc failed with err: ",
            ):
                await self._stub.PreStartContainer(api.PreStartContainerRequest(devices_ids=ids))
        container: api.ContainerAllocateResponse = response.container_responses[0]
        return container

    async def close(self) -> None:
        """Hang up."""
        await self._channel.close(None)

    def _note(self, call: str, **facts: object) -> Call:
        line: Call = {"call": call, "resource": self.resource, **facts}
        self._trace(line)
        return line


@contextlib.contextmanager
def _refusals(call: Call, prefix: str = "") -> Iterator[None]:
    """Turn a failed RPC into the text that Go's gRPC gives it, and note it in the call's line."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        code = "".join(part.capitalize() for part in error.code().name.split("_"))
        call["error"] = f"rpc error: code = {code} desc = {error.details()}"
        raise Refused(prefix + call["error"]) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        call["error"] = "rpc error: code = Canceled desc = grpc: the client connection is closing"
        raise Refused(prefix + call["error"]) from None
