"""When claims are served: while they may have GPUs, and after that for as long as kubelet may need us to end them.

Both follow the configuration in force, which may change at any time. What serves is imported when it is first needed.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from pathlib import Path

    from gpuplugin.config import Config
    from gpuplugin.daemon.dra import Claims
    from gpuplugin.daemon.node import Node

log = structlog.get_logger()


class ClaimsService:
    """Starts and ends it. records: where prepared claims are recorded · claims: what serves now, None where nothing."""

    def __init__(self, config: Config, node: Node, records: Path) -> None:
        self._config, self._node, self._records = config, node, records
        self.claims: Claims | None = None

    async def run(self) -> None:
        """See to it until cancelled."""
        if not self._config.dra.gpus and not any(self._records.glob("*.json")):
            if self._records.with_name("checkpoint.json").exists():
                from gpuplugin.daemon.dra_take_over import warn_of_claims  # noqa: PLC0415 - only where there are claims

                warn_of_claims(self._config)
            await self._wanted()
        while True:
            await self._serve()
            await self._wanted()

    async def _wanted(self) -> None:
        async with aclosing(self._node.picture.follow()) as pictures:
            async for picture in pictures:
                if picture is not None and picture.config.dra.gpus:
                    return

    async def _serve(self) -> None:
        from gpuplugin.daemon.dra import Claims  # noqa: PLC0415 - only where there are claims

        self.claims = claims = Claims(self._config, self._node, self._records)
        try:
            async with asyncio.TaskGroup() as tasks:
                serving = tasks.create_task(claims.run(), name="claims")
                await claims.finished()
                log.info("claims are not served any more: they have no GPU, and nobody has one by a claim")
                serving.cancel()
        finally:
            self.claims, self._node.held = None, dict
