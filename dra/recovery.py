"""Making the records whole again after an absence: missing ones found, broken ones made anew, old ones removed.

Records can be missing because the folder was lost, or lack the names of their claims because the reference's driver
prepared those (`predecessor`); kubelet knows which claims its pods have. Broken ones are made again from the claims in
the API server. Claims may have gone while nobody was there to unprepare them. Until all that is settled no new claim is
prepared: it could be given what another has.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

import structlog

from dra.predecessor import UNKNOWN_NAME, named
from gpuplugin.errors import ClaimRefused, GpuPluginError, KubeNotFound
from gpuplugin.kube.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from dra.checkpoint import Checkpoint
    from dra.prepare import Blocking, Preparing
    from gpuplugin.kube.objects import ResourceClaim

log = structlog.get_logger()

RECLAIM_SECONDS = 10.0
"""Between two looks at whether the pods of claims that are gone have ended."""


class Claims(Protocol):
    """The API server, as far as recovery needs it."""

    async def claim(self, namespace: str, name: str, *, patience: float | None = None) -> ResourceClaim:
        """Give the claim of that name. Raises KubeError's kinds."""
        ...

    async def claims(self) -> tuple[ResourceClaim, ...]:
        """List all claims of the cluster."""
        ...


class Recovery:
    """Done once after each start, and again where a record makes no sense any more, or all of them are gone.

    in_pods: the claims, as (namespace, name), with devices of ours that kubelet's pods have; raises GpuPluginError's
    kinds where kubelet cannot be asked.
    """

    def __init__(
        self,
        preparing: Preparing,
        checkpoint: Checkpoint,
        blocking: Blocking,
        claims: Claims,
        in_pods: Callable[[], Awaitable[Collection[tuple[str, str]]]],
    ) -> None:
        self._preparing, self._checkpoint, self._blocking = preparing, checkpoint, blocking
        self._claims, self._in_pods = claims, in_pods
        preparing.in_pods = in_pods
        self._turn = asyncio.Lock()
        self.done, self._losses = False, 0

    async def complete(self) -> None:
        """Return once it is done; where that cannot be now, raise why."""
        async with self._turn:
            losses = self._checkpoint.losses
            if not self.done or self._checkpoint.unreadable or losses != self._losses:
                await self._recover()
                self.done, self._losses = True, losses

    async def keep_trying(self) -> None:
        """Do it, however long it takes."""
        pauses, trouble = Backoff(0.5, 30.0), ""
        while not self.done:
            try:
                await self.complete()
            except GpuPluginError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    log.warning("what claims hold is not settled yet: no new one is prepared", reason=trouble)
                await asyncio.sleep(pauses.next())

    async def keep_reclaiming(self) -> None:
        """Take the devices of claims back that were gone, once their pods are: kubelet may have told another of it.

        So after a take-over, or where kubelet has lost its own records.
        """
        while True:
            await asyncio.sleep(RECLAIM_SECONDS)
            for uid in tuple(self._preparing.lingering):
                if uid not in self._checkpoint.records:
                    self._preparing.lingering.discard(uid)
                    continue
                with suppress(GpuPluginError):
                    await self._preparing.reclaim(uid)

    async def _recover(self) -> None:
        broken = set(await self._blocking(self._checkpoint.load))
        for uid in broken:
            log.error("the record of a prepared claim makes no sense: it is made anew", uid=uid)
        await self._name()
        known = {(record.namespace, record.name) for record in self._checkpoint.records.values()}
        for claim in await self._found(set(await self._in_pods()) - known, broken):
            uid, name = claim.metadata.uid, f"{claim.metadata.namespace}/{claim.metadata.name}"
            try:
                record = self._preparing.rebuilt(claim)
            except ClaimRefused as error:
                log.warning("claim has nothing to be recorded", claim=name, uid=uid, reason=str(error))
                continue
            if uid in broken:
                broken.remove(uid)
                await self._blocking(partial(self._checkpoint.put_aside, uid, record))
            else:
                await self._blocking(partial(self._checkpoint.adopt, record))
            log.warning("claim recorded anew", claim=name, uid=uid, devices=[one.device for one in record.devices])
        for uid in broken:
            log.warning("record put aside: there is no claim with devices here to make it anew from", uid=uid)
            await self._blocking(partial(self._checkpoint.put_aside, uid, None))
        for uid in self._checkpoint.records:
            await self._preparing.reclaim(uid)
        self._preparing.changed()

    async def _name(self) -> None:
        """Find the names of claims that the driver before us prepared; those that are gone keep theirs, unknown."""
        unnamed = {uid: one for uid, one in self._checkpoint.records.items() if one.namespace == UNKNOWN_NAME}
        for claim in await self._claims.claims() if unnamed else ():
            if record := unnamed.get(claim.metadata.uid):
                await self._blocking(partial(self._checkpoint.rename, named(record, claim)))

    async def _found(self, names: Collection[tuple[str, str]], broken: Collection[str]) -> list[ResourceClaim]:
        """Give the claims of those names, and those of those UIDs; all claims are listed only where a name is lacking.

        A pod can be listed that has ended a moment ago: its claim is then not there, and nothing is lacking.
        """
        found: dict[str, ResourceClaim] = {}
        for namespace, name in sorted(names):
            try:
                claim = await self._claims.claim(namespace, name)
            except KubeNotFound:
                continue
            found[claim.metadata.uid] = claim
        if set(broken) - found.keys():
            found |= {
                claim.metadata.uid: claim for claim in await self._claims.claims() if claim.metadata.uid in broken
            }
        return list(found.values())
