"""What a simulated machine's NVML says at this moment, kept in one file, and everything that can happen to it.

A file, because the ones who look (the Python double, a C stand-in for libnvidia-ml.so.1) and the ones who break things
(a test, a person at a shell) are often different processes. It is replaced whole, so that a reader never sees half a
change, and every change gives it a new mtime, so that a reader can tell by one stat that nothing has happened.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Condition, Lock
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

from gpuplugin.errors import MachineFileError
from gpuplugin.sim.snapshot import (
    NO_CLUSTER,
    ClocksRecord,
    EventRecord,
    FaultRecord,
    FieldRecord,
    Loaded,
    Snapshot,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EVENTS_KEPT = 64

_conditions: WeakValueDictionary[Path, Condition] = WeakValueDictionary()
_conditions_lock = Lock()


def changed(path: Path) -> Condition:
    """Give the condition that is notified when a State of this process has changed the file at `path`.

    Hold on to it: it lives as long as somebody does.
    """
    path = path.resolve()
    with _conditions_lock:
        return _conditions.setdefault(path, Condition())


class State:
    """The file, with a method for each thing that can happen to a machine.

    Every method takes the GPU by its NVML index (LookupError when there is none) and writes the file before it
    returns. Any number of threads and processes may hold a State of the same file: a lock beside it puts their changes
    in a row, and keeps the last number that was given to a fault or an event, so that none is ever given twice.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._changed = changed(path)

    @classmethod
    def create(cls, path: Path, snapshot: Snapshot) -> State:
        """Write the file anew, over one that may be there: a machine that starts."""
        state = cls(path)
        with state._locked():
            state._write(snapshot)
        return state

    @classmethod
    def open(cls, path: Path) -> State:
        """Take a file that is there, such as another process's. MachineFileError when it is missing or wrong."""
        cls.read(path)
        return cls(path)

    @staticmethod
    def read(path: Path) -> Snapshot:
        """Read the file. MachineFileError when it is missing or wrong."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise MachineFileError(f"{path}: cannot be read as a simulated machine's state: {error}") from error
        return Snapshot.parse(text, str(path))

    @property
    def snapshot(self) -> Snapshot:
        """What the file says now."""
        return self.read(self.path)

    def xid(self, gpu: int, code: int, gi: int | None = None, ci: int | None = None) -> int:
        """Raise a critical XID; returns its event's sequence number. Only the last EVENTS_KEPT events are kept."""
        with self._change() as draft:
            draft.now.gpu(gpu)
            event = EventRecord(draft.number(), gpu, code, gi, ci)
            draft.now = replace(draft.now, events=(*draft.now.events, event)[-EVENTS_KEPT:])
        return event.seq

    def lose(self, gpu: int) -> None:
        """Let the GPU fall off the bus."""
        self.update(gpu, lost=True)

    def restore(self, gpu: int) -> None:
        """Bring a lost GPU back."""
        self.update(gpu, lost=False)

    def recovery(self, gpu: int, action: int | None) -> None:
        """Set what the driver wants done (field 230; 0 nothing); None: this driver does not tell."""
        self.update(gpu, recovery=action)

    def fail(self, call: str, code: int, gpu: int | None = None, times: int | None = None) -> int:
        """Let `call` return `code`, `times` times in each process that calls it; returns the fault's id."""
        return self._add_fault(call, code, gpu, times)

    def hang(self, call: str, gpu: int | None = None) -> int:
        """Let `call` block until healed; returns the fault's id."""
        return self._add_fault(call, None, gpu, None)

    def heal(self, call: str | None = None) -> None:
        """End the faults of `call`, or all faults; blocked calls go on."""
        with self._change() as draft:
            left = tuple(fault for fault in draft.now.faults if call is not None and fault.call != call)
            draft.now = replace(draft.now, faults=left)

    def driver(self, loaded: bool | Literal["mismatch"]) -> None:  # noqa: FBT001 (the contract of all callers)
        """Load or unload the kernel module, or make it one of another version than the library's."""
        value = Loaded.MISMATCH if loaded == "mismatch" else Loaded.YES if loaded else Loaded.NO
        with self._change() as draft:
            draft.now = replace(draft.now, driver=replace(draft.now.driver, loaded=value))

    def link(self, gpu: int, link: int, *, active: bool) -> None:
        """Bring one end of one NVLink up or down."""
        with self._change() as draft:
            found = [record for record in draft.now.links if (record.gpu, record.link) == (gpu, link)]
            if not found:
                raise LookupError(f"GPU {gpu} has no NVLink {link}")
            links = tuple(replace(x, active=active) if x is found[0] else x for x in draft.now.links)
            draft.now = replace(draft.now, links=links)

    def fabric(self, gpu: int, state: int, cluster: str = NO_CLUSTER, clique: int = 0, **more: int) -> None:
        """Set fabric membership; `cluster` is a UUID with or without dashes; `more`: fabric_status, fabric_health."""
        digits = cluster.replace("-", "").lower()
        self.update(gpu, fabric_state=state, fabric_cluster=digits, fabric_clique=clique, **more)

    def field(self, gpu: int, field: int, value: int | None) -> None:
        """Set what one field (NVML_FI_DEV_*) of the GPU says; None: what it said before anybody set it."""
        with self._change() as draft:
            draft.now.gpu(gpu)
            left = tuple(x for x in draft.now.fields if (x.gpu, x.field) != (gpu, field))
            draft.now = replace(draft.now, fields=left if value is None else (*left, FieldRecord(gpu, field, value)))

    def clocks(self, gpu: int, reasons: int) -> None:
        """Lower the GPU's clocks for these reasons (nvmlClocksEventReason* bits); 0: for none."""
        with self._change() as draft:
            draft.now.gpu(gpu)
            left = tuple(x for x in draft.now.clocks if x.gpu != gpu)
            draft.now = replace(draft.now, clocks=(*left, ClocksRecord(gpu, reasons)) if reasons else left)

    def compute_mode(self, gpu: int) -> int:
        """Give the GPU's nvmlComputeMode_t.

        It is in a file of its own beside the state file, since the library writes it: the mode is the driver's to keep,
        and a library in C is spared writing the state file.
        """
        try:
            return int(self._mode_file(gpu).read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0

    def set_compute_mode(self, gpu: int, mode: int) -> None:
        """Change it, as the library does when it is told to."""
        path = self._mode_file(gpu)
        new = path.with_name(f".{path.name}.{os.getpid()}")
        new.write_text(f"{mode}", encoding="ascii")
        new.replace(path)

    def _mode_file(self, gpu: int) -> Path:
        return self.path.with_name(f"{self.path.name}.mode.{gpu}")

    def update(self, gpu: int, **changes: Any) -> None:
        """Change fields of a GpuRecord."""
        with self._change() as draft:
            old = draft.now.gpu(gpu)
            gpus = tuple(replace(x, **changes) if x is old else x for x in draft.now.gpus)
            draft.now = replace(draft.now, gpus=gpus)

    def change(self, edit: Callable[[Snapshot], Snapshot]) -> Snapshot:
        """Apply any pure edit as one change, and return what was written. What `edit` raises changes nothing."""
        with self._change() as draft:
            draft.now = edit(draft.now)
        return draft.now

    def _add_fault(self, call: str, code: int | None, gpu: int | None, times: int | None) -> int:
        with self._change() as draft:
            if gpu is not None:
                draft.now.gpu(gpu)
            fault = FaultRecord(draft.number(), call, gpu, code, times)
            draft.now = replace(draft.now, faults=(*draft.now.faults, fault))
        return fault.id

    @contextmanager
    def _change(self) -> Iterator[_Draft]:
        with self._locked() as counter:
            draft = _Draft(self.read(self.path), counter)
            yield draft
            self._write(draft.now)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the lock file; gives its descriptor, whose contents are the last number handed out."""
        descriptor = os.open(
            self.path.with_name(self.path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def _write(self, snapshot: Snapshot) -> None:
        text = snapshot.render()
        try:
            last_change = self.path.stat().st_mtime_ns
        except FileNotFoundError:
            last_change = 0
        descriptor, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 (a descriptor, not a path)
                file.write(text)
            Path(name).chmod(0o644)
            now = max(time.time_ns(), last_change + 1)
            os.utime(name, ns=(now, now))
            Path(name).replace(self.path)
        except BaseException:
            with suppress(FileNotFoundError):
                Path(name).unlink()
            raise
        with self._changed:
            self._changed.notify_all()


class _Draft:
    """A change in the making."""

    def __init__(self, now: Snapshot, counter: int) -> None:
        self.now = now
        self._counter = counter

    def number(self) -> int:
        """Give a number above every one given before, also to faults that have been healed since."""
        last = int(os.pread(self._counter, 20, 0) or b"0")
        seen = [fault.id for fault in self.now.faults] + [event.seq for event in self.now.events]
        number = max([last, *seen]) + 1
        os.pwrite(self._counter, str(number).encode(), 0)
        return number
