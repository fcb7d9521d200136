"""What kubelet calls, for one resource. Every answer comes from the newest offer; nothing here waits for NVML."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc
import structlog

from gpuplugin.deviceplugin.response import Delivery, container_response, device_list
from gpuplugin.errors import AllocationError, DeviceUnavailable, UnknownDevice
from gpuplugin.metrics.instruments import ADMISSION, ALLOCATION_ERRORS, ALLOCATIONS, reason
from gpuplugin.model.choices import Choice
from gpuplugin.model.ids import DeviceId, without_replica
from gpuplugin.pb import deviceplugin_v1beta1_pb2 as api
from gpuplugin.pb import deviceplugin_v1beta1_pb2_grpc as rpc
from gpuplugin.serving import refusals
from gpuplugin.serving.latest import Latest
from gpuplugin.topology.choice import Chooser, Place
from gpuplugin.topology.explain import explain
from gpuplugin.topology.graph import mask_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from gpuplugin.plan.desired import OfferedDevice, OfferedResource
    from gpuplugin.topology.allocate import Tables

log = structlog.get_logger()

CHOICES_KEPT: Final = 64
"""For "why these?": many more than a node has pods with GPUs."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A resource with what is needed to answer for it, made once for each change.

    message: what every stream sends · tables: of the inventory that the resource is of, done when they are built ·
    pack: whether what is shared is packed on few GPUs.
    """

    resource: OfferedResource
    message: api.ListAndWatchResponse
    tables: asyncio.Future[Tables]
    delivery: Delivery
    pack: bool = False

    @classmethod
    def of(
        cls,
        resource: OfferedResource,
        tables: asyncio.Future[Tables],
        delivery: Delivery,
        *,
        pack: bool = False,
    ) -> Offer:
        """Build the message."""
        return cls(resource, device_list(resource), tables, delivery, pack)

    async def chooser(self) -> Chooser:
        """Wait for the tables, and choose with them among this resource's devices."""
        tables = await asyncio.shield(self.tables)
        return Chooser(self.resource.name, tables, dict(map(_place, self.resource.devices)), pack=self.pack)

    def why(self, devices: Sequence[str]) -> str:
        """Say in one line what these devices have in common; "" while the tables are not there."""
        if not self.tables.done() or self.tables.cancelled() or self.tables.exception():
            return ""
        positions = {device.id: device.position for device in self.resource.devices}
        chosen = mask_of({positions[without_replica(device)[0]] for device in devices})
        return str(explain(self.tables.result().graph, chosen, chosen, exact=True))


def _named(resource: OfferedResource, places: int) -> tuple[DeviceId, ...]:
    """Name the devices at these positions: each once, since of replicas there may be tens of thousands."""
    return tuple(device.id for device in resource.devices if places >> device.position & 1)


def _place(device: OfferedDevice) -> tuple[DeviceId, Place]:
    share = device.share
    spread = share is not None and share.spread
    return device.id, Place(device.position, device.mig is None, share.replicas if share else 0, spread)


class DevicePlugin(rpc.DevicePluginServicer):
    """The servicer. `offers` may be set at any time; streams send it at once."""

    def __init__(self, offer: Offer) -> None:
        self.offers = Latest(offer)
        self.choices: deque[Choice] = deque(maxlen=CHOICES_KEPT)

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
        began, offer = time.perf_counter(), self.offers.value
        chooser = await offer.chooser()
        response = api.PreferredAllocationResponse()
        try:
            for wanted in request.container_requests:
                choice = chooser.choose(
                    map(DeviceId, wanted.available_deviceIDs),
                    map(DeviceId, wanted.must_include_deviceIDs),
                    wanted.allocation_size,
                )
                response.container_responses.add(deviceIDs=choice.devices)
                free = _named(offer.resource, choice.available)
                self.choices.append(Choice(time.time(), offer.resource.name, tuple(choice.devices), free))
        except AllocationError as error:
            await _refuse(context, offer, "GetPreferredAllocation", error)
        ADMISSION.observe(time.perf_counter() - began, "GetPreferredAllocation")
        return response

    async def Allocate(self, request: api.AllocateRequest, context: Any) -> api.AllocateResponse:
        """Answer how containers get their devices. Nothing is changed here: who holds what is kubelet's to keep."""
        began, offer = time.perf_counter(), self.offers.value
        response = api.AllocateResponse()
        try:
            for wanted in request.container_requests:
                response.container_responses.append(
                    container_response(offer.resource, wanted.devices_ids, offer.delivery)
                )
        except AllocationError as error:
            await _refuse(context, offer, "Allocate", error)
        seconds = time.perf_counter() - began
        ADMISSION.observe(seconds, "Allocate")
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
        ALLOCATIONS.inc(offer.resource.name)
        log.info(
            "allocated",
            resource=offer.resource.name,
            devices=devices,
            why=offer.why(devices),
            milliseconds=round(seconds * 1000, 3),
        )


_CODES: dict[type[AllocationError], grpc.StatusCode] = {
    UnknownDevice: grpc.StatusCode.NOT_FOUND,
    DeviceUnavailable: grpc.StatusCode.FAILED_PRECONDITION,
}


async def _refuse(context: Any, offer: Offer, call: str, error: AllocationError) -> None:
    ALLOCATION_ERRORS.inc(offer.resource.name, call, reason(error))
    log.warning("refused", call=call, resource=offer.resource.name, reason=str(error))
    refusals.keep(call, offer.resource.name, str(error))
    await context.abort(_CODES.get(type(error), grpc.StatusCode.INVALID_ARGUMENT), str(error))
