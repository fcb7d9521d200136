"""That what is followed is what there is, whatever happens on the way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx2 as httpx
import pytest

from gpuplugin.errors import KubeError, KubeForbidden
from gpuplugin.kube.backoff import Backoff
from gpuplugin.kube.client import Kube
from gpuplugin.kube.kinds import SLICES
from gpuplugin.kube.objects import ResourceSlice
from gpuplugin.kube.watch import Follower, Seen
from tests.kube.standin import Hang, Json, StandInApi, refusal

ROOT = "/apis/resource.k8s.io/v1/resourceslices"
OURS = "spec.driver=d,spec.nodeName=n"


def a_slice(name: str, generation: int = 1, node: str = "n") -> Json:
    pool = {"name": "n", "generation": generation, "resourceSliceCount": 1}
    return {"metadata": {"name": name}, "spec": {"driver": "d", "nodeName": node, "pool": pool}}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("gpuplugin.kube.watch.Backoff", lambda _first, _longest: Backoff(0.005, 0.02))


class Following:
    """Reads along in a task; `until` waits for what is followed to become so."""

    def __init__(self, kube: Kube, **settings) -> None:
        self.told: list[KubeError | None] = []
        self.seen: list[Seen[ResourceSlice]] = []
        self._changed = asyncio.Condition()
        self._follower = Follower(kube, SLICES, OURS, self.told.append, **settings)

    async def run(self) -> None:
        async for seen in self._follower.follow():
            async with self._changed:
                self.seen.append(seen)
                self._changed.notify_all()

    def now(self) -> dict[str, int]:
        return {name: one.spec.pool.generation for name, one in self.seen[-1].objects.items()} if self.seen else {}

    async def until(self, wanted: Callable[[], bool]) -> None:
        async with asyncio.timeout(5), self._changed:
            await self._changed.wait_for(wanted)


@asynccontextmanager
async def following(kube: Kube, **settings) -> AsyncIterator[Following]:
    one = Following(kube, **settings)
    task = asyncio.create_task(one.run())
    try:
        yield one
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def opened(api: StandInApi, count: int = 1) -> None:
    async with asyncio.timeout(5):
        while len(api.watchers) != count:
            await asyncio.sleep(0.001)


def watches(api: StandInApi) -> int:
    return sum("watch" in url.params for _, url in api.asked)


def lists(api: StandInApi) -> int:
    return len(api.asked) - watches(api)


async def test_what_is_there_and_what_changes_is_seen(kube: Kube, api: StandInApi):
    api.put(f"{ROOT}/a", a_slice("a"))
    api.put(f"{ROOT}/foreign", a_slice("foreign", node="other"))
    async with following(kube) as ours:
        await ours.until(lambda: ours.now() == {"a": 1})
        await opened(api)
        api.put(f"{ROOT}/b", a_slice("b"))
        await ours.until(lambda: ours.now() == {"a": 1, "b": 1})
        api.put(f"{ROOT}/a", a_slice("a", 2))
        await ours.until(lambda: ours.now() == {"a": 2, "b": 1})
        api.remove(f"{ROOT}/b")
        api.put(f"{ROOT}/foreign2", a_slice("foreign2", node="other"))
        await ours.until(lambda: ours.now() == {"a": 2})
        assert lists(api) == 1
        assert ours.told == []
    assert api.watchers == set()


async def test_a_watch_that_ends_goes_on_where_it_was_without_a_list(kube: Kube, api: StandInApi):
    async with following(kube) as ours:
        await opened(api)
        api.muted = True
        api.put(f"{ROOT}/a", a_slice("a"))  # between two watches
        api.muted = False
        for watcher in api.watchers:
            watcher.end()
        await ours.until(lambda: ours.now() == {"a": 1})
        assert lists(api) == 1


async def test_a_bookmark_moves_on_where_a_watch_begins(kube: Kube, api: StandInApi):
    async with following(kube) as ours:
        await opened(api)
        for watcher in api.watchers:
            watcher.send("BOOKMARK", {"kind": "ResourceSlice", "metadata": {"resourceVersion": "77"}})
            watcher.end()
        async with asyncio.timeout(5):
            while watches(api) < 2:
                await asyncio.sleep(0.001)
        assert api.asked[-1][1].params["resourceVersion"] == "77"
        assert api.asked[-1][1].params["allowWatchBookmarks"] == "true"
        assert len(ours.seen) == 1


@pytest.mark.parametrize("how", ["event", "status"])
async def test_gone_leads_to_a_new_list(kube: Kube, api: StandInApi, how: str):
    async with following(kube) as ours:
        await opened(api)
        api.muted = True
        api.put(f"{ROOT}/a", a_slice("a"))
        api.compact()
        if how == "status":
            api.faults.append(
                lambda request: refusal(410) if request.url.params.get("resourceVersion") == "0" else None
            )
        for watcher in api.watchers:
            watcher.end()
        await ours.until(lambda: ours.now() == {"a": 1})
        assert lists(api) == 2
        assert ours.seen[-1].listed == 2
        assert ours.told == []


async def test_a_broken_connection_is_told_once_and_when_it_is_over(kube: Kube, api: StandInApi):
    api.put(f"{ROOT}/a", a_slice("a"))
    async with following(kube) as ours:
        await ours.until(lambda: ours.now() == {"a": 1})
        await opened(api)
        down = [True]
        api.faults.append(lambda _: httpx.ConnectError("refused") if down[0] else None)
        for watcher in list(api.watchers):
            watcher.cut()
        async with asyncio.timeout(5):
            while len(api.asked) < 6:
                await asyncio.sleep(0.001)
        api.remove(f"{ROOT}/a")
        down[0] = False
        await ours.until(lambda: ours.now() == {} and len(ours.seen) > 1)
        await opened(api)
        assert isinstance(ours.told[0], KubeError)
        assert ours.told[1:] == [None]


async def test_a_connection_that_swallows_everything_is_given_up(kube: Kube, api: StandInApi, monkeypatch):
    monkeypatch.setattr("random.randint", lambda *_: 0)
    async with following(kube, grace=0.05) as ours:
        await opened(api)
        api.muted = True
        api.put(f"{ROOT}/a", a_slice("a"))
        await ours.until(lambda: ours.now() == {"a": 1})
        assert "no answer in time" in str(ours.told[0])


async def test_a_watch_that_is_never_answered_is_given_up(kube: Kube, api: StandInApi, monkeypatch):
    monkeypatch.setattr("gpuplugin.kube.client.READ_SECONDS", 0.03)
    swallow = iter([True])
    api.faults.append(lambda request: Hang() if "watch" in request.url.params and next(swallow, False) else None)
    async with following(kube) as ours:
        await opened(api)
        api.put(f"{ROOT}/a", a_slice("a"))
        await ours.until(lambda: ours.now() == {"a": 1})


async def test_garbage_in_a_watch_leads_to_a_new_list(kube: Kube, api: StandInApi):
    async with following(kube) as ours:
        await opened(api)
        for watcher in api.watchers:
            watcher.lines.put_nowait(b'{"type":"ADDED","object":{"spec":1}}\n')
        await ours.until(lambda: ours.seen[-1].listed == 2)


async def test_no_right_to_watch_is_told_and_waited_for(kube: Kube, api: StandInApi):
    denied = [True]
    api.faults.append(lambda request: refusal(403) if "watch" in request.url.params and denied[0] else None)
    async with following(kube) as ours:
        await ours.until(lambda: bool(ours.seen))
        async with asyncio.timeout(5):
            while not ours.told:
                await asyncio.sleep(0.001)
        error = ours.told[0]
        assert isinstance(error, KubeForbidden)
        assert "verbs ['watch']" in str(error)
        denied[0] = False
        await opened(api)


async def test_a_server_that_ends_every_watch_at_once_is_not_asked_without_pause(
    kube: Kube, api: StandInApi, monkeypatch
):
    pauses: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await real(0)

    monkeypatch.setattr("gpuplugin.kube.watch.asyncio.sleep", sleep)
    api.faults.append(lambda request: httpx.Response(200, content=b"") if "watch" in request.url.params else None)
    async with following(kube):
        async with asyncio.timeout(5):
            while watches(api) < 20:
                await real(0)
        assert len([pause for pause in pauses if pause > 0]) >= watches(api) - 1


def test_pauses_grow_to_their_bound_and_are_spread():
    pauses = Backoff(1.0, 10.0, random.Random(1))
    taken = [pauses.next() for _ in range(6)]
    for pause, step in zip(taken, (1, 2, 4, 8, 10, 10), strict=True):
        assert step / 2 <= pause <= step
    assert taken[4] != taken[5]
    pauses.reset()
    assert pauses.next() <= 1
