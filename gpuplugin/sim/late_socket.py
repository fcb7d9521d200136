"""A socket that is there before anybody listens on it, as a kubelet's is when it starts slowly.

A plugin that is woken by the socket's appearance and tries once, too early, must not wait long for its next try. The
socket stays the same file throughout, which a server that binds later could not give.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class LateSocket:
    """A socket that exists at once and accepts later; what then comes is passed to the server behind, byte for byte."""

    def __init__(self, server: asyncio.Server, opening: asyncio.TimerHandle) -> None:
        self._server, self._opening = server, opening
        self._starting: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, path: Path, behind: Path, seconds: float) -> LateSocket:
        """Bind now, listen after `seconds`."""

        async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            back_reader, back_writer = await asyncio.open_unix_connection(behind)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, back_writer))
                both.create_task(_pump(back_reader, writer))

        server = await asyncio.start_unix_server(joined, path, start_serving=False)
        gate: LateSocket

        def begin() -> None:
            gate._starting = asyncio.ensure_future(server.start_serving())

        gate = cls(server, asyncio.get_running_loop().call_later(seconds, begin))
        return gate

    async def close(self) -> None:
        """Stop accepting, and cut what was let through."""
        self._opening.cancel()
        self._server.close()
        if hasattr(self._server, "close_clients"):  # Python 3.13; before, closing does not wait for clients
            self._server.close_clients()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
