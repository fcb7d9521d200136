"""Preparing claims: one transaction each, which may be repeated, broken off or undone at any point.

    read the claim, check its UID → enter it as started → effects → enter it as completed

A whole GPU needs no effect: its container gets it by a name in a CDI document that is always there. Its claim is
entered as completed at once, and there is nothing that a crash or a reboot could leave half done.

Calls for one claim are made one after the other, so a slow Prepare has ended when the Unprepare after it begins.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import structlog
from msgspec.structs import replace

from dra.checkpoint import COMPLETED, STARTED, Record, RecordedDevice, RecordedPod
from dra.claim import AllocatedClaim, ClaimName, allocated, devices_from
from gpuplugin.errors import (
    ClaimChanged,
    DeviceHeld,
    DeviceNotHere,
    KubeNotFound,
    KubeUnavailable,
    PodResourcesUnavailable,
)
from gpuplugin.plan.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator

    from dra.checkpoint import Checkpoint
    from dra.claim import GrantedDevice
    from dra.devices import NodeDevice, NodeDevices
    from gpuplugin.kube.objects import ResourceClaim

log = structlog.get_logger()
T = TypeVar("T")

CLAIM_SECONDS = 20.0
"""How long the API server is asked for a claim before kubelet is told that it cannot be; kubelet waits 45 s."""


class Claims(Protocol):
    """The API server, as far as preparing needs it."""

    async def claim(self, namespace: str, name: str, *, patience: float | None = None) -> ResourceClaim:
        """Give the claim of that name. Raises KubeError's kinds."""
        ...


class Blocking(Protocol):
    """Makes a call on the thread that blocking calls are made on, in order."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]:
        """Wait for the call's result."""
        ...


class Effects(Protocol):
    """What has to be changed on the node for a claim. `apply` and `undo` may find any of it done already."""

    def needed(self, record: Record) -> bool:
        """Whether there is anything to change for it."""
        ...

    async def apply(self, record: Record) -> None:
        """Make all changes."""
        ...

    async def undo(self, record: Record) -> None:
        """Take back whatever is there of them."""
        ...


class NoEffects:
    """Of whole GPUs."""

    def needed(self, record: Record) -> bool:  # noqa: ARG002 - a whole GPU never needs any
        """Nothing is."""
        return False

    async def apply(self, record: Record) -> None:
        """Do nothing."""

    async def undo(self, record: Record) -> None:
        """Do nothing."""


async def _at_once() -> None:
    """Nothing to wait for."""


