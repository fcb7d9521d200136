"""What kubelet calls to have claims prepared, in both versions of its API, which differ in one field only.

A call has many claims; each has an answer of its own, and one that fails keeps none of the others back.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import structlog

from dra.claim import ClaimName
from gpuplugin.errors import GpuPluginError
from gpuplugin.metrics.instruments import ADMISSION, PREPARE_ERRORS, reason
from gpuplugin.pb import dra_v1_pb2 as v1
from gpuplugin.pb import dra_v1_pb2_grpc as v1_rpc
from gpuplugin.pb import dra_v1beta1_pb2 as v1beta1
from gpuplugin.pb import dra_v1beta1_pb2_grpc as v1beta1_rpc
from gpuplugin.serving import operation, refusals

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import grpc.aio

    from dra.checkpoint import Record
    from dra.prepare import Preparing

log = structlog.get_logger()
_DONE = {"prepare": "claim prepared", "unprepare": "claim unprepared"}


class ClaimCalls:
    """Answers for claims, in the words of any version of the API."""

    def __init__(self, preparing: Preparing) -> None:
        self._preparing = preparing

    async def prepared(self, api: Any, request: Any) -> Any:
        """Answer NodePrepareResources. api: the module with that version's messages."""
        answer = api.NodePrepareResourcesResponse()
        claims = _names(request)
        outcomes = await asyncio.gather(*(self._outcome("prepare", claim, self._prepare) for claim in claims))
        for claim, (record, error) in zip(claims, outcomes, strict=True):
            entry = answer.claims[claim.uid]
            entry.error = error
            for device in record.devices if record else ():
                told = entry.devices.add(
                    request_names=[device.request],
                    pool_name=device.pool,
                    device_name=device.device,
                    cdi_device_ids=device.cdi,
                )
                if device.share is not None and api is v1:
                    told.share_id = device.share
        return answer

    async def unprepared(self, api: Any, request: Any) -> Any:
        """Answer NodeUnprepareResources."""
        answer = api.NodeUnprepareResourcesResponse()
        claims = _names(request)
        outcomes = await asyncio.gather(*(self._outcome("unprepare", claim, self._unprepare) for claim in claims))
        for claim, (_, error) in zip(claims, outcomes, strict=True):
            answer.claims[claim.uid].error = error
        return answer

    async def _prepare(self, claim: ClaimName) -> Record | None:
        return await self._preparing.prepare(claim)

    async def _unprepare(self, claim: ClaimName) -> Record | None:
        await self._preparing.unprepare(claim.uid)
        return None

    async def _outcome(
        self, what: str, claim: ClaimName, call: Callable[[ClaimName], Awaitable[Record | None]]
    ) -> tuple[Record | None, str]:
        """Make one claim's call: its result, and what went wrong, which kubelet puts into the pod's Event."""
        about = {"operation": operation.begin(), "claim": f"{claim.namespace}/{claim.name}", "uid": claim.uid}
        began = time.perf_counter()
        try:
            record = await call(claim)
        except GpuPluginError as error:
            PREPARE_ERRORS.inc(what, reason(error))
            log.warning("refused", call=what, **about, reason=str(error))
            refusals.keep(what, str(about["claim"]), str(error))
            return None, str(error)
        except Exception as error:  # a fault of ours with one claim must not take the others' answers with it
            PREPARE_ERRORS.inc(what, "fault_of_ours")
            log.exception("refused", call=what, **about)
            refusals.keep(what, str(about["claim"]), f"a fault of ours: {error!r}")
            return None, f"a fault of gpuplugin: {error!r}; its log has more, under operation {about['operation']}"
        seconds = time.perf_counter() - began
        ADMISSION.observe(seconds, what)
        milliseconds = round(seconds * 1000, 3)
        devices = {"devices": [device.device for device in record.devices]} if record else {}
        log.info(_DONE[what], **about, **devices, milliseconds=milliseconds)
        return record, ""


class _V1(v1_rpc.DRAPluginServicer):
    def __init__(self, calls: ClaimCalls) -> None:
        self._calls = calls

    async def NodePrepareResources(self, request: v1.NodePrepareResourcesRequest, context: Any) -> Any:
        del context
        return await self._calls.prepared(v1, request)

    async def NodeUnprepareResources(self, request: v1.NodeUnprepareResourcesRequest, context: Any) -> Any:
        del context
        return await self._calls.unprepared(v1, request)


class _V1Beta1(v1beta1_rpc.DRAPluginServicer):
    def __init__(self, calls: ClaimCalls) -> None:
        self._calls = calls

    async def NodePrepareResources(self, request: v1beta1.NodePrepareResourcesRequest, context: Any) -> Any:
        del context
        return await self._calls.prepared(v1beta1, request)

    async def NodeUnprepareResources(self, request: v1beta1.NodeUnprepareResourcesRequest, context: Any) -> Any:
        del context
        return await self._calls.unprepared(v1beta1, request)


def add_claim_calls(server: grpc.aio.Server, preparing: Preparing) -> None:
    """Have a server answer both versions of DRAPlugin."""
    calls = ClaimCalls(preparing)
    v1_rpc.add_DRAPluginServicer_to_server(_V1(calls), server)
    v1beta1_rpc.add_DRAPluginServicer_to_server(_V1Beta1(calls), server)


def _names(request: Any) -> list[ClaimName]:
    """Give the claims that a request is about, each once."""
    return list(dict.fromkeys(ClaimName(claim.namespace, claim.name, claim.uid) for claim in request.claims))
