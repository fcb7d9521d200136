"""What is written outward and must stay so: written when it changes, looked at now and then, never in a hurry.

What others do to it in between is mended at the next look. A node on which nothing happens writes nothing.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import structlog

from gpuplugin.errors import KubeError
from gpuplugin.kube.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = structlog.get_logger()

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 300.0
_SPREAD = (0.9, 1.1)


async def keep_up(
    what: str, look: Callable[[], Awaitable[bool]], changed: asyncio.Event, every: float, *, once: bool = False
) -> None:
    """Call `look` at first, when `changed` is set and every so many seconds; less and less often while it fails.

    what: for the log · look: brings it about; False where it cannot yet, since something is not known · once: end when
    it has. Failures are KubeError's kinds and OSError; each text of one is told once in a row. every: seconds, varied
    by a tenth so that the nodes of a cluster do not ask in step.
    """
    pauses, trouble = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS), ""
    while True:
        changed.clear()
        pause = every * random.uniform(*_SPREAD)  # noqa: S311 - spreads load
        try:
            done = await look()
        except (KubeError, OSError) as error:
            pause = pauses.next()
            if str(error) != trouble:
                trouble = str(error)
                log.warning("cannot be kept up: trying again", what=what, reason=trouble)
        else:
            pauses.reset()
            if trouble:
                trouble = ""
                log.info("can be kept up again", what=what)
            if done and once:
                return
        try:
            async with asyncio.timeout(pause):
                await changed.wait()
        except TimeoutError:
            continue
