"""Every place where a pass can be stopped: stopped there, begun anew, and the same in the end."""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from dra.converge import Memory, Outcome, converge
from dra.gated import COUNTERS, TAINTS, USES
from dra.slices import DRIVER, Contents, Owner
from gpuplugin.errors import KubeConflict, SlicesInvalid
from gpuplugin.kube.objects import Attribute, Counter, CounterSet, CounterUse, Device, ResourceSlice, Taint
from tests.dra.test_publisher_changes import Server

OWNER = Owner("node", "uid")
SICK = Taint(key="gpuplugin.io/unhealthy", effect="NoSchedule", value="XID-79")
STOP = object()


@types.coroutine
def suspended() -> Generator[object, None, None]:
    yield STOP


class SteppedApi:
    """A server that suspends before and after each effect; a pass can be dropped at each of those points."""

    def __init__(self, server: Server, drops: Sequence[str] = ()) -> None:
        self.server, self.drops = server, drops
        self.dry_runs = self.lists = 0

    async def list(self) -> Sequence[ResourceSlice]:
        await suspended()
        found = tuple(self.server.slices.values())
        self.lists += 1
        await suspended()
        return found

    async def create(self, one: ResourceSlice, *, dry_run: bool = False) -> ResourceSlice:
        await suspended()
        if one.metadata.name in self.server.slices:
            raise KubeConflict("create", "resourceslices", one.metadata.name, "is there", exists=True)
        self.dry_runs += dry_run
        answer = self._kept(one) if dry_run else self.server.write(self._kept(one))
        await suspended()
        return answer

    async def replace(self, one: ResourceSlice) -> ResourceSlice:
        await suspended()
        answer = self.server.write(self._kept(one))
        await suspended()
        return answer

    async def delete(self, one: ResourceSlice) -> None:
        await suspended()
        if one.metadata.name in self.server.slices:
            self.server.delete(one)
        await suspended()

    def _kept(self, one: ResourceSlice) -> ResourceSlice:
        spec = one.spec
        lost: dict[str, Any] = {}
        lost |= {"taints": ()} if TAINTS in self.drops else {}
        lost |= {"consumes_counters": ()} if USES in self.drops else {}
        spec = replace(spec, devices=tuple(replace(device, **lost) for device in spec.devices))
        spec = replace(spec, shared_counters=()) if COUNTERS in self.drops else spec
        return replace(one, spec=spec)


def run(work: Coroutine[Any, Any, Outcome], steps: int | None = None) -> Outcome | None:
    """Step through; None when it was dropped after `steps` suspensions."""
    taken = 0
    try:
        while steps is None or taken < steps:
            assert work.send(None) is STOP, "a new await is not enumerated here"
            taken += 1
    except StopIteration as end:
        return end.value
    work.close()
    return None


def gpus(count: int, first: int = 0) -> tuple[Device, ...]:
    return tuple(Device(name=f"gpu-{i}") for i in range(first, first + count))


def shared(amount: str) -> Contents:
    use = (CounterUse(counter_set="s", counters={"c": Counter(value=amount)}),)
    counters = CounterSet(name="s", counters={"c": Counter(value=amount)})
    whole, part = Device(name="gpu-0", consumes_counters=use), Device(name="gpu-0-mig-0", consumes_counters=use)
    return Contents((whole, part), (counters,), frozenset({"gpu-0-mig-0"}))


MOVES: dict[str, tuple[Contents, Contents]] = {
    "first": (Contents(()), Contents(gpus(8))),
    "taint": (Contents(gpus(8)), Contents((replace(gpus(1)[0], taints=(SICK,)), *gpus(7, 1)))),
    "grow": (Contents(gpus(60)), Contents(gpus(130))),
    "shrink": (Contents(gpus(130)), Contents(gpus(60))),
    "shift": (Contents(gpus(130)), Contents(gpus(130, 1))),
    "counters": (Contents(gpus(1)), shared("8")),
    "other counters": (shared("7"), shared("8")),
}


