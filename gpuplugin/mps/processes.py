"""Control daemons that live on this machine, found in /proc: what it says holds whoever started them.

A file of ours would be wrong after every crash, theirs as well (a number in it may be another process's by now). The
arguments and the environment that a daemon was started with are the kernel's to keep.

But anybody may start a process with any arguments and environment, and the host's /proc shows those of every pod. So
only processes of our own PID namespace count, which a pod's are not unless it was given the host's.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuplugin.model.ids import GpuUuid, ResourceName
from gpuplugin.mps.decide import Running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

NAME: Final = "nvidia-cuda-mps-control"
PIPES, LOGS, DEVICES = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "CUDA_VISIBLE_DEVICES"
PID_FILE: Final = "nvidia-cuda-mps-control.pid"
DAEMON_ARGUMENTS: Final = frozenset({b"-d", b"-f"})
"""With one of these it is a daemon; without, a command to one, with the same environment."""

_RESOURCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


def running(proc: Path, root: str) -> dict[ResourceName, Running]:
    """Find the control daemons whose pipes are in folders below `root`, by resource."""
    found: dict[ResourceName, list[Running]] = {}
    for one in _daemons(proc, root):
        found.setdefault(one.resource, []).append(one)
    return {resource: _the_one(several, Path(root, resource)) for resource, several in found.items()}


def _daemons(proc: Path, root: str) -> Iterator[Running]:
    ours = _namespace(proc / "self")
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
            if not _is_daemon(command) or _namespace(folder) != ours:
                continue
            environment = _environment((folder / "environ").read_bytes())
        except OSError:  # it has ended
            continue
        pipes = environment.get(PIPES, "").removesuffix("/")
        resource = ResourceName(pipes.removeprefix(f"{root}/").removesuffix("/pipe"))
        if pipes == f"{root}/{resource}/pipe" and _RESOURCE.fullmatch(resource):
            devices = environment.get(DEVICES)
            gpus = frozenset(map(GpuUuid, devices.split(","))) if devices else None
            yield Running(resource, int(folder.name), gpus)


def _is_daemon(command: list[bytes]) -> bool:
    return command[0].endswith(NAME.encode()) and not DAEMON_ARGUMENTS.isdisjoint(command)


def _namespace(process: Path) -> str | None:
    """The PID namespace of a process; None where it is not told."""
    try:
        return str((process / "ns/pid").readlink())
    except OSError:
        return None


def _environment(text: bytes) -> Mapping[str, str]:
    pairs = (entry.decode(errors="replace").partition("=") for entry in text.split(b"\0"))
    return {name: value for name, _, value in pairs}


def _the_one(several: list[Running], folder: Path) -> Running:
    """Of a daemon and the process that is just starting it, give the daemon."""
    told = ""
    with suppress(OSError):
        told = (folder / "pipe" / PID_FILE).read_text(encoding="ascii", errors="replace").strip()
    return max(several, key=lambda one: (str(one.pid) == told, one.pid))


class Process:
    """A process that need not be our child. on_end: called once, on this loop, when it has ended."""

    def __init__(self, pid: int, on_end: Callable[[], object]) -> None:
        """Raise ProcessLookupError where it has ended already."""
        self.pid = pid
        self.ended = asyncio.Event()
        self._on_end = on_end
        self._descriptor = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._descriptor, self._has_ended)

    async def end(self, patience_seconds: float) -> None:
        """Wait for its end, and bring it about when it does not come by itself."""
        for how in (None, signal.SIGTERM, signal.SIGKILL):
            if how is not None and not self.ended.is_set():
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._descriptor, how)
            with suppress(TimeoutError):
                async with asyncio.timeout(patience_seconds):
                    await self.ended.wait()
                    return

    def forget(self) -> None:
        """Take no more notice of it; it lives on."""
        if not self.ended.is_set():
            self._close()

    def _has_ended(self) -> None:
        self._close()
        self.ended.set()
        self._on_end()

    def _close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
