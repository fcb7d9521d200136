"""What a claim's status says of the devices that it was given: for people, and for tools that ask the API server.

Nobody waits for it: a pod starts whether or not it could be written.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from gpuplugin.errors import KubeConflict, KubeError, KubeNotFound
from gpuplugin.kube.objects import AllocatedDeviceStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dra.devices import NodeDevice
    from gpuplugin.kube.objects import ResourceClaim

log = structlog.get_logger()

PATIENCE_SECONDS = 60.0
LATER_SECONDS = 0.1
"""Kubelet and the pods that start together come first."""


class ClaimStatuses(Protocol):
    """The API server, as far as this needs it."""

    async def set_claim_devices(
        self, claim: ResourceClaim, devices: Sequence[AllocatedDeviceStatus], *, patience: float | None = None
    ) -> Any:
        """Say in a claim's `status.devices` what is so of our devices. Raises KubeError's kinds."""
        ...


class DeviceStatus:
    """Writes `status.devices` of prepared claims, where it does not say so already."""

    def __init__(self, driver: str, api: ClaimStatuses) -> None:
        self._driver, self._api = driver, api
        self._writing: dict[str, asyncio.Task[None]] = {}
        self._trouble = ""

    def tell(self, claim: ResourceClaim, devices: Sequence[NodeDevice]) -> None:
        """Have it written; what is being written for an earlier call of the same claim is dropped."""
        facts = {device.name: device.facts for device in devices}
        wanted = tuple(
            AllocatedDeviceStatus(
                driver=self._driver,
                pool=result.pool,
                device=result.device,
                share_id=result.share_id,
                data=facts[result.device],
            )
            for result in (claim.status.allocation.devices.results if claim.status.allocation else ())
            if result.driver == self._driver
        )
        wanted = tuple({(one.pool, one.device, one.share_id): one for one in wanted}.values())
        if _said(claim, self._driver) == _by_device(wanted):
            return
        uid = claim.metadata.uid
        if before := self._writing.get(uid):
            before.cancel()
        task = asyncio.create_task(self._write(claim, wanted), name=f"status of claim {uid}")
        self._writing[uid] = task
        task.add_done_callback(lambda done: self._writing.pop(uid) if self._writing.get(uid) is done else None)

    def drop(self, uid: str) -> None:
        """Write nothing more of a claim: its devices are being taken back."""
        if writing := self._writing.get(uid):
            writing.cancel()

    async def close(self) -> None:
        """Give up what is still being written."""
        for task in (tasks := list(self._writing.values())):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, claim: ResourceClaim, wanted: Sequence[AllocatedDeviceStatus]) -> None:
        await asyncio.sleep(LATER_SECONDS)
        try:
            await self._api.set_claim_devices(claim, wanted, patience=PATIENCE_SECONDS)
        except (KubeNotFound, KubeConflict):
            pass  # there is no such claim any more
        except KubeError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                log.warning("the status of a claim does not say its devices", reason=self._trouble)
        else:
            self._trouble = ""


def _said(claim: ResourceClaim, driver: str) -> dict[tuple[str, str, str | None], object]:
    return _by_device([one for one in claim.status.devices if one.driver == driver])


def _by_device(devices: Sequence[AllocatedDeviceStatus]) -> dict[tuple[str, str, str | None], object]:
    return {(one.pool, one.device, one.share_id): one.data for one in devices}
