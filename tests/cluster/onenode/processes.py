"""Starts the cluster's programs, and knows them again in a later session, whatever happened to the one before."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_PATIENCE = 10.0  # seconds between a signal and the next, harder one


@dataclass(frozen=True)
class Processes:
    """Programs by name: a file in `run` holds each one's number and start time, one in `logs` its output."""

    run: Path
    logs: Path
    _children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def pid(self, name: str) -> int | None:
        """The number of the program, if it still runs and is no other program with its number."""
        try:
            number, started = (self.run / name).read_text().split()
        except (OSError, ValueError):
            return None
        return int(number) if _start_time(int(number)) == started else None

    def start(self, name: str, command: Sequence[str], path: str) -> None:
        """Start a program that isn't running, in a session of its own: it outlives this process. `path` is its PATH."""
        if self.pid(name) is not None:
            return
        if (ended := self._children.pop(name, None)) is not None:
            ended.wait()  # it has ended by itself, and nobody has asked after it yet
        self.run.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / name).open("ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PATH": path},
                cwd=self.run,
            )
        self._children[name] = child
        (self.run / name).write_text(f"{child.pid} {_start_time(child.pid)}")

    def stop(self, *names: str, how: signal.Signals = signal.SIGTERM) -> None:
        """Signal programs and wait until they have ended, with SIGKILL where they don't within ten seconds."""
        kill([pid for name in names if (pid := self.pid(name)) is not None], how)
        for name in names:
            if (child := self._children.pop(name, None)) is not None:
                child.wait()
            (self.run / name).unlink(missing_ok=True)

    def tail(self, name: str, lines: int = 15) -> str:
        """The last lines of a program's log; empty where it has none."""
        try:
            return "\n".join((self.logs / name).read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""


def kill(pids: Iterable[int], how: signal.Signals = signal.SIGKILL) -> None:
    """Signal processes and wait until they have ended; SIGKILL follows for those that `how` did not end."""
    waiting = list(pids)
    for number in dict.fromkeys((how, signal.SIGKILL)):
        waiting = [pid for pid in waiting if is_alive(pid)]
        for pid in waiting:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        end = time.monotonic() + _PATIENCE
        while any(map(is_alive, waiting)) and time.monotonic() < end:
            time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and waits for its parent doesn't."""
    fields = _stat(pid)
    return bool(fields) and fields[0] != "Z"


def _start_time(pid: int) -> str:
    fields = _stat(pid)
    return fields[19] if fields and fields[0] != "Z" else ""


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name: state first, start time twentieth."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
