"""The durable record of prepared claims: what we gave, before and after it was given, so that a crash leaves no doubt.

One file a claim, so that the cost of one does not grow with the others, and a broken file costs one claim. A file is
replaced by rename, and on disk before and after; so it is old or new, also when power is lost. A claim is *started*
before anything is changed for it and *completed* after. One for which nothing is changed is completed at once.

A file that makes no sense stays where it is and keeps all new claims out, for nobody knows which devices it is about,
until it has been made again from what kubelet and the API server know. Then it is put aside, for people to look at.

Several instances of the daemon may run side by side while one is updated. Each step here is made under one lock of
theirs, on what is in the folder then.

File format: `format` is the writer's, `readable` the oldest format whose reader understands the file. Fields are only
added; a reader leaves unknown ones aside and does without those that are missing, so a step back to an older daemon
and forward again loses nothing. What cannot be read that way raises `readable`.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from dra.claim import ClaimName
from gpuplugin.durable import sync_folder
from gpuplugin.errors import CheckpointError, DeviceHeld
from gpuplugin.model.holds import Hold, Holder, Owner, Use
from gpuplugin.model.ids import GpuUuid
from gpuplugin.plan.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

FORMAT: Final = 1
STARTED, COMPLETED = "started", "completed"
"""States of a record; one that a later version has added is taken for started, since preparing again is always safe."""

_SUFFIX, _TEMPORARY, _UNREADABLE, _LOCK = ".json", ".tmp", "unreadable", ".lock"
_Stamp = tuple[int, int, int, int]


class RecordedDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device of a claim. gpu: its UUID · cdi: the qualified names that containers get it by · use: see holds.Use."""

    request: str
    pool: str
    device: str
    gpu: str
    cdi: tuple[str, ...]
    share: str | None = None
    use: str = Use.EXCLUSIVE.value


