"""Looking at things regularly, and all in one moment: each wake-up of an idle daemon costs more than most looks."""

from __future__ import annotations

import asyncio
from typing import Final

_EARLY: Final = 0.001
"""Seconds by which a timer may fire before its time."""


async def next_beat(seconds: float) -> None:
    """Sleep until the loop's clock is at a multiple of `seconds`: so long, or any part of it the first time.

    Whoever waits for the same beat, or for one that fits into it, is woken with the others.
    """
    now = asyncio.get_running_loop().time()
    await asyncio.sleep(seconds - (now + _EARLY) % seconds + _EARLY)
