"""Killed at any await of Prepare and Unprepare: nothing leaked, nothing given twice, and the same call works again.

The coroutine is stepped by hand. Everything that it waits for is a double that stops before and after it does anything,
so each stop is a place where the process may be killed; what is on "disk" and on the "hardware" then is all that the
next process has. That these stops are all there are is held by the last test: it fails for an await that no story here
has been stopped at. (Waiting for one's turn is none: nothing is done while one waits.)
"""

import ast
import inspect
from collections.abc import Coroutine, Generator
from types import CoroutineType
from typing import Any

import pytest

import dra.prepare
from dra.checkpoint import STARTED
from gpuplugin.errors import ClaimChanged, DeviceHeld
from tests.dra.claims import ApiServer, Node, claim


class Stop:
    """A place to be killed at."""

    def __await__(self) -> Generator[None, None, None]:
        yield None


class Process:
    """What one process does; after `dead` nothing that it still tries has any effect."""

    def __init__(self):
        self.dead = False

    async def blocking(self, call):
        await Stop()
        assert not self.dead
        result = call()
        await Stop()
        return result

    async def in_pods(self):
        await Stop()
        return ()


class SteppedApi(ApiServer):
    async def claim(self, namespace, name, *, patience=None):
        await Stop()
        found = await super().claim(namespace, name, patience=patience)
        await Stop()
        return found


class Hardware:
    """Something that has to be made for each device of a claim, in two halves, and outlives the process."""

    def __init__(self, needed):
        self._needed = needed
        self.made: dict[str, set[str]] = {}

    def needed(self, record):
        return self._needed

    async def apply(self, record):
        for device in record.devices:
            for half in ("instance", "inner"):
                await Stop()
                assert not any(
                    f"{device.device}/{half}" in made for uid, made in self.made.items() if uid != record.uid
                )
                self.made.setdefault(record.uid, set()).add(f"{device.device}/{half}")
                await Stop()

    async def undo(self, record):
        for part in sorted(self.made.get(record.uid, ())):
            await Stop()
            self.made[record.uid].discard(part)
            await Stop()
        self.made.pop(record.uid, None)


stops_seen: set[int] = set()
"""Lines of dra/prepare.py that a story has been stopped at."""


def stopped_at(coroutine: Any) -> set[int]:
    lines = set()
    while isinstance(coroutine, CoroutineType) or inspect.isasyncgen(coroutine):
        frame = coroutine.cr_frame if isinstance(coroutine, CoroutineType) else coroutine.ag_frame
        if frame and frame.f_code.co_filename == dra.prepare.__file__:
            lines.add(frame.f_lineno)
        coroutine = coroutine.cr_await if isinstance(coroutine, CoroutineType) else coroutine.ag_await
    return lines


def step(coroutine: Coroutine[Any, Any, Any], stops: int) -> tuple[bool, Any]:
    """Go on to the given stop. (True, result) where it ended before."""
    for _ in range(stops):
        try:
            coroutine.send(None)
        except StopIteration as end:
            return True, end.value
        except (ClaimChanged, DeviceHeld) as refused:
            return True, refused
        stops_seen.update(stopped_at(coroutine))
    return False, None


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    ended, result = step(coroutine, 10_000)
    assert ended
    if isinstance(result, Exception):
        raise result
    return result


class World:
    def __init__(self, folder, effects):
        self.folder, self.api, self.hardware = folder, SteppedApi(), Hardware(effects)
        self.process: Process
        self.node: Node
        self.start()

    def start(self):
        self.process = Process()
        self.node = Node(self.folder, self.api, self.process.blocking, self.hardware, Stop)
        self.node.pods_here = set()
        self.node.preparing.in_pods = self.process.in_pods

    def kill(self, coroutine):
        self.process.dead = True
        coroutine.close()
        self.start()

    def leftovers(self):
        return [path.name for path in self.folder.rglob("*") if path.is_file() and path.name != ".lock"]


VICTIM, RIVAL = claim("victim", 2, 3), claim("rival", 3)


class Fresh:
    """Nothing was there before."""

    def before(self, world):
        world.api.put(VICTIM, RIVAL)

    def call(self, world):
        return world.node.prepare(VICTIM)


class Again(Fresh):
    """It is prepared already."""

    def before(self, world):
        super().before(world)
        run(world.node.prepare(VICTIM))


class AllocatedAnew(Fresh):
    """It had other devices before."""

    def before(self, world):
        super().before(world)
        world.api.put(other := claim("victim", 3, 4))
        run(world.node.prepare(other))
        world.api.put(VICTIM)


class InTheWay(Fresh):
    """A claim that is gone has a device of it."""

    def before(self, world):
        super().before(world)
        world.api.put(gone := claim("gone", 3))
        run(world.node.prepare(gone))
        world.api.drop(gone)


class Unprepare(Again):
    """It is taken back."""

    def call(self, world):
        return world.node.unprepare(VICTIM)


class UnprepareNothing(Fresh):
    def call(self, world):
        return world.node.unprepare(VICTIM)


