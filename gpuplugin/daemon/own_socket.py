"""Sockets for our own programs on this node (probes, `gpuplugin explain`), in a folder that nobody else may enter."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

log = structlog.get_logger()

FOLDER_MODE, SOCKET_MODE = 0o700, 0o600


class OwnSocket:
    """One of them. answer: called with each connection, and closes it · without: what then does not work."""

    def __init__(self, path: Path, answer: Answer, without: str) -> None:
        self._path, self._answer, self._without = path, answer, without

    async def serve(self) -> None:
        """Serve until cancelled. A socket that cannot be had is an error in the log."""
        try:
            if not self._path.parent.is_dir():
                self._path.parent.mkdir(mode=FOLDER_MODE)
            self._path.unlink(missing_ok=True)
            server = await asyncio.start_unix_server(self._answer, self._path)
            self._path.chmod(SOCKET_MODE)
        except OSError as error:
            log.error("socket cannot be had", path=str(self._path), reason=str(error), without=self._without)  # noqa: TRY400
            return
        async with server:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                with suppress(OSError):
                    self._path.unlink()