@pytest.mark.parametrize("name", MOVES)
def test_stopped_at_any_await_the_next_pass_ends_at_the_same(name: str):
    before, after = MOVES[name]
    whole = Server()
    run(converge(SteppedApi(whole), OWNER, DRIVER, before, Memory()))
    run(converge(SteppedApi(whole), OWNER, DRIVER, after, Memory()))
    ended = [one.spec.devices for _, one in sorted(whole.slices.items())]

    steps, finished = 0, False
    while not finished:
        server = Server()
        run(converge(SteppedApi(server), OWNER, DRIVER, before, Memory()))
        there = server.visible()
        finished = run(converge(SteppedApi(server), OWNER, DRIVER, after, Memory()), steps) is not None
        seen = server.visible()
        assert seen is None or tuple(d.name for d in seen) in (_names(there or ()), _names(after.devices))
        outcome = run(converge(SteppedApi(server), OWNER, DRIVER, after, Memory()))
        assert outcome == Outcome(_names(after.devices), (), frozenset())
        assert [one.spec.pool.resource_slice_count for one in server.slices.values()] == [len(server.slices)] * len(
            ended
        )
        assert [_plain(one.spec.devices) for _, one in sorted(server.slices.items())] == list(map(_plain, ended))
        writes = server.writes
        run(converge(SteppedApi(server), OWNER, DRIVER, after, Memory()))
        assert server.writes == writes
        steps += 1
    assert steps > 4


def _names(devices: Sequence[Device]) -> tuple[str, ...]:
    return tuple(device.name for device in devices)


def _plain(devices: Sequence[Device]) -> tuple[Device, ...]:
    return tuple(replace(d, taints=tuple(replace(t, time_added=None) for t in d.taints)) for d in devices)


def test_a_server_that_drops_counters_is_never_offered_what_overlaps():
    for dropped in ((COUNTERS, USES), (USES,), (COUNTERS,)):
        server = Server()
        seen: list[tuple[str, ...]] = []
        api = SteppedApi(server, dropped)
        work = converge(api, OWNER, DRIVER, shared("8"), Memory())
        outcome = _watch(work, lambda: seen.append(_names(server.visible() or ())))  # noqa: B023
        assert {"gpu-0-mig-0"}.isdisjoint(name for names in seen for name in names)
        assert outcome.offered == ("gpu-0",)
        assert outcome.withdrawn == ("gpu-0-mig-0",)
        assert outcome.dropped & {COUNTERS, USES}


def _watch(work: Coroutine[Any, Any, Outcome], look: Callable[[], None]) -> Outcome:
    try:
        while True:
            work.send(None)
            look()
    except StopIteration as end:
        return end.value


def test_a_server_that_drops_taints_is_never_offered_the_ill():
    server, memory = Server(), Memory()
    ill = Contents((replace(gpus(1)[0], taints=(SICK,)), *gpus(3, 1)))
    api = SteppedApi(server, (TAINTS,))
    outcome = run(converge(api, OWNER, DRIVER, ill, memory))
    assert outcome == Outcome(("gpu-1", "gpu-2", "gpu-3"), ("gpu-0",), frozenset({TAINTS}))
    assert (server.writes, api.dry_runs) == (1, 1)
    run(converge(api, OWNER, DRIVER, Contents(gpus(4)), memory))
    assert [device.name for device in server.visible() or ()] == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    run(converge(api, OWNER, DRIVER, ill, memory))
    assert api.dry_runs == 1


def test_what_is_proven_is_not_tried_again():
    server, memory = Server(), Memory()
    api = SteppedApi(server)
    for value in ("a", "b"):
        ill = Contents((replace(gpus(1)[0], taints=(replace(SICK, value=value),)),))
        run(converge(api, OWNER, DRIVER, ill, memory))
    assert (server.writes, api.dry_runs) == (2, 1)
    memory.forget_server()
    run(converge(api, OWNER, DRIVER, Contents((replace(gpus(1)[0], taints=(SICK,)),)), memory))
    assert (server.writes, api.dry_runs) == (3, 2)


def test_a_field_of_no_consequence_that_is_dropped_is_said_and_written_once():
    class Plain(SteppedApi):
        def _kept(self, one: ResourceSlice) -> ResourceSlice:
            return replace(
                one, spec=replace(one.spec, devices=tuple(replace(d, attributes={}) for d in one.spec.devices))
            )

    server, memory = Server(), Memory()
    contents = Contents((Device(name="gpu-0", attributes={"a": Attribute(strings=("x",))}),))
    for _ in range(2):
        outcome = run(converge(Plain(server), OWNER, DRIVER, contents, memory))
    assert outcome == Outcome(("gpu-0",), (), frozenset({"devices[].attributes"}))
    assert server.writes == 1


def test_what_breaks_the_rules_is_not_sent():
    server = Server()
    with pytest.raises(SlicesInvalid):
        run(converge(SteppedApi(server), OWNER, DRIVER, Contents((Device(name="GPU"),)), Memory()))
    assert server.writes == 0
