"""Sees to it that the control daemons run that are wanted, and that nobody who is connected to one is cut off.

What runs is looked for afresh each time, so it makes no difference whether this process, one before it that was killed,
or a person has started a control daemon.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from gpuplugin.errors import MpsControlFailed, NvmlError
from gpuplugin.mps import report
from gpuplugin.mps.decide import Known, Plan, decide, limits, outdated
from gpuplugin.mps.folders import Folders
from gpuplugin.mps.processes import Process, running

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from gpuplugin.model.ids import GpuUuid, ResourceName
    from gpuplugin.mps.decide import Running
    from gpuplugin.mps.modes import ComputeModes
    from gpuplugin.mps.program import ControlProgram
    from gpuplugin.mps.report import Report
    from gpuplugin.plan.mps import MpsGroup

log = structlog.get_logger()

FIRST_REST_SECONDS, LONGEST_REST_SECONDS = 1.0, 60.0
STEADY_SECONDS: Final = 60.0
"""A control daemon that has lived so long has not failed at once."""
SETTLE_SECONDS: Final = 5.0
"""How long a resource must have been reported as not ready before no new client is on its way."""
ENDING_SECONDS: Final = 10
"""How long MPS servers may take to end; after that they are cut off."""


@dataclass(slots=True)
class _Watched:
    """A control daemon that is followed. since: when it was first seen · limits: the commands it has been given."""

    running: Running
    process: Process
    since: float
    limits: tuple[str, ...] = ()
    ending: bool = False


@dataclass(slots=True)
class _Rest:
    """After a failure: how often in a row, and until when nothing is tried."""

    failures: int = 0
    until: float = 0.0
    reason: str = ""


@dataclass(slots=True)
class Where:
    """root: the folder for all of MPS · proc, sysfs: where those are."""

    root: str
    proc: Path = field(default_factory=lambda: Path("/proc"))
    sysfs: Path = field(default_factory=lambda: Path("/sys"))


class Supervisor:
    """Brings about what is wanted, a step at each look.

    wake: called when a control daemon has ended, so that there is a look at once · now: seconds, for the rests between
    attempts.
    """

    def __init__(
        self,
        where: Where,
        program: Callable[[], ControlProgram],
        modes: ComputeModes,
        wake: Callable[[str], object],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._where, self._find_program, self._modes, self._wake, self._now = where, program, modes, wake, now
        self._watched: dict[ResourceName, _Watched] = {}
        self._rests: dict[ResourceName, _Rest] = {}
        self._held: dict[ResourceName, int] = {}
        self._reports: dict[ResourceName, Report] = {}
        self._refused_since: dict[ResourceName, float] = {}
        self._left = report.resources(Path(where.root))

    async def look(self, wanted: tuple[MpsGroup, ...], present: AbstractSet[GpuUuid]) -> bool:
        """Do what can be done now; returns whether all is as it should be. present: the GPUs of the machine."""
        self._follow()
        plan = await self._plan(wanted, frozenset(present))
        waiting = dict(plan.waiting)
        for resource in plan.waiting:
            self._tell(resource, report.Report(ready=False, reason=waiting[resource], pid=self._pid(resource)))
        for resource in plan.end:
            log.info("ending the MPS control daemon", resource=resource, reason=waiting[resource])
            await self._end(resource)
        for group in plan.keep:
            waiting[group.resource] = await self._see_to(group)
        for group in plan.start:
            waiting[group.resource] = await self._start(group)
        await self._give_back(wanted)
        self._forget({group.resource for group in wanted} | self._watched.keys())
        return not any(waiting.values())

    async def stop(self) -> None:
        """End all control daemons, with their clients, and leave the GPUs as they were."""
        self._follow()
        for resource in self._watched:
            self._tell(resource, report.Report(ready=False, reason="MPS is being stopped on this node"))
        await asyncio.gather(*map(self._end, tuple(self._watched)))
        await self._give_back(())
        self._forget(frozenset())

    def leave(self) -> None:
        """Take no more notice of anything; the control daemons live on."""
        for watched in self._watched.values():
            watched.process.forget()
        for descriptor in self._held.values():
            os.close(descriptor)
        self._watched, self._held = {}, {}

    # -- what there is ------------------------------------------------------

    def _follow(self) -> None:
        """Look for what runs: take up what is new, and tell of what has ended."""
        found = running(self._where.proc, self._where.root)
        for resource, watched in list(self._watched.items()):
            now = found.get(resource)
            if now is None or now.pid != watched.running.pid:
                watched.process.forget()
                del self._watched[resource]
                if not watched.ending:
                    self._failed(resource, "the MPS control daemon has ended by itself, and its clients with it")
        for resource, one in found.items():
            if resource not in self._watched:
                with suppress(ProcessLookupError):
                    self._take_up(one)

    def _take_up(self, one: Running) -> None:
        process = Process(one.pid, lambda: self._wake("an MPS control daemon has ended"))
        self._watched[one.resource] = _Watched(one, process, self._now())
        log.info("MPS control daemon", resource=one.resource, pid=one.pid, gpus=sorted(one.gpus or {"all"}))

    async def _plan(self, wanted: tuple[MpsGroup, ...], present: frozenset[GpuUuid]) -> Plan:
        now = self._now()
        known = Known(
            present=present,
            running={resource: watched.running for resource, watched in self._watched.items()},
            told=frozenset(name for name, since in self._refused_since.items() if now - since >= SETTLE_SECONDS),
            resting={resource: rest.reason for resource, rest in self._rests.items() if rest.until > now},
        )
        clients = {resource: await self._clients(resource) for resource in outdated(wanted, known)}
        return decide(wanted, replace(known, clients=clients))

    async def _clients(self, resource: ResourceName) -> int | None:
        try:
            return await self._find_program().clients(Folders.of(self._where.root, resource))
        except MpsControlFailed as error:
            log.debug("the MPS control daemon does not answer", resource=resource, reason=str(error))
            return None

    # -- what is done -------------------------------------------------------

    async def _see_to(self, group: MpsGroup) -> str:
        """Give a control daemon its limits, and have it answer; returns what is wrong."""
        watched = self._watched[group.resource]
        folders = Folders.of(self._where.root, group.resource)
        wanted = limits(group)
        commands = wanted if watched.limits != wanted else ("get_default_active_thread_percentage",)
        try:
            program = self._find_program()
            for command in commands:
                await program.ask(folders, command)
        except MpsControlFailed as error:
            trouble = f"the MPS control daemon does not do as told: {error}"
        else:
            trouble = ""
            if watched.limits != wanted:
                log.info("limits of MPS clients", resource=group.resource, commands=wanted)
                watched.limits = wanted
            if self._now() - watched.since >= STEADY_SECONDS:
                self._rests.pop(group.resource, None)
        self._tell(group.resource, report.Report(ready=not trouble, reason=trouble, pid=watched.running.pid))
        return trouble

    async def _start(self, group: MpsGroup) -> str:
        folders = Folders.of(self._where.root, group.resource)
        try:
            folders.make(self._where.sysfs)
            held = self._hold(group.resource)
            program = self._find_program()
            if await self._answers(program, folders):
                return self._somebody_elses(group.resource)
            folders.clear()
            await self._modes.take(group.gpus)
            await program.start(group, folders, held)
        except (MpsControlFailed, NvmlError, OSError) as error:
            self._failed(group.resource, f"the MPS control daemon cannot be started: {error}")
        else:
            self._follow()
            if group.resource in self._watched:
                return await self._see_to(group)
            self._failed(group.resource, "the MPS control daemon has ended right after its start")
        reason = self._rests[group.resource].reason
        self._tell(group.resource, report.Report(ready=False, reason=reason))
        return reason

    async def _answers(self, program: ControlProgram, folders: Folders) -> bool:
        if not (folders.pipe / "control").exists():
            return False
        with suppress(MpsControlFailed):
            await program.ask(folders, "get_server_list")
            return True
        return False

    def _somebody_elses(self, resource: ResourceName) -> str:
        """Use a control daemon that lives where we cannot see it, such as that of NVIDIA's own DaemonSet."""
        reason = "another program's MPS control daemon answers here, with GPUs, limits and compute mode of its own"
        self._tell(resource, report.Report(ready=True, reason=reason))
        return ""

    async def _end(self, resource: ResourceName) -> None:
        watched = self._watched[resource]
        watched.ending = True
        with suppress(MpsControlFailed):
            folders = Folders.of(self._where.root, resource)
            await self._find_program().ask(folders, f"quit -t {ENDING_SECONDS}")
        await watched.process.end(ENDING_SECONDS + 1)
        self._watched.pop(resource, None)

    def _failed(self, resource: ResourceName, reason: str) -> None:
        rest = self._rests.setdefault(resource, _Rest())
        seconds = min(FIRST_REST_SECONDS * 2**rest.failures, LONGEST_REST_SECONDS)
        if reason != rest.reason:
            log.error("MPS control daemon does not run", resource=resource, reason=reason, next_try_seconds=seconds)
        rest.failures, rest.until, rest.reason = rest.failures + 1, self._now() + seconds, reason

    async def _give_back(self, wanted: tuple[MpsGroup, ...]) -> None:
        served = {gpu for watched in self._watched.values() for gpu in watched.running.gpus or self._modes.taken}
        needed = served.union(*(group.gpus for group in wanted))
        await self._modes.give_back(tuple(self._modes.taken - needed))

    # -- what is said -------------------------------------------------------

    def _pid(self, resource: ResourceName) -> int:
        return self._watched[resource].running.pid if resource in self._watched else 0

    def _hold(self, resource: ResourceName) -> int:
        if resource not in self._held:
            self._held[resource] = report.hold(Path(self._where.root, resource))
        return self._held[resource]

    def _tell(self, resource: ResourceName, said: Report) -> None:
        """Report, where it differs from what was said before. A report that cannot be written is one of not ready."""
        if said.ready:
            self._refused_since.pop(resource, None)
        else:
            self._refused_since.setdefault(resource, self._now())
        if self._reports.get(resource) == said:
            return
        home = Path(self._where.root, resource)
        try:
            home.mkdir(parents=True, exist_ok=True)
            self._hold(resource)
            report.write(home, said)
        except OSError as error:
            log.error("no report can be written", path=str(home), reason=str(error))  # noqa: TRY400 - for people
            return
        self._reports[resource] = said
        tell = log.info if said.ready else log.warning
        tell("MPS is ready" if said.ready else "MPS is not ready", resource=resource, reason=said.reason)

    def _forget(self, known: AbstractSet[ResourceName]) -> None:
        """Say nothing more of resources that are neither wanted nor running."""
        for resource in (self._reports.keys() | self._left) - known:
            report.remove(Path(self._where.root, resource))
            self._reports.pop(resource, None)
            self._refused_since.pop(resource, None)
            self._rests.pop(resource, None)
        self._left = frozenset()
        for resource in self._held.keys() - known:
            os.close(self._held.pop(resource))
