"""Reasons to look again, gathered: ten of them while one look is under way make one more look, not ten."""

from __future__ import annotations

import asyncio


class Wakeup:
    """Collects reasons from anywhere on the loop for the one who waits."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._reasons: dict[str, None] = {}

    def __call__(self, reason: str) -> None:
        """Ask for a look; `reason` is told in the log."""
        self._reasons[reason] = None
        self._event.set()

    async def wait(self, seconds: float | None = None) -> tuple[str, ...]:
        """Return the reasons so far, oldest first, as soon as there is one; () when `seconds` passed without."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return ()
        reasons = tuple(self._reasons)
        self._reasons.clear()
        self._event.clear()
        return reasons
