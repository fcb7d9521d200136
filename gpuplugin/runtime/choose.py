"""Finds the runtime to look at: by the answer at a CRI socket, or by its own program where it was named.

Never by folders or files that exist: a machine may have the configuration of a runtime that it no longer runs.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuplugin.errors import RuntimeUnreachable
from gpuplugin.runtime.cri import RuntimeStatus, runtime_status
from gpuplugin.runtime.layout import SOCKETS, Chosen
from gpuplugin.runtime.support import Runtime, Version, version

if TYPE_CHECKING:
    from gpuplugin.runtime.files import HostFiles

_PROGRAMS: Final = {Runtime.DOCKER: ("dockerd", "docker"), Runtime.PODMAN: ("podman",)}
_VERSION_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a runtime said, and at which socket, by its path on the host."""

    socket: Path
    status: RuntimeStatus


def by_socket(files: HostFiles, runtime: Runtime | None, socket: Path | None) -> list[Answer]:
    """Ask one socket, or all usual ones of a runtime, or of any.

    Raises RuntimeUnreachable when none answers, with what each said.
    """
    tried = [socket] if socket else [path for path, of in SOCKETS.items() if runtime in (None, of)]
    return asyncio.run(_ask(files, tried))


def by_program(files: HostFiles, runtime: Runtime) -> Version | None:
    """The release of a runtime without CRI, as its program says; None without one, or where the root is mounted."""
    if files.root != Path("/"):
        return None
    for name in _PROGRAMS[runtime]:
        program = shutil.which(name)
        if program is None:
            continue
        try:
            said = subprocess.run(  # noqa: S603 -- the program that was named, found on PATH
                [program, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if runtime in said.stdout.lower() and (found := version(said.stdout)):  # `docker` may be podman's stand-in
            return found
    return None


def chosen(answer: Answer, config: Path | None) -> Chosen | None:
    """The runtime that answered, as one to look at; None where it is none of those that we know."""
    status = answer.status
    return Chosen(status.runtime, status.release, answer.socket, config) if status.runtime else None


async def _ask(files: HostFiles, sockets: list[Path]) -> list[Answer]:
    answers, refusals = [], []
    for socket in sockets:
        try:
            here = files.here(socket)
            if here.exists():
                answers.append(Answer(socket, await runtime_status(here)))
        except PermissionError:
            refusals.append(RuntimeUnreachable([socket], "permission denied", "run as root"))
        except RuntimeUnreachable as error:
            refusals.append(error)
    if answers:
        return answers
    if refusals:
        raise refusals[0]
    advice = "name its CRI socket by --socket; Docker and podman have none, name them by --runtime"
    raise RuntimeUnreachable(sockets, "no such socket", advice)
