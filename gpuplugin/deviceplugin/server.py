"""What kubelet calls, for one resource. Every answer comes from the newest offer; nothing here waits for NVML."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import grpc
import structlog

from gpuplugin.deviceplugin.latest import Latest
from gpuplugin.deviceplugin.response import container_response, device_list
from gpuplugin.errors import AllocationError, DeviceUnavailable, UnknownDevice
from gpuplugin.pb import deviceplugin_v1beta1_pb2 as api
from gpuplugin.pb import deviceplugin_v1beta1_pb2_grpc as rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Sequence

    from gpuplugin.plan.desired import OfferedResource

log = structlog.get_logger()
_operations = itertools.count(1)


class Chooser(Protocol):
    """Picks devices that belong together (gpuplugin.topology)."""

    def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        """The best `size` of `available`, `must` among them. Raises AllocationError."""

    def describe(self, devices: Sequence[str]) -> str:
        """Say in one line what these devices have in common."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A resource with what is needed to answer for it, made once for each change. chooser: done when built."""

    resource: OfferedResource
    message: api.ListAndWatchResponse
    chooser: asyncio.Future[Chooser]

    @classmethod
    def of(cls, resource: OfferedResource, chooser: asyncio.Future[Chooser]) -> Offer:
        """Build the message that every stream sends."""
        return cls(resource, device_list(resource), chooser)


class DevicePlugin(rpc.DevicePluginServicer):
    """The servicer. `offers` may be set at any time; streams send it at once.

    strategies: see response.container_response · cdi_kind: the kind of the qualified names.
    """

    def __init__(self, offer: Offer, strategies: Collection[str], cdi_kind: str) -> None:
        self.offers = Latest(offer)
        self._strategies, self._cdi_kind = strategies, cdi_kind

    async def GetDevicePluginOptions(self, request: api.Empty, context: Any) -> api.DevicePluginOptions:
        """Say that we give advice on which devices to take."""
        del request, context
        return options()

    async def ListAndWatch(self, request: api.Empty, context: Any) -> AsyncIterator[api.ListAndWatchResponse]:
        """Send the list now and whenever it changes."""
        del request, context
        name = self.offers.value.resource.name
        log.info("kubelet watches", resource=name, streams=self.offers.followers + 1)
        sent: api.ListAndWatchResponse | None = None
        try:
            async for offer in self.offers.follow():
                if offer.message != sent:
                    sent = offer.message
                    yield sent
        finally:
            log.info("kubelet stopped watching", resource=name, streams=self.offers.followers)

    async def GetPreferredAllocation(
        self, request: api.PreferredAllocationRequest, context: Any
    ) -> api.PreferredAllocationResponse:
        """Choose for each container; the first that cannot be met refuses the call, with its reason."""
        offer = self.offers.value
        chooser = await asyncio.shield(offer.chooser)
        response = api.PreferredAllocationResponse()
        try:
            for wanted in request.container_requests:
                chosen = chooser.prefer(
                    wanted.available_deviceIDs, wanted.must_include_deviceIDs, wanted.allocation_size
                )
                response.container_responses.add(deviceIDs=chosen)
        except AllocationError as error:
            await _refuse(context, offer, "GetPreferredAllocation", error)
        return response

    async def Allocate(self, request: api.AllocateRequest, context: Any) -> api.AllocateResponse:
        """Answer how containers get their devices. Nothing is changed here: who holds what is kubelet's to keep."""
        began, offer = time.perf_counter(), self.offers.value
        response = api.AllocateResponse()
        try:
            for wanted in request.container_requests:
                response.container_responses.append(
                    container_response(offer.resource, wanted.devices_ids, self._strategies, self._cdi_kind)
                )
        except AllocationError as error:
            await _refuse(context, offer, "Allocate", error)
        seconds = time.perf_counter() - began
        asyncio.get_running_loop().call_soon(
            _tell, offer, [list(c.devices_ids) for c in request.container_requests], seconds
        )
        return response

    async def PreStartContainer(
        self, request: api.PreStartContainerRequest, context: Any
    ) -> api.PreStartContainerResponse:
        """Do nothing: the options say that kubelet need not call."""
        del request, context
        return api.PreStartContainerResponse()


def options() -> api.DevicePluginOptions:
    """What we tell kubelet of ourselves, at registration and when asked."""
    return api.DevicePluginOptions(get_preferred_allocation_available=True)


def _tell(offer: Offer, containers: list[list[str]], seconds: float) -> None:
    for devices in containers:
        why = offer.chooser.result().describe(devices) if offer.chooser.done() and not offer.chooser.cancelled() else ""
        log.info(
            "allocated",
            operation=next(_operations),
            resource=offer.resource.name,
            devices=devices,
            why=why,
            milliseconds=round(seconds * 1000, 3),
        )


_CODES: dict[type[AllocationError], grpc.StatusCode] = {
    UnknownDevice: grpc.StatusCode.NOT_FOUND,
    DeviceUnavailable: grpc.StatusCode.FAILED_PRECONDITION,
}


async def _refuse(context: Any, offer: Offer, call: str, error: AllocationError) -> None:
    log.warning("refused", operation=next(_operations), call=call, resource=offer.resource.name, reason=str(error))
    await context.abort(_CODES.get(type(error), grpc.StatusCode.INVALID_ARGUMENT), str(error))
