"""What every simulated NVML call goes through: initialised or not, handles, faults, lost GPUs.

The calls themselves are plain functions in the ``nvml_*_calls`` modules, entered in CALLS by their C names; they get a
`Look`, which is the state file at one moment, and raise `Failed` for every code but success.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuplugin.errors import MachineFileError
from gpuplugin.sim.abi import Code, Failed, handle
from gpuplugin.sim.snapshot import Loaded
from gpuplugin.sim.state import State, changed

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuplugin.sim.machine import Machine
    from gpuplugin.sim.snapshot import GpuRecord, MigRecord, Snapshot

POLL_SECONDS = 0.06
"""How soon a wait notices what another process wrote; what this process wrote wakes it at once.

Waking up is nearly all it costs, about 0.1 ms of CPU, so a shorter time would show in measurements of the daemon.
"""

CALLS: dict[str, Callable[..., None]] = {}
ALWAYS = {"nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlErrorString"}
_VERSION = re.compile(r"_v\d+$")


class Key(NamedTuple):
    """What a handle stands for: a GPU, one of its GPU instances, a compute instance, a MIG device or an event set."""

    kind: str
    uuid: str
    gi: int = -1
    ci: int = -1


@dataclass(slots=True)
class EventSet:
    """What an event set has delivered, whom it listens to (by UUID), and what waits on it return once it is no more."""

    delivered: int
    gpus: set[str]
    ended: Code | None = None


class Session:
    """One process's use of the library."""

    def __init__(self, path: Path, machine: Machine | None) -> None:
        self.path = str(path)
        self.machine = machine
        self.changed = changed(path)
        self.users = 0
        self.event_sets: dict[int, EventSet] = {}
        self.samples: dict[int, Key | None] = {}
        self._numbers = itertools.count(0x1000, 0x10)
        self._by_handle: dict[int, Key] = {}
        self._by_key: dict[Key, int] = {}
        self._fired: Counter[int] = Counter()
        self._lock = Lock()
        self._seen: tuple[tuple[int, int, int], Snapshot] | None = None

    def now(self) -> Snapshot:
        """Give the state, read again only when the file has changed."""
        try:
            stat = os.stat(self.path)  # noqa: PTH116 (a third of Path.stat's cost, in every call)
            identity = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if self._seen is None or self._seen[0] != identity:
                self._seen = (identity, State.read(Path(self.path)))
        except (OSError, MachineFileError):
            raise Failed(Code.UNKNOWN) from None
        return self._seen[1]

    def begin(self) -> None:
        """Initialise, or count one more user. DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH."""
        loaded = self.now().driver.loaded
        if loaded is not Loaded.YES:
            raise Failed(Code.DRIVER_NOT_LOADED if loaded is Loaded.NO else Code.LIB_RM_VERSION_MISMATCH)
        with self._lock:
            self.users += 1

    def end(self) -> None:
        """Count one user less; after the last, no handle is valid and every wait returns."""
        with self.changed, self._lock:
            self.users -= 1
            if self.users == 0:
                self._by_handle.clear()
                self._by_key.clear()
                for events in self.event_sets.values():
                    events.ended = Code.UNINITIALIZED
                self.event_sets.clear()
                self.samples.clear()
            self.changed.notify_all()

    def handle_of(self, key: Key) -> int:
        """Give the handle of something, the same one each time until the last user ends."""
        with self._lock:
            if key not in self._by_key:
                number = next(self._numbers)
                self._by_key[key], self._by_handle[number] = number, key
            return self._by_key[key]

    def new_number(self) -> int:
        """Give a number that no other call has been given."""
        return next(self._numbers)

    def key_of(self, value: Any, *kinds: str) -> Key:
        """Give what a handle argument stands for. INVALID_ARGUMENT when it is none of `kinds` now."""
        key = self._by_handle.get(handle(value))
        if key is None or key.kind not in kinds:
            raise Failed(Code.INVALID_ARGUMENT)
        return key

    def take_fault(self, call: str, gpu: int | None) -> None:
        """Let `call` fail or hang when a fault says so."""
        for fault in self.now().faults:
            if not _is_meant(fault.call, call) or fault.gpu not in {None, gpu}:
                continue
            if fault.code is None:
                self._hang(fault.id)
                continue
            with self._lock:
                fires = fault.times is None or self._fired[fault.id] < fault.times
                self._fired[fault.id] += 1
            if fires:
                raise Failed(fault.code)

    def _hang(self, fault: int) -> None:
        with self.changed:
            while any(each.id == fault for each in self.now().faults):
                self.changed.wait(POLL_SECONDS)


