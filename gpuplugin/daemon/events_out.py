"""Events of the Node for faults that come and go: few, each once in a while, and never in the way of anything else."""

from __future__ import annotations

import time
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from gpuplugin.daemon.labels import connect
from gpuplugin.errors import KubeError
from gpuplugin.plan.event_budget import EventBudget
from gpuplugin.plan.faults import Surface, cells
from gpuplugin.plan.node_condition import text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuplugin.config import Config
    from gpuplugin.daemon.node import Node, Picture
    from gpuplugin.kube.client import Kube
    from gpuplugin.model.ids import GpuUuid
    from gpuplugin.plan.faults import FaultKind, Told

log = structlog.get_logger()

ENDED = "GpuFaultEnded"

_Identity = tuple["FaultKind", "GpuUuid | None", str]


class EventsOut:
    """Writes them."""

    def __init__(self, config: Config, node: Node) -> None:
        self._config, self._node = config, node
        self._known: dict[_Identity, Told] = {}
        self._budget = EventBudget()
        self._trouble = ""

    async def run(self) -> None:
        """Write until cancelled."""
        await self._node.looked.wait()
        async with (
            await connect(self._config, "Events") as kube,
            aclosing(self._node.picture.follow()) as pictures,
        ):
            async for picture in pictures:
                if picture is not None:
                    await self.tell(kube, picture)

    async def tell(self, kube: Kube, picture: Picture) -> None:
        """Write what has changed since the picture before. What cannot be written is left out, and the log has it."""
        for kind, reason, message, identity in list(self._changes(picture)):
            if not self._budget.allows(identity, time.monotonic()):
                continue
            try:
                await self._write(kube, kind, reason, message)
            except KubeError as error:
                if error.why != self._trouble:  # the whole text names the Event, which is another each time
                    self._trouble = error.why
                    log.warning("an Event cannot be written", reason=str(error))
            else:
                self._trouble = ""

    def _changes(self, picture: Picture) -> Iterator[tuple[str, str, str, tuple[object, ...]]]:
        """Give type, reason and message of each Event, and what makes it the same as another."""
        now: dict[_Identity, Told] = {
            (told.kind, told.gpu, told.text): told for told in picture.facts.health.told if cells(told)
        }
        before, self._known = self._known, now
        for identity, told in now.items():
            if identity not in before:
                kind, reason = cells(told)[Surface.EVENT].split()
                yield kind, reason, text_of(told, picture.inventory), identity
        for identity, told in before.items():
            if identity not in now:
                yield "Normal", ENDED, f"ended: {text_of(told, picture.inventory)}", (ENDED, *identity)

    async def _write(self, kube: Kube, kind: str, reason: str, message: str) -> None:
        from gpuplugin.kube.kinds import EVENTS  # noqa: PLC0415 - with the client, not before
        from gpuplugin.kube.objects import Event, EventSource, Meta, ObjectReference  # noqa: PLC0415

        name, now = self._config.node.name, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if left_out := self._budget.take_left_out():
            message = f"{message} (Events left out before this one: {left_out})"
        event = Event(
            metadata=Meta(name=f"{name}.{time.time_ns():x}", namespace="default"),
            involved_object=ObjectReference(kind="Node", name=name, uid=name, api_version="v1"),
            type=kind,
            reason=reason,
            message=message,
            source=EventSource(component="gpuplugin", host=name),
            first_timestamp=now,
            last_timestamp=now,
            count=1,
        )
        await kube.create(EVENTS, event)