class RecordedPod(msgspec.Struct, frozen=True):
    """A pod that the claim was prepared for; name: ``namespace/name``."""

    name: str
    uid: str


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A claim that we have begun to prepare, and have not unprepared.

    sole: whether it was made for one pod, that no other comes to share · since: when its pods were read, in seconds of
    the clock; no later pod is among them. 0: there may be any others.
    """

    uid: str
    namespace: str
    name: str
    devices: tuple[RecordedDevice, ...]
    pods: tuple[RecordedPod, ...] = ()
    state: str = STARTED
    sole: bool = False
    since: float = 0.0
    format: int = FORMAT
    readable: int = 1

    @property
    def claim(self) -> ClaimName:
        """Which claim it is of."""
        return ClaimName(self.namespace, self.name, self.uid)

    @property
    def completed(self) -> bool:
        """Whether all was done for it."""
        return self.state == COMPLETED

    @property
    def given(self) -> list[tuple[str, str, str, str, str | None]]:
        """What it has, without how containers are told of it, which may change with our version."""
        return [(one.request, one.pool, one.device, one.gpu, one.share) for one in self.devices]

    @property
    def holds(self) -> tuple[Hold, ...]:
        """What it has, as the ledger counts it."""
        pods = tuple(pod.name for pod in self.pods)
        holder = Holder(Owner.CLAIMS, self.namespace, self.name, self.uid, pods)
        return tuple(Hold(GpuUuid(device.gpu), holder, _use(device.use)) for device in self.devices)


class Checkpoint:
    """The folder of records. Calls block on the disk; one thread at a time makes them.

    Each may raise CheckpointError.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stamps: dict[str, _Stamp] = {}
        self._read: dict[str, Record | None] = {}
        self._records: Mapping[str, Record] = MappingProxyType({})
        self._unreadable: frozenset[str] = frozenset()
        self._seen = False
        self.losses = 0
        """How often the whole folder had gone since the first call, and nobody knows what was in it."""

    @property
    def records(self) -> Mapping[str, Record]:
        """The records as they were at the last call, by UID; may be read by any thread."""
        return self._records

    @property
    def unreadable(self) -> frozenset[str]:
        """The UIDs of the claims whose file made no sense at the last call; may be read by any thread."""
        return self._unreadable

    @property
    def ledger(self) -> Ledger:
        """What they hold."""
        return Ledger(tuple(hold for record in self._records.values() for hold in record.holds))

    def load(self) -> tuple[str, ...]:
        """Bring `records` up to date; returns the UIDs of the claims whose file makes no sense."""
        with self._locked():
            return tuple(sorted(self._unreadable))

    def find(self, uid: str) -> Record | None:
        """Give a claim's record, None where there is none."""
        with self._locked():
            return self._records.get(uid)

    def begin(self, record: Record, held: Ledger) -> Record:
        """Enter a claim, unless another has a device of it: then DeviceHeld. held: what is held beside the records.

        Gives what is entered then: if the claim is there with other devices, or completed, that is left as it is.
        """
        losses = self.losses
        with self._locked():
            if self.losses != losses:
                raise CheckpointError(
                    self.folder,
                    "it was removed, with the records of prepared claims; kubelet is asked first what its pods have",
                )
            before = self._records.get(record.uid)
            if before is not None and (before.completed or before.given != record.given):
                return before
            unreadable = self._unreadable - {record.uid}
            if unreadable:
                raise CheckpointError(
                    self._path(min(unreadable)),
                    "the record of a prepared claim makes no sense, so nobody knows which GPUs it has; it is made anew "
                    "as soon as kubelet and the API server can be asked",
                )
            barred = (self.ledger + held).bars(record.holds)
            if barred:
                text = dict.fromkeys(f"{hold.gpu} is still held by {hold.holder}" for hold in barred)
                raise DeviceHeld(text, dict.fromkeys(hold.holder.uid for hold in barred if hold.holder.uid))
            self._write(record)
            return record

    def adopt(self, record: Record) -> None:
        """Enter a claim that was prepared before, by whom and whatever else is in the books, unless it is there."""
        with self._locked():
            if record.uid not in self._records:
                self._write(record)

    def rename(self, record: Record) -> None:
        """Enter a claim again, with names that were found out after it was adopted, unless it is there no more."""
        with self._locked():
            if record.uid in self._records:
                self._write(record)

    def complete(self, uid: str) -> Record | None:
        """Say that all was done for a claim. None: it has been unprepared meanwhile, and is not entered again."""
        return self._set_state(uid, COMPLETED)

    def reopen(self, uid: str) -> Record | None:
        """Say that not all holds any more that was done for a claim, for it is about to be undone."""
        return self._set_state(uid, STARTED)

    def _set_state(self, uid: str, state: str) -> Record | None:
        with self._locked():
            record = self._records.get(uid)
            if record is not None and record.state != state:
                record = msgspec.structs.replace(record, state=state)
                self._write(record)
            return record

    def remove(self, uid: str) -> None:
        """Forget a claim. A file that makes no sense is put aside."""
        with self._locked():
            if self._read.get(uid, ...) is None:
                self._put_aside(uid)
            elif uid in self._read:
                self._path(uid).unlink(missing_ok=True)
                sync_folder(self.folder)
            self._look()

    def put_aside(self, uid: str, instead: Record | None) -> None:
        """Move a file that makes no sense out of the way, and enter what was found out instead, if anything."""
        with self._locked():
            if self._read.get(uid, ...) is not None:
                return
            if instead is None:
                self._put_aside(uid)
                self._look()
            else:
                self._keep_copy(uid)
                self._write(instead)

    # -- on disk ------------------------------------------------------------

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the instances' lock, with `records` as they are in the folder; OSError becomes CheckpointError."""
        try:
            if not self.folder.is_dir():
                self.folder.parent.mkdir(mode=0o750, exist_ok=True)  # the one above is kubelet's, and must be there
                self.folder.mkdir(mode=0o700, exist_ok=True)
                self.losses += self._seen
            self._seen = True
            descriptor = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._look()
            yield
        except OSError as error:
            raise self._unusable(error) from error
        finally:
            os.close(descriptor)

    def _look(self) -> None:
        """Read what another instance has changed, and what we have not read yet."""
        seen: dict[str, _Stamp] = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith(_TEMPORARY):
                    (self.folder / entry.name).unlink()  # left by a kill; nobody else writes while we hold the lock
                elif entry.name.endswith(_SUFFIX) and not entry.name.startswith("."):
                    status = entry.stat(follow_symlinks=False)
                    uid = entry.name.removesuffix(_SUFFIX)
                    seen[uid] = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
        known = self._stamps
        if seen == known:
            return
        before, self._read, self._stamps = self._read, {}, {}
        for uid, stamp in seen.items():
            try:
                self._read[uid] = before[uid] if known.get(uid) == stamp else self._decode(uid)
            except OSError:
                self._read[uid] = None  # and without a stamp: that it cannot be read may be a matter of the moment
            else:
                self._stamps[uid] = stamp
        self._publish()

    def _publish(self) -> None:
        self._records = MappingProxyType({uid: record for uid, record in self._read.items() if record is not None})
        self._unreadable = frozenset(self._read.keys() - self._records.keys())

    def _decode(self, uid: str) -> Record | None:
        try:
            record = msgspec.json.decode(self._path(uid).read_bytes(), type=Record)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return record if record.uid == uid and record.readable <= FORMAT else None

    def _write(self, record: Record) -> None:
        path = self._path(record.uid)
        temporary = path.with_name(f".{path.name}{_TEMPORARY}")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                content = memoryview(msgspec.json.encode(record))
                while content:
                    content = content[os.write(descriptor, content) :]
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)  # noqa: PTH105 - beside the other calls of os
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_folder(self.folder)
        status = path.lstat()
        self._stamps[record.uid] = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
        self._read[record.uid] = record
        self._publish()

    def _put_aside(self, uid: str) -> None:
        self._keep_copy(uid)
        self._path(uid).unlink(missing_ok=True)
        sync_folder(self.folder)

    def _keep_copy(self, uid: str) -> None:
        aside = self.folder / _UNREADABLE
        aside.mkdir(mode=0o700, exist_ok=True)
        with suppress(OSError):  # a file that cannot even be linked has nothing that helps a person
            os.link(self._path(uid), aside / f"{uid}{_SUFFIX}.{time.time_ns():x}")

    def _path(self, uid: str) -> Path:
        if not uid or "/" in uid or uid.startswith("."):
            raise CheckpointError(self.folder, f"{uid!r} is no UID of a claim")
        return self.folder / f"{uid}{_SUFFIX}"

    def _unusable(self, error: OSError) -> CheckpointError:
        path = error.filename or self.folder
        return CheckpointError(
            self.folder if path == self.folder else self.folder / os.path.basename(os.fsdecode(path)),  # noqa: PTH119
            f"{error.strerror or error}; prepared claims are recorded here: it must be writable, with space left",
        )


def _use(text: str) -> Use:
    try:
        return Use(text)
    except ValueError:
        return Use.EXCLUSIVE  # of a later version; taken for what bars most
