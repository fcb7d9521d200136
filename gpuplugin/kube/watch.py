"""All objects that match, kept up to date: list, watch, and list again whenever the thread is lost.

The consumer gets levels, not events: each time something is other than before, all that there is. So nothing can be
missed, and what was missed while the server was away is in the next list.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from gpuplugin.errors import KubeError, KubeGone
from gpuplugin.kube.backoff import Backoff
from gpuplugin.kube.kinds import key
from gpuplugin.kube.objects import ListMeta, Object, Status, WatchEvent
from gpuplugin.kube.refusals import Call

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from gpuplugin.kube.client import Kube
    from gpuplugin.kube.kinds import Kind
    from gpuplugin.kube.objects import Meta

T = TypeVar("T", bound=Object)

WATCH_SECONDS = (300, 600)
"""The server ends a watch after a time between these, so that its load spreads; we go on from where it ended."""
GRACE_SECONDS = 15.0
"""How much longer than that we wait before we take a connection for dead that says nothing, not even its end."""


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """What there is, by ``namespace/name`` or name. `listed` grows with each new list: the server may be another."""

    objects: Mapping[str, T]
    listed: int


class _Headed(Object, frozen=True):
    metadata: ListMeta


@dataclass(slots=True)
class Follower(Generic[T]):
    """Follows one kind. fields: a field selector · tell: hears of trouble when it begins, and None when it is over.

    seconds: least and most that a watch is asked to last · grace: see GRACE_SECONDS.
    """

    kube: Kube
    kind: Kind[T]
    fields: str
    tell: Callable[[KubeError | None], None]
    seconds: tuple[int, int] = WATCH_SECONDS
    grace: float = GRACE_SECONDS

    async def follow(self) -> AsyncGenerator[Seen[T], None]:
        """Give what there is after each list and each change. Never ends, never raises: trouble is told and retried."""
        pauses, listed, troubled = Backoff(0.5, 30.0), 0, False
        while True:
            try:
                found, version = await self.kube.list(self.kind, fields=self.fields)
                listed += 1
                objects = {key(_meta(one)): one for one in found}
                yield Seen(MappingProxyType(dict(objects)), listed)
                if troubled:
                    troubled = False
                    self.tell(None)
                while True:
                    began = asyncio.get_running_loop().time()
                    async with aclosing(self._watch(version)) as events:
                        async for changed, reached in events:
                            version = reached
                            pauses.reset()
                            if _changed(objects, changed):
                                yield Seen(MappingProxyType(dict(objects)), listed)
                    if asyncio.get_running_loop().time() - began < 1.0:
                        await asyncio.sleep(pauses.next())  # a server that ends watches at once is not asked at once
            except KubeGone:
                await asyncio.sleep(pauses.next())
            except KubeError as error:
                if not troubled:
                    troubled = True
                    self.tell(error)
                await asyncio.sleep(pauses.next())

    async def _watch(self, version: str) -> AsyncGenerator[tuple[tuple[str, T] | None, str], None]:
        """Give (type, object) and the version to go on from, for each line of one watch; no object for a bookmark."""
        seconds = random.randint(*self.seconds)  # noqa: S311 - spreads load
        query = {
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
            "allowWatchBookmarks": "true",
            **({"fieldSelector": self.fields} if self.fields else {}),
        }
        call = Call("watch", self.kind)
        async with aclosing(self.kube.lines(self.kind, query, lifetime=seconds + self.grace)) as lines:
            async for line in lines:
                yield _read(call, line)


def _read(call: Call[T], line: bytes) -> tuple[tuple[str, T] | None, str]:
    try:
        event = msgspec.json.decode(line, type=WatchEvent)
        if event.type == "ERROR":
            said = msgspec.json.decode(event.object, type=Status)
            raise call.refused(said.code, said)
        version = msgspec.json.decode(event.object, type=_Headed).metadata.resource_version
    except msgspec.DecodeError as error:
        raise call.unavailable(f"a line of the watch makes no sense: {error}") from error
    return (None if event.type == "BOOKMARK" else (event.type, call.decoded(event.object))), version


def _changed(objects: dict[str, T], changed: tuple[str, T] | None) -> bool:
    if changed is None:
        return False
    what, one = changed
    if what == "DELETED":
        return objects.pop(key(_meta(one)), None) is not None
    before = objects.get(key(_meta(one)))
    objects[key(_meta(one))] = one
    return before != one


def _meta(one: Any) -> Meta:
    meta: Meta = one.metadata
    return meta
