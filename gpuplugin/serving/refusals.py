"""Our own refusals, the newest of them, in memory alone: `gpuplugin explain` and `report` tell of them."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from structlog.contextvars import get_contextvars

from gpuplugin.model.refusals import Refusal

KEPT: Final = 64

_recent: Final[deque[Refusal]] = deque(maxlen=KEPT)


def keep(call: str, of: str, reason: str) -> None:
    """Keep one. Kubelet tries a claim again and again: the same once more takes the place of the one before."""
    same = next((old for old in _recent if (old.call, old.of, old.reason) == (call, of, reason)), None)
    if same is not None:
        _recent.remove(same)
    _recent.append(Refusal(time.time(), int(get_contextvars().get("operation", 0)), call, of, reason))


def recent() -> tuple[Refusal, ...]:
    """All that are kept, the oldest first."""
    return tuple(_recent)
