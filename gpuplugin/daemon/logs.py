"""One structured line an event, on standard error: JSON for machines, text for a person at a terminal.

error: something is broken and a person must act · warning: a device, a pod or a request was refused, with the reason ·
info: what changed (registered, allocated, recovered) · debug: why, step by step. Nothing is said twice while it stays
the same.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, Literal, TextIO

import structlog

if TYPE_CHECKING:
    from collections.abc import MutableMapping


def configure(level: str, style: Literal["auto", "json", "text"], stream: TextIO | None = None) -> None:
    """Set up structlog for the process. style: ``auto`` is text on a terminal and JSON elsewhere."""
    out = stream if stream is not None else sys.stderr
    text = style == "text" or (style == "auto" and out.isatty())
    renderer: Any = _text(colors=out.isatty()) if text else structlog.processors.JSONRenderer(default=str)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _plain_values,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=True,
    )


def _text(*, colors: bool) -> structlog.dev.ConsoleRenderer:
    return structlog.dev.ConsoleRenderer(
        colors=colors, pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
    )


def _plain_values(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {key: str(value) if isinstance(value, Exception) else value for key, value in event.items()}
