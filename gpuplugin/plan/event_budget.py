"""How many Events a node may write: each thing once in a while, and no more in all than etcd can bear of many nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

AGAIN_SECONDS: Final = 600.0
BURST: Final = 20
REFILL_SECONDS: Final = 60.0


class EventBudget:
    """Says which may be written."""

    def __init__(self) -> None:
        self._left_out = 0
        self._tokens = float(BURST)
        self._at = 0.0
        self._told: dict[Hashable, float] = {}

    def allows(self, what: Hashable, now: float) -> bool:
        """Whether this may be written now (monotonic seconds); it then counts as written."""
        self._tokens = min(BURST, self._tokens + (now - self._at) / REFILL_SECONDS)
        self._at = now
        self._told = {known: at for known, at in self._told.items() if now - at < AGAIN_SECONDS}
        if what in self._told or self._tokens < 1:
            self._left_out += 1
            return False
        self._tokens -= 1
        self._told[what] = now
        return True

    def take_left_out(self) -> int:
        """How many could not be written since this was last asked."""
        count, self._left_out = self._left_out, 0
        return count
