"""The newest lines of the log, kept for `gpuplugin report`: a container's log is often gone when it is wanted."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import MutableMapping

LINES: Final = 500
"""About 200 KiB, with lines as long as they usually are."""

recent: Final[deque[dict[str, Any]]] = deque(maxlen=LINES)


def keep(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Keep a line, as a processor of structlog's; it goes on as it came."""
    recent.append(dict(event))
    return event
