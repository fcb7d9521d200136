"""The Node's condition ``GPUsHealthy``: written when it changes, and by nobody else's leave but the API server's.

It is a field of our own by server-side apply: what kubelet and others say of the node is not touched. It stays as it is
while we are away; `gpuplugin condition remove` takes it away.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import structlog

from gpuplugin.daemon.labels import connect
from gpuplugin.daemon.upkeep import keep_up
from gpuplugin.plan.node_condition import TYPE, NodeHealth, node_health

if TYPE_CHECKING:
    from gpuplugin.config import Config
    from gpuplugin.daemon.node import Node
    from gpuplugin.kube.client import Kube

log = structlog.get_logger()

SETTLE_SECONDS = 1.0
"""In which changes are gathered into one write."""
CHECK_SECONDS: Final = 3600.0


class ConditionOnNode:
    """Keeps it."""

    def __init__(self, config: Config, node: Node) -> None:
        self._config, self._node = config, node
        self._changed = asyncio.Event()
        self._wanted: NodeHealth | None = None

    async def run(self) -> None:
        """Keep it until cancelled."""
        await self._node.looked.wait()
        async with await connect(self._config, "the Node's condition") as kube, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(), name="follow pictures for the condition")
            await keep_up("the Node's condition", lambda: self.look(kube), self._changed, CHECK_SECONDS)

    async def look(self, kube: Kube) -> bool:
        """Compare with what the Node says, and write where it differs."""
        await asyncio.sleep(SETTLE_SECONDS)
        wanted = self._wanted
        if wanted is None:
            return False
        name = self._config.node.name
        there = next((one for one in (await kube.node(name)).status.conditions if one.type == TYPE), None)
        if there is not None and (there.status, there.reason, there.message) == _said(wanted):
            return True
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        since = there.last_transition_time if there is not None and there.status == wanted.status else None
        await kube.set_node_condition(
            name,
            {
                "type": TYPE,
                "status": wanted.status,
                "reason": wanted.reason,
                "message": wanted.message,
                "lastHeartbeatTime": now,
                "lastTransitionTime": since or now,
            },
        )
        log.info("condition written", status=wanted.status, reason=wanted.reason, message=wanted.message)
        return True

    async def _follow(self) -> None:
        async with aclosing(self._node.picture.follow()) as pictures:
            async for picture in pictures:
                if picture is None:
                    continue
                wanted = node_health(picture.inventory, picture.facts.health)
                if wanted != self._wanted:
                    self._wanted = wanted
                    self._changed.set()


def _said(health: NodeHealth) -> tuple[str, str, str]:
    return health.status, health.reason, health.message
