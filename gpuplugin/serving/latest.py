"""A value that many readers follow: each sees the newest one at once and every change after it.

Health is a level, so a slow reader may skip a value that was replaced before it looked; it can never miss the last one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

T = TypeVar("T")


class Latest(Generic[T]):
    """Holds the newest value. All of it belongs to one event loop."""

    def __init__(self, value: T) -> None:
        self._value = value
        self._changed = asyncio.Event()
        self.followers = 0

    @property
    def value(self) -> T:
        """The newest value."""
        return self._value

    def set(self, value: T) -> None:
        """Replace the value and wake every follower."""
        self._value = value
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self) -> AsyncGenerator[T, None]:
        """Yield the value now and after each change, until the reader stops."""
        self.followers += 1
        try:
            while True:
                changed, value = self._changed, self._value
                yield value
                await changed.wait()
        finally:
            self.followers -= 1