@dataclass(frozen=True, slots=True)
class Look:
    """One call under way: its C name, and the state when it began."""

    session: Session
    call: str
    now: Snapshot

    def gpu_by_uuid(self, uuid: str) -> GpuRecord:
        """GPU_IS_LOST when it has been unplugged since its handle was given."""
        for gpu in self.now.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise Failed(Code.GPU_IS_LOST)

    def reach(self, gpu: GpuRecord) -> None:
        """Talk to a GPU: the call's faults for it, then GPU_IS_LOST."""
        self.session.take_fault(self.call, gpu.index)
        if gpu.lost:
            raise Failed(Code.GPU_IS_LOST)

    def instances(self, gpu: GpuRecord) -> list[MigRecord]:
        """Give the MIG devices of a GPU, by slot."""
        return sorted((record for record in self.now.migs if record.gpu == gpu.index), key=lambda record: record.slot)


@dataclass(frozen=True, slots=True)
class Device:
    """What a device handle stands for: a GPU, or a MIG device of it."""

    gpu: GpuRecord
    mig: MigRecord | None = None


def library_call(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Enter ``function(look, *arguments)`` under its C names. Faults that name a GPU do not concern it."""

    def enter(function: Callable[..., None]) -> Callable[..., None]:
        def call(look: Look, *arguments: Any) -> None:
            look.session.take_fault(look.call, None)
            function(look, *arguments)

        CALLS.update(dict.fromkeys(names, call))
        return function

    return enter


def device_call(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Enter ``function(look, device, *arguments)``, whose first C argument is the handle of a GPU or a MIG device."""

    def enter(function: Callable[..., None]) -> Callable[..., None]:
        def call(look: Look, value: Any, *arguments: Any) -> None:
            device = device_of(look, value)
            look.reach(device.gpu)
            function(look, device, *arguments)

        CALLS.update(dict.fromkeys(names, call))
        return function

    return enter


def gpu_call(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Enter ``function(look, gpu, *arguments)``; a MIG device's handle is refused with INVALID_ARGUMENT."""

    def enter(function: Callable[..., None]) -> Callable[..., None]:
        @device_call(*names)
        def call(look: Look, device: Device, *arguments: Any) -> None:
            if device.mig is not None:
                raise Failed(Code.INVALID_ARGUMENT)
            function(look, device.gpu, *arguments)

        return function

    return enter


def mig_call(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Enter ``function(look, mig, *arguments)``; a whole GPU's handle is refused with INVALID_ARGUMENT."""

    def enter(function: Callable[..., None]) -> Callable[..., None]:
        @device_call(*names)
        def call(look: Look, device: Device, *arguments: Any) -> None:
            if device.mig is None:
                raise Failed(Code.INVALID_ARGUMENT)
            function(look, device.mig, *arguments)

        return function

    return enter


def device_of(look: Look, value: Any) -> Device:
    """Give what a device handle stands for. NOT_FOUND when the MIG device has been destroyed since."""
    key = look.session.key_of(value, "gpu", "mig")
    if key.kind == "gpu":
        return Device(look.gpu_by_uuid(key.uuid))
    for record in look.now.migs:
        if record.uuid == key.uuid:
            return Device(look.now.gpu(record.gpu), record)
    raise Failed(Code.NOT_FOUND)


def _is_meant(fault: str, call: str) -> bool:
    """A fault of one version of a call is one of all its versions, and nvmlInitWithFlags counts as nvmlInit."""
    return _plain(fault) == _plain(call)


def _plain(call: str) -> str:
    return "nvmlInit" if call == "nvmlInitWithFlags" else _VERSION.sub("", call)