STORIES = [Fresh, Again, AllocatedAnew, InTheWay, Unprepare, UnprepareNothing]


def killed_everywhere(story, effects, tmp_path):
    """Give a world for each stop, killed there and started again, and at last one in which the call ended."""
    for stops in range(1, 200):
        world = World(tmp_path / f"{stops}", effects)
        story.before(world)
        coroutine = story.call(world)
        ended, _ = step(coroutine, stops)
        world.kill(coroutine)
        yield world
        if ended:
            assert stops > 2, "was stopped at all"
            return
    pytest.fail("never came to an end")


@pytest.mark.parametrize("effects", [False, True], ids=["whole GPU", "with effects"])
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
class TestKilled:
    def test_the_same_claim_is_prepared_and_taken_back(self, story, effects, tmp_path):
        for world in killed_everywhere(story(), effects, tmp_path):
            assert run(world.node.prepare(VICTIM)).completed
            assert world.node.given()["victim"] == {"gpu-2", "gpu-3"}
            if effects:
                assert len(world.hardware.made["uid-victim"]) == 4
            with pytest.raises(DeviceHeld, match="team/victim"):
                run(world.node.prepare(RIVAL))
            run(world.node.unprepare(VICTIM))
            assert run(world.node.prepare(RIVAL)).completed
            run(world.node.unprepare(RIVAL))
            self.nothing_is_left(world)

    def test_it_is_taken_back_without_having_been_prepared_again(self, story, effects, tmp_path):
        for world in killed_everywhere(story(), effects, tmp_path):
            world.api.drop(VICTIM)
            run(world.node.unprepare(VICTIM))
            run(world.node.prepare(RIVAL))
            run(world.node.unprepare(RIVAL))
            self.nothing_is_left(world)

    def test_a_rival_that_is_faster_gets_the_device_alone_or_not(self, story, effects, tmp_path):
        for world in killed_everywhere(story(), effects, tmp_path):
            try:
                run(world.node.prepare(RIVAL))
            except DeviceHeld:
                assert run(world.node.prepare(VICTIM)).completed
            else:
                with pytest.raises(DeviceHeld, match="team/rival"):
                    run(world.node.prepare(VICTIM))
            run(world.node.unprepare(VICTIM))
            run(world.node.unprepare(RIVAL))
            self.nothing_is_left(world)

    def test_killed_again_while_making_up_for_it(self, story, effects, tmp_path):
        for number, world in enumerate(killed_everywhere(story(), effects, tmp_path)):
            coroutine = world.node.prepare(VICTIM)
            step(coroutine, 1 + number % 7)
            world.kill(coroutine)
            assert run(world.node.prepare(VICTIM)).completed
            run(world.node.unprepare(VICTIM))
            run(world.node.prepare(RIVAL))
            run(world.node.unprepare(RIVAL))
            self.nothing_is_left(world)

    @staticmethod
    def nothing_is_left(world):
        for uid in world.node.records():
            assert uid == "uid-gone", "a claim that was in nobody's way any more may wait for kubelet"
            run(world.node.preparing.unprepare(uid))
        assert world.leftovers() == []
        assert world.hardware.made == {}


def test_other_instance_unprepares_between_effects_and_completion(tmp_path):
    other_instance_unprepares(World(tmp_path / "claims", effects=True))


def other_instance_unprepares(world):
    world.api.put(VICTIM)
    coroutine = world.node.prepare(VICTIM)
    while not any(record.state == STARTED for record in world.node.checkpoint.records.values()):
        step(coroutine, 1)
    other = Node(world.folder, world.api, Process().blocking, world.hardware)
    run(other.unprepare(VICTIM))
    with pytest.raises(ClaimChanged, match="unprepared meanwhile"):
        run(coroutine)
    assert world.leftovers() == []
    assert world.hardware.made == {}


def test_every_await_of_preparing_is_stopped_at_by_a_story(tmp_path):
    stops_seen.clear()
    for story in STORIES:
        for effects in (False, True):
            world = World(tmp_path / f"{story.__name__}-{effects}", effects)
            story().before(world)
            run(story().call(world))
    other_instance_unprepares(World(tmp_path / "other", effects=True))
    tree = ast.parse(inspect.getsource(dra.prepare))
    calls = {"prepare", "unprepare", "reclaim"}
    awaits: dict[int, str] = {}
    (preparing,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Preparing")
    for function in (n for n in preparing.body if isinstance(n, ast.AsyncFunctionDef)):
        calls.discard(function.name)
        for node in ast.walk(function):
            if isinstance(node, ast.Await):
                awaits.update(dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), ""))
                awaits[node.lineno] = f"{function.name}: {ast.unparse(node)}"
    assert not calls
    assert not [text for line, text in awaits.items() if text and not _seen(line, awaits)]


def _seen(line: int, awaits: dict[int, str]) -> bool:
    """Whether a stop was in the expression that begins at this line."""
    while True:
        if line in stops_seen:
            return True
        line += 1
        if awaits.get(line, "next") != "":
            return False
