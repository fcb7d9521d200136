"""When claims are served: while they may have GPUs, and after that for as long as kubelet may need us to end them.

Both follow the configuration in force, which may change at any time. What serves is imported when it is first needed.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from gpuplugin.daemon.claims_state import ClaimsState
from gpuplugin.serving.pace import next_beat

if TYPE_CHECKING:
    from pathlib import Path

    from gpuplugin.config import Config
    from gpuplugin.daemon.dra import Claims
    from gpuplugin.daemon.node import Node

log = structlog.get_logger()

LOOK_SECONDS = 1.0

_SOON = "they are about to be served"


class ClaimsService:
    """Starts and ends it. records: where prepared claims are recorded."""

    def __init__(self, config: Config, node: Node, records: Path) -> None:
        self._config, self._node, self._records = config, node, records
        self._claims: Claims | None = None
        self._since_start = bool(config.dra.gpus)
        node.claims = self._state

    def _state(self) -> ClaimsState:
        wanted = bool(self._node.config.dra.gpus)
        known = self._claims.state if self._claims else ClaimsState(unregistered=_SOON, unpublished=_SOON)
        return replace(known, wanted=wanted, since_start=self._since_start)

    async def run(self) -> None:
        """See to it until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._note_what_was_wanted_first(), name="claims: at first")
            if self._config.dra.gpus or self._recorded():
                await self._serve()
            elif self._records.with_name("checkpoint.json").exists():
                from gpuplugin.daemon.dra_take_over import warn_of_claims  # noqa: PLC0415 - only where there are claims

                warn_of_claims(self._config)
            while True:
                await self._wanted()
                await self._serve()

    async def _note_what_was_wanted_first(self) -> None:
        await self._node.looked.wait()
        self._since_start = bool(self._node.config.dra.gpus)

    async def _wanted(self) -> None:
        """Return once claims shall have GPUs, or one has all the same: an instance before us may still prepare some."""
        while not (self._node.config.dra.gpus or self._recorded()):
            await next_beat(LOOK_SECONDS)

    def _recorded(self) -> bool:
        return any(self._records.glob("*.json"))

    async def _serve(self) -> None:
        from gpuplugin.daemon.dra import Claims  # noqa: PLC0415 - only where there are claims

        self._claims = claims = Claims(self._config, self._node, self._records)
        try:
            async with asyncio.TaskGroup() as tasks:
                serving = tasks.create_task(claims.run(), name="claims")
                await claims.finished()
                log.info("claims are not served any more: they have no GPU, and nobody has one by a claim")
                serving.cancel()
        finally:
            self._claims, self._node.held, self._since_start = None, dict, False
