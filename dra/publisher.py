"""Keeps this node's ResourceSlices on the API server as they shall be, whatever becomes of them there.

They are followed by a watch of ours alone: one that is edited or deleted is mended, and all are written again when
kubelet, which wipes them when it starts, has done so. When nothing changes, nothing is written, and all that is asked
is the watch. Trouble is met with longer and longer pauses; so is somebody who keeps undoing what we write.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from dra.converge import Memory, OnServer, Outcome, converge, needed
from dra.slices import DRIVER
from gpuplugin.errors import KubeConflict, KubeError, KubeNotFound, SlicesInvalid
from gpuplugin.kube.backoff import Backoff
from gpuplugin.kube.kinds import SLICES
from gpuplugin.kube.watch import Follower
from gpuplugin.serving.latest import Latest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dra.slices import Contents, Owner
    from gpuplugin.kube.client import Kube
    from gpuplugin.kube.objects import ResourceSlice
    from gpuplugin.kube.watch import Seen

log = structlog.get_logger()

QUIET_SECONDS = 600.0
"""After so long without a mend, the next one is made at once again."""


@dataclass(frozen=True, slots=True)
class Published:
    """How it stands. outcome: of the newest pass that succeeded · trouble: why what is wanted is not there yet."""

    outcome: Outcome | None = None
    trouble: str = ""


class Publisher:
    """Publishes one driver's slices of one node; belongs to one event loop. `state` tells how it stands."""

    def __init__(self, kube: Kube, owner: Owner, driver: str = DRIVER) -> None:
        self._owner, self._driver = owner, driver
        fields = f"spec.driver={driver},spec.nodeName={owner.node}"
        self._api = OnServer(kube, fields)
        self._follower = Follower(kube, SLICES, fields, self._hear)
        self._memory = Memory()
        self._wanted: Contents | None = None
        self._settled: Contents | None = None
        self._seen: Seen[ResourceSlice] | None = None
        self._wake, self._new = asyncio.Event(), asyncio.Event()
        self._pauses, self._mends = Backoff(0.5, 60.0), Backoff(1.0, 60.0)
        self._mended_at = float("-inf")
        self._races = 0
        self.state: Latest[Published] = Latest(Published())

    def want(self, contents: Contents) -> None:
        """Say what shall be offered; the newest counts. What is wanted already is no news."""
        if contents != self._wanted:
            self._wanted = contents
            self._new.set()
            self._wake.set()

    async def rid_of(self, names: frozenset[str], contents: Contents) -> str:
        """Return once no device of these names is offered, if need be by wanting other contents; or why that fails."""
        outcome = self.state.value.outcome
        if outcome is None or not names.isdisjoint(outcome.offered):
            self.want(contents)
        async with aclosing(self.state.follow()) as states:
            async for now in states:
                if now.trouble or (now.outcome is not None and names.isdisjoint(now.outcome.offered)):
                    return now.trouble
        raise AssertionError("a state is followed for ever")

    def seen(self) -> tuple[ResourceSlice, ...]:
        """All slices of this driver and node as last seen, also those of a driver before us; for their names."""
        return tuple(self._seen.objects.values()) if self._seen else ()

    async def run(self) -> None:
        """Publish until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(), name="slices: follow")
            tasks.create_task(self._keep(), name="slices: keep")

    async def _follow(self) -> None:
        async with aclosing(self._follower.follow()) as views:
            async for view in views:
                if self._seen is not None and view.listed != self._seen.listed:
                    self._memory.forget_server()
                    self._settled = None
                self._seen = view
                self._wake.set()

    async def _keep(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._new.clear()
            if self._wanted is None or self._seen is None:
                continue
            try:
                await self._bring_about(self._wanted, self.seen())
            except SlicesInvalid as error:
                self._trouble(error)  # only other contents can help
            except KubeError as error:
                if self._races or not isinstance(error, KubeConflict | KubeNotFound):
                    self._trouble(error)
                self._races += 1  # to be overtaken once is nothing to speak of
                await self._pause(self._pauses.next())
                self._wake.set()

    async def _bring_about(self, wanted: Contents, seen: Iterable[ResourceSlice]) -> None:
        if self._settled is wanted:
            if not self._amiss(wanted, seen) or not self._amiss(wanted, await self._api.list()):
                return  # the watch may still be at what our own last pass was writing; a list is not
            await self._pause(self._before_mending())
            if self._new.is_set():
                return  # the wake-up for it is set as well
        outcome = await converge(self._api, self._owner, self._driver, wanted, self._memory)
        self._pauses.reset()
        self._races = 0
        self._settled = wanted
        if outcome != self.state.value.outcome or self.state.value.trouble:
            self._tell(outcome)
            self.state.set(Published(outcome))

    def _amiss(self, wanted: Contents, there: Iterable[ResourceSlice]) -> bool:
        return bool(needed(self._owner, self._driver, wanted, there, self._memory))

    def _before_mending(self) -> float:
        now = asyncio.get_running_loop().time()
        quiet = now - self._mended_at > QUIET_SECONDS
        self._mended_at = now
        log.info("ResourceSlices are not as they were written: mending them", driver=self._driver)
        if quiet:
            self._mends.reset()
            return 0.0
        return self._mends.next()

    async def _pause(self, seconds: float) -> None:
        """Wait, but not when something else is wanted meanwhile."""
        try:
            async with asyncio.timeout(seconds):
                await self._new.wait()
        except TimeoutError:
            pass

    def _trouble(self, error: KubeError | SlicesInvalid) -> None:
        if str(error) != self.state.value.trouble:
            log.warning("ResourceSlices cannot be published: trying again", driver=self._driver, reason=str(error))
            self.state.set(Published(self.state.value.outcome, str(error)))

    def _tell(self, outcome: Outcome) -> None:
        log.info("ResourceSlices published", driver=self._driver, devices=len(outcome.offered))
        if outcome.dropped:
            log.warning(
                "the API server drops fields (it is older, or a feature gate is off)",
                fields=sorted(outcome.dropped),
                withdrawn=outcome.withdrawn,
            )

    def _hear(self, error: KubeError | None) -> None:
        if error:
            self.state.set(Published(self.state.value.outcome, str(error)))
            log.warning("ResourceSlices cannot be watched: trying again", driver=self._driver, reason=str(error))
        else:
            log.info("ResourceSlices are watched again", driver=self._driver)
