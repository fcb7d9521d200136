"""The daemon that the demo shows: a process of its own, as on a node, that ends with the demo however that ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpuplugin.config.table import CONFIG_FILE, SETTINGS
from gpuplugin.errors import DemoFailed

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping
    from pathlib import Path
    from typing import Self

STOP_SECONDS = 5.0
TAIL_LINES = 15


class DemoDaemon:
    """``gpuplugin run`` on a simulated machine, with everything it touches below `folder`. Use it as an async context.

    settings: flags of `gpuplugin run`, without dashes.
    """

    def __init__(self, machine: str, folder: Path, settings: Mapping[str, str]) -> None:
        self.host, self._log = folder / "host", folder / "daemon.log"
        flags = {"simulate": machine, "simulate-folder": str(self.host), "log-format": "json", **settings}
        self._command = [sys.executable, "-m", "gpuplugin", "run", *(f"--{name}={flags[name]}" for name in flags)]
        self._process: asyncio.subprocess.Process | None = None
        self.started = 0.0

    async def __aenter__(self) -> Self:
        # Settings of the person's own shell are not the demo's; a session of its own keeps Ctrl-C from the daemon.
        with self._log.open("wb") as log:
            self.started = time.monotonic()
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env=_without_settings(os.environ),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    async def __aexit__(self, *exception: object) -> None:
        process = self._running
        if process.returncode is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.shield(self.stop())
        if process.returncode is None:
            process.kill()
            await process.wait()

    @property
    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError("the daemon has not been started")
        return self._process

    async def stop(self) -> int:
        """End it as kubelet would end its pod; returns its exit status. TimeoutError when it does not end."""
        with contextlib.suppress(ProcessLookupError):
            self._running.send_signal(signal.SIGTERM)
        async with asyncio.timeout(STOP_SECONDS):
            return await self._running.wait()

    async def during(self, step: str, work: Coroutine[Any, Any, None]) -> float:
        """Wait for `work` and return how long it took, in milliseconds.

        Raises DemoFailed, with the end of the daemon's log, when the daemon ends meanwhile or `work` times out.
        """
        began = time.monotonic()
        waiting, ended = asyncio.ensure_future(work), asyncio.ensure_future(self._running.wait())
        try:
            await asyncio.wait({waiting, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise DemoFailed(step, f"the daemon ended with status {ended.result()}", self.tail())
            await waiting
        except TimeoutError as error:
            raise DemoFailed(step, str(error), self.tail()) from None
        finally:
            waiting.cancel()
            ended.cancel()
        return (time.monotonic() - began) * 1000

    def when(self, event: str) -> float | None:
        """When the daemon's log first told of an event, in seconds since the epoch; None when it has not."""
        for line in self._log.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                if entry["event"] == event:
                    return datetime.fromisoformat(entry["timestamp"]).timestamp()
        return None

    def tail(self) -> str:
        """The last lines of the daemon's log."""
        return "\n".join(list(self._lines())[-TAIL_LINES:])

    def _lines(self) -> Iterator[str]:
        for line in self._log.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
                level, event = entry.pop("level"), entry.pop("event")
            except (ValueError, KeyError, AttributeError):
                yield line
            else:
                entry.pop("timestamp", None)
                yield f"{level}: {event}  " + " ".join(f"{key}={value}" for key, value in entry.items())


def _without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    names = {name for setting in (*SETTINGS, CONFIG_FILE) for name in setting.env}
    return {name: value for name, value in environ.items() if name not in names and not name.startswith("GPUPLUGIN_")}
