"""The driver's own nvidia-cuda-mps-control, run as a program: to start a control daemon, and to give one commands.

The image has no driver in it. Where NVIDIA's runtime has put the program on the PATH it is run from there; otherwise
it is the one of the driver's root, run with that as its root folder, so that it finds its own libraries. The folders
for MPS must be at the same path in both.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from gpuplugin.errors import MpsControlFailed
from gpuplugin.mps.processes import DEVICES, LOGS, NAME, PIPES

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Awaitable

    from gpuplugin.discovery.places import Place
    from gpuplugin.mps.folders import Folders
    from gpuplugin.plan.mps import MpsGroup

T = TypeVar("T")

FOLDERS: Final = ("usr/bin", "usr/sbin", "usr/local/bin", "bin", "sbin", "opt/bin", "run/current-system/sw/bin")
ENTER: Final = "import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); os.execv(sys.argv[2], sys.argv[2:])"
ANSWER_SECONDS: Final = 10.0
INHERITED: Final = ("PATH", "HOME", "LD_LIBRARY_PATH")


class ControlProgram:
    """Runs the program. command: how it is started, up to its own arguments."""

    def __init__(self, command: tuple[str, ...], environment: dict[str, str] | None = None) -> None:
        self._command = command
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        self._environment = inherited | (environment or {})

    @classmethod
    def find(cls, driver_root: Place) -> ControlProgram:
        """Find it on the PATH or in the driver's root. Raises MpsControlFailed."""
        if path := shutil.which(NAME):
            return cls((path,))
        for folder in FOLDERS:
            found = driver_root.resolve(f"{folder}/{NAME}")
            if found is None:
                continue
            if driver_root.here == Path("/"):
                return cls((found,))
            return cls((sys.executable, "-I", "-S", "-c", ENTER, str(driver_root.here), found))
        raise MpsControlFailed(
            "look for it", f"no {NAME} on the PATH or in {driver_root.here}: it comes with the driver's compute part"
        )

    async def start(self, group: MpsGroup, folders: Folders, keep: int) -> None:
        """Start the control daemon of a group; back when it can be reached. Raises MpsControlFailed.

        keep: a descriptor for it to inherit.
        """
        told = folders.log / "start.log"  # no pipe: a daemon that keeps its end open would have us wait for ever
        with told.open("wb") as output:
            process = await self._begin(
                ("-d",), folders, {DEVICES: ",".join(group.gpus)}, (keep,), asyncio.subprocess.DEVNULL, output.fileno()
            )
            await _finish(process, process.wait(), f"{NAME} -d")
        if process.returncode:
            answer = told.read_text(encoding="utf-8", errors="replace").strip()
            raise MpsControlFailed(f"{NAME} -d", answer or f"exit status {process.returncode}")

    async def ask(self, folders: Folders, command: str) -> str:
        """Give the control daemon of these folders a command; returns what it says. Raises MpsControlFailed."""
        pipe = asyncio.subprocess.PIPE
        process = await self._begin((), folders, {}, (), pipe, pipe)
        said, _ = await _finish(process, process.communicate(f"{command}\n".encode()), command)
        answer = said.decode(errors="replace").strip()
        if process.returncode:
            raise MpsControlFailed(command, answer or f"exit status {process.returncode}")
        return answer

    async def clients(self, folders: Folders) -> int:
        """Count the clients that are connected. Raises MpsControlFailed."""
        servers = (await self.ask(folders, "get_server_list")).split()
        lists = [await self.ask(folders, f"get_client_list {server}") for server in servers if server.isdigit()]
        return sum(word.isdigit() for text in lists for word in text.split())

    async def _begin(
        self,
        arguments: tuple[str, ...],
        folders: Folders,
        environment: dict[str, str],
        inherited: tuple[int, ...],
        stdin: int,
        output: int,
    ) -> Process:
        try:
            return await asyncio.create_subprocess_exec(
                *self._command,
                *arguments,
                env=self._environment | {PIPES: str(folders.pipe), LOGS: str(folders.log)} | environment,
                pass_fds=inherited,
                stdin=stdin,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as error:
            raise MpsControlFailed(" ".join((NAME, *arguments)), str(error)) from error


async def _finish(process: Process, awaited: Awaitable[T], what: str) -> T:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await awaited
    except TimeoutError:
        raise MpsControlFailed(what, f"no answer within {ANSWER_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
