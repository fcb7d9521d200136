"""The socket on which `gpuplugin explain` and `gpuplugin report` ask; what answers is imported with the first."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gpuplugin.daemon.own_socket import OwnSocket

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuplugin.daemon.answers import Answers

SOCKET: Final = "explain.sock"
"""Its name, beside the socket for probes (paths.status)."""
QUESTION_SECONDS: Final = 5.0


async def serve(path: Path, answers: Callable[[], Answers]) -> None:
    """Answer each line with one, a connection a line, until cancelled. answers: asked for with the first."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, TimeoutError, ValueError):  # ValueError: longer than any question is
            async with asyncio.timeout(QUESTION_SECONDS):
                line = await reader.readline()
            writer.write(await answers().reply(line) + b"\n")
            await writer.drain()
        writer.close()

    await OwnSocket(path, answer, "nothing can be explained").serve()
