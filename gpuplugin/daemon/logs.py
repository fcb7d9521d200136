"""One structured line an event, on standard error: JSON for machines, text for a person at a terminal.

What belongs to which level, and what every line must have, is in docs/logging.md; tests/daemon/test_log_policy.py holds
the code to it. The level can be changed while we run, so it is looked up with each line and not built into the loggers.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

import structlog

from gpuplugin.daemon import log_ring

if TYPE_CHECKING:
    from collections.abc import MutableMapping

log = structlog.get_logger()

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


class _Threshold:
    """The least severe level that is written: the configured one, or debug while somebody looks for something."""

    def __init__(self) -> None:
        self.configured = "info"
        self.debugging = False

    def __call__(self, _: object, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Drop a line that is not severe enough."""
        if LEVELS.get(level, LEVELS["error"]) < LEVELS[self.level]:
            raise structlog.DropEvent
        return event

    @property
    def level(self) -> str:
        return "debug" if self.debugging else self.configured


_threshold = _Threshold()


def configure(level: str, style: Literal["auto", "json", "text"], stream: TextIO | None = None) -> None:
    """Set up structlog for the process. style: ``auto`` is text on a terminal and JSON elsewhere."""
    out = stream if stream is not None else sys.stderr
    text = style == "text" or (style == "auto" and out.isatty())
    renderer: Any = _text(colors=out.isatty()) if text else structlog.processors.JSONRenderer(default=str)
    _threshold.configured, _threshold.debugging = level, False
    structlog.configure(
        processors=[
            _threshold,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _plain_values,
            log_ring.keep,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=True,
    )


def set_level(level: str) -> None:
    """Write from this level on, also while debugging has been asked for, which this ends."""
    _threshold.configured, _threshold.debugging = level, False


def toggle_debug() -> None:
    """Write everything, or, the next time, what is configured again. Says so in either case."""
    _threshold.debugging = not _threshold.debugging
    log.warning("log level", least=_threshold.level, reason="SIGUSR1")


def _text(*, colors: bool) -> structlog.dev.ConsoleRenderer:
    return structlog.dev.ConsoleRenderer(
        colors=colors, pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
    )


def _plain_values(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {key: str(value) if isinstance(value, Exception) else value for key, value in event.items()}
