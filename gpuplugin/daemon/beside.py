"""What runs beside the handing out of GPUs, and must never end it.

An error that nobody thought of, in what writes labels or tells of faults, would otherwise end the daemon, and with it
what pods rely on. It is told with its trace, being a fault of ours, and the part begins again.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog

from gpuplugin.kube.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = structlog.get_logger()

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 300.0


async def keep_running(part: str, run: Callable[[], Awaitable[None]]) -> None:
    """Run it until it ends by itself or is cancelled; after an error it begins again.

    The pause before that is longer each time, unless it has worked for a while. part: for the log · run: can be called
    again after it has failed.
    """
    pauses = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
    while True:
        began = time.monotonic()
        try:
            await run()
        except Exception:  # whatever it is, it is told, and GPUs are handed out meanwhile
            log.exception("a part has failed: starting it again", part=part)
        else:
            return
        if time.monotonic() - began > LONGEST_PAUSE_SECONDS:
            pauses.reset()
        await asyncio.sleep(pauses.next())