async def _of_nobody() -> Collection[tuple[str, str]]:
    """No pod has a claim."""
    return ()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What preparing asks of the rest of the daemon, each time anew.

    devices: of our pool · held: holds beside those of claims · in_use: which pod of a claim that is gone may still run,
    empty where none may; the UIDs are of pods that cannot have it (see `in_use`) · complete: returns once the records
    are known to be all there are, or raises why not.
    """

    devices: Callable[[], NodeDevices]
    held: Callable[[], Ledger] = Ledger
    in_use: Callable[[Record, Collection[str]], str] = lambda _record, _newcomers: "that is not looked at"
    complete: Callable[[], Awaitable[None]] = _at_once


class Preparing:
    """Prepares and unprepares. checkpoint: loaded · blocking: makes a call on the thread that it belongs to.

    told: hears each claim with its devices once it is prepared · over: hears the UID of one that is being unprepared ·
    changed: hears that the records, or what is intended, may be other than before · in_pods: see `recovery.Recovery`,
    which sets it.
    """

    def __init__(
        self,
        driver: str,
        pool: str,
        claims: Claims,
        checkpoint: Checkpoint,
        blocking: Blocking,
        surroundings: Surroundings,
        effects: Effects | None = None,
    ) -> None:
        self._driver, self._pool, self._claims = driver, pool, claims
        self._checkpoint, self._blocking, self._around = checkpoint, blocking, surroundings
        self._effects = effects or NoEffects()
        self._turns: dict[str, _Turn] = {}
        self._intended: dict[str, Record] = {}
        self.calls = 0
        """How many there have been, of all kinds."""
        self.told: Callable[[ResourceClaim, tuple[NodeDevice, ...]], None] = lambda _claim, _devices: None
        self.over: Callable[[str], None] = lambda _uid: None
        self.changed: Callable[[], None] = lambda: None
        self.lingering: set[str] = set()
        """UIDs of claims that are gone, while a pod of theirs may still run."""
        self.in_pods: Callable[[], Awaitable[Collection[tuple[str, str]]]] = _of_nobody

    async def prepare(self, wanted: ClaimName) -> Record:
        """Have a claim's devices ready, and give its completed record; the same again when it is already.

        Raises ClaimRefused's kinds, CheckpointError and KubeError: nothing was given, and the call can be repeated.
        """
        async with self._turn(wanted.uid):
            before = self._checkpoint.records.get(wanted.uid)
            if before is not None:  # as far as this instance knows; what is on the disk counts
                before = await self._on_disk(lambda: self._checkpoint.find(wanted.uid))
            done = before is not None and before.completed
            since = time.time()
            try:
                claim = await self._claims.claim(wanted.namespace, wanted.name, patience=0 if done else CLAIM_SECONDS)
            except KubeNotFound as error:
                raise ClaimChanged(f"claim {wanted}: the API server has none of that name") from error
            except KubeUnavailable:
                if before is None or not done:
                    raise
                self._check(before)
                return before  # was checked when it was prepared; a kubelet that restarts must not need the API server
            record, devices = self._record(allocated(claim, wanted, self._driver, self._pool), since)
            if before is not None and done and before.given == record.given:
                record = replace(record, state=COMPLETED, since=before.since)
            else:
                with self._intending(record):
                    record = await self._complete(record)
            self.told(claim, devices)
            return record

    async def unprepare(self, uid: str) -> bool:
        """Take a claim's devices back, whether or not there is still such a claim. False: it was not prepared."""
        async with self._turn(uid):
            self.over(uid)
            before = await self._on_disk(lambda: self._checkpoint.find(uid))
            if before is not None:
                await self._release(before)
            else:
                await self._on_disk(lambda: self._checkpoint.remove(uid))
            return before is not None

    async def reclaim(self, uid: str, newcomers: Collection[str] = ()) -> bool:
        """Take the devices back of a claim that is no more, unless a pod that has them may still run.

        Whether there is such a claim is asked of the API server; KubeError when that cannot be had. newcomers: UIDs of
        pods that wait for its devices, and so do not have them.
        """
        if uid in self._turns:
            return False  # a call for it is being made: waiting for it could be waiting for each other
        async with self._turn(uid):
            record = await self._on_disk(lambda: self._checkpoint.find(uid))
            if record is None or await self._still_wanted(record):
                return False
            if why := await self._in_use(record, newcomers):
                if uid not in self.lingering:
                    log.info("claim is gone, and its devices are not free yet", claim=str(record.claim), reason=why)
                self.lingering.add(uid)
                return False
            self.over(uid)
            await self._release(record)
            log.warning("claim is gone, and its pods are: its devices are free again", claim=str(record.claim))
            return True

    def rebuilt(self, claim: ResourceClaim) -> Record:
        """Give the record that a claim would have if it was begun, without devices that are not in the machine now.

        Raises ClaimRefused's kinds; where none of its devices is here, too.
        """
        meta = claim.metadata
        name = ClaimName(meta.namespace, meta.name, meta.uid)
        return self._record(allocated(claim, name, self._driver, self._pool, follow=False), whole=True)[0]

    @property
    def intended(self) -> Ledger:
        """What claims that are being prepared are about to have: it was found free, and may not be recorded yet."""
        return Ledger(tuple(hold for record in self._intended.values() for hold in record.holds))

    @contextmanager
    def _intending(self, record: Record) -> Iterator[None]:
        self._intended[record.uid] = record
        try:
            yield
        finally:
            del self._intended[record.uid]
            self.changed()

    async def _complete(self, record: Record) -> Record:
        await self._around.complete()
        effects = self._effects.needed(record)
        if not effects:
            return await self._begin(record, COMPLETED)
        record = await self._begin(record, STARTED)
        if record.completed:
            return record  # by another instance, a moment ago
        await self._effects.apply(record)
        completed = await self._on_disk(lambda: self._checkpoint.complete(record.uid))
        if completed is None:
            await self._effects.undo(record)
            raise ClaimChanged(f"claim {record.claim}: it was unprepared meanwhile, by another instance of this daemon")
        return completed

    async def _begin(self, record: Record, state: str) -> Record:
        record = replace(record, state=state)
        while True:
            try:
                begun = await self._on_disk(lambda: self._checkpoint.begin(record, self._around.held()))
            except DeviceHeld as held:
                if not held.claims:
                    raise
                for uid in held.claims:
                    if not await self._reclaimed(uid, {pod.uid for pod in record.pods}):
                        raise
            else:
                if begun.given == record.given:
                    return begun
                self._check_given_up(begun, record)
                await self._release(begun)  # it was given up, and has been allocated anew

    def _check_given_up(self, before: Record, record: Record) -> None:
        """Refuse a claim that was allocated anew while pods that it was allocated to before may still run."""
        others = tuple(pod for pod in before.pods if pod not in record.pods)
        if others and self._around.in_use(replace(before, pods=others, sole=True), ()):
            names = " and ".join(pod.name for pod in others)
            held = ", ".join(device.gpu for device in before.devices)
            raise DeviceHeld([f"claim {record.claim} was allocated anew, and pod {names} still has {held} of it"], ())

    async def _reclaimed(self, uid: str, newcomers: Collection[str]) -> bool:
        """Reclaim while another claim waits for it; False where its state, or that of its pods, cannot be had."""
        try:
            return await self.reclaim(uid, newcomers)
        except (KubeUnavailable, PodResourcesUnavailable):
            return False

    async def _in_use(self, record: Record, newcomers: Collection[str]) -> str:
        """Say which pod that has it may still run, empty where none may.

        Kubelet has a claim prepared once. So a pod that came to share it later is not in the record, but kubelet names
        the claim among those of its pods, unless it means a later one of that name. It does not name those that were
        force-deleted: of them only their folders are left.
        """
        if why := self._around.in_use(record, newcomers):
            return why
        name = (record.namespace, record.name)
        others = (other for uid, other in self._checkpoint.records.items() if uid != record.uid)
        named = name in await self.in_pods() and all((other.namespace, other.name) != name for other in others)
        return "kubelet names it among the claims of its pods" if named else ""

    async def _release(self, record: Record) -> None:
        if self._effects.needed(record):
            await self._on_disk(lambda: self._checkpoint.reopen(record.uid))  # or a crash leaves less than it says
            await self._effects.undo(record)
        await self._on_disk(lambda: self._checkpoint.remove(record.uid))
        self.lingering.discard(record.uid)

    async def _still_wanted(self, record: Record) -> bool:
        try:
            claim = await self._claims.claim(record.namespace, record.name, patience=0)
        except KubeNotFound:
            return False
        return claim.metadata.uid == record.uid and bool(devices_from(claim, self._driver, self._pool))

    async def _on_disk(self, call: Callable[[], T]) -> T:
        """Make a call, and tell of what it changed once it has ended: where kubelet gives up waiting, it goes on."""
        before = self._checkpoint.records

        def tell(_: object = None) -> None:
            if self._checkpoint.records is not before:
                self.changed()

        try:
            return await self._blocking(call)
        except asyncio.CancelledError:  # calls are made in order: a further one ends after it
            asyncio.ensure_future(self._blocking(lambda: None)).add_done_callback(tell)
            raise
        finally:
            tell()

    def _record(
        self, claim: AllocatedClaim, since: float = 0.0, *, whole: bool = False
    ) -> tuple[Record, tuple[NodeDevice, ...]]:
        """Make a claim's record. whole: of what is here, also where no container can be given it now."""
        granted_here = self._here(claim) if whole else claim.devices
        devices = [self._device(granted.device, whole=whole) for granted in granted_here]
        record = Record(
            uid=claim.name.uid,
            namespace=claim.name.namespace,
            name=claim.name.name,
            devices=tuple(
                RecordedDevice(
                    granted.request,
                    granted.pool,
                    granted.device,
                    device.gpu,
                    device.cdi,
                    granted.share,
                    granted.use.value,
                )
                for granted, device in zip(granted_here, devices, strict=True)
            ),
            pods=tuple(RecordedPod(name, uid) for name, uid in claim.pods),
            sole=claim.sole,
            since=since,
        )
        return record, tuple(devices)

    def _here(self, claim: AllocatedClaim) -> tuple[GrantedDevice, ...]:
        """Give what of a claim is in the machine now, or all of it where nothing is."""
        known = self._around.devices().by_name
        here = tuple(granted for granted in claim.devices if granted.device in known)
        if lacking := [granted.device for granted in claim.devices if granted.device not in known]:
            log.warning("devices of a claim are not in this machine now", claim=str(claim.name), devices=lacking)
        return here or claim.devices

    def _device(self, name: str, *, whole: bool = False) -> NodeDevice:
        known = self._around.devices()
        if known.unknown:
            raise DeviceNotHere(name, known.unknown)
        device = known.by_name.get(name)
        if device is None:
            raise DeviceNotHere(name, "this node has none of that name (any more)")
        if device.refusal and not whole:
            raise DeviceNotHere(name, f"{device.gpu} cannot be given to a container: {device.refusal}")
        return device

    def _check(self, record: Record) -> None:
        """Refuse a claim that is prepared, and whose devices are known not to be there any more."""
        if not self._around.devices().unknown:
            for recorded in record.devices:
                if self._device(recorded.device).gpu != recorded.gpu:
                    raise DeviceNotHere(recorded.device, f"{recorded.gpu}, which the claim has, is not in this machine")

    @asynccontextmanager
    async def _turn(self, uid: str) -> AsyncIterator[None]:
        turn = self._turns.setdefault(uid, _Turn(asyncio.Lock()))
        turn.waiting += 1
        self.calls += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                self._turns.pop(uid, None)


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock
    waiting: int = 0
