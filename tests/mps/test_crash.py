"""Killed between any two effects, or in any order of events: one daemon a GPU, no client cut off, modes given back."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuplugin.discovery.nvml import ComputeMode
from gpuplugin.mps import report
from gpuplugin.mps.modes import ComputeModes
from gpuplugin.mps.program import ControlProgram
from tests.mps.conftest import GPU, SHARED, Node, end_all


class Killed(BaseException):
    """What no code catches, as no code runs on after kill -9."""


class Crash:
    """Kills at the n-th effect: before it (even numbers) or right after it (odd numbers)."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def _step(self) -> None:
        if self.count == self.at:
            self.count += 1
            raise Killed
        self.count += 1

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self._step()
            answer = function(*arguments)
            self._step()
            return answer

        return call

    def around_async(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any) -> Any:
            self._step()
            answer = await function(*arguments)
            self._step()
            return answer

        return call


def arm(crash: Crash, patch: pytest.MonkeyPatch, node: Node) -> None:
    patch.setattr(ControlProgram, "start", crash.around_async(ControlProgram.start))
    patch.setattr(ControlProgram, "ask", crash.around_async(ControlProgram.ask))
    patch.setattr(ComputeModes, "_write", crash.around(ComputeModes._write))
    patch.setattr(report, "write", crash.around(report.write))
    patch.setattr(report, "remove", crash.around(report.remove))
    nvml = node.thread.nvml
    setting = crash.around_async(lambda *arguments: node.thread.call(nvml.set_compute_mode, *arguments))
    asking = node.thread.call

    async def call(function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        if function == nvml.set_compute_mode and not more.get("plain"):
            patched, node.thread.call = node.thread.call, asking
            try:
                return await setting(*arguments)
            finally:
                node.thread.call = patched
        return await asking(function, *arguments, **more)

    patch.setattr(node.thread, "call", call)


@pytest.mark.parametrize("ending", ["start", "replace", "stop"])
async def test_killed_at_each_step_the_next_one_finishes(node: Node, ending: str):
    before = [ComputeMode.PROHIBITED, 0, 0, 0, 0, 0, 0, 0]
    wanted = node.group(GPU, (0, 1))
    at, kills = 0, 0
    while True:
        node.host.state.set_compute_mode(0, before[0])
        if ending != "start":
            await node.settle(wanted)
        crash = Crash(at)
        with pytest.MonkeyPatch.context() as patch:
            arm(crash, patch, node)
            try:
                if ending == "stop":
                    await node.supervisor.stop()
                elif ending == "replace":
                    await node.settle(node.group(SHARED, (0, 1)))
                else:
                    await node.settle(wanted)
            except Killed:
                kills += 1
        if crash.count <= at:
            break
        node.killed()
        await node.settle(
            *(() if ending == "stop" else (node.group(SHARED, (0, 1)) if ending == "replace" else wanted,))
        )
        if ending != "stop":
            assert node.modes()[:2] == [3, 3]
            assert len(node.pids()) == 1
            await node.supervisor.stop()
        assert node.modes() == before
        assert node.pids() == {}
        at += 1
    assert kills == at >= 8
    assert node.violations == ""


PLACES = st.lists(st.sampled_from((GPU, SHARED, None)), min_size=3, max_size=3)
EVENTS = st.one_of(
    st.tuples(st.just("want"), PLACES),
    st.tuples(st.sampled_from(("look", "look", "kill supervisor", "connect", "leave"))),
)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(events=st.lists(EVENTS, min_size=4, max_size=20))
def test_whatever_happens_no_client_is_cut_off_and_no_gpu_has_two(control: Path, events: list[Any]):
    folder = Path(tempfile.mkdtemp(prefix="mps"))
    try:
        asyncio.run(_run(folder, control, events))
    finally:
        end_all(str(folder / "mps"))
        shutil.rmtree(folder)


async def _run(folder: Path, control: Path, events: list[Any]) -> None:
    node = Node(folder, control)
    wanted: tuple[Any, ...] = ()
    clients = []
    for what, *given_ in events:
        if what == "want":
            parts = {name: tuple(i for i, of in enumerate(given_[0]) if of == name) for name in (GPU, SHARED)}
            wanted = tuple(node.group(name, gpus) for name, gpus in parts.items() if gpus)
        elif what == "look":
            await node.look(*wanted)
            node.now += 6
        elif what == "kill supervisor":
            node.killed()
        elif what == "connect":
            clients += [node.client(name) for name, said in node.reports().items() if said and said.ready]
        elif clients:
            clients.pop().close()
        assert all(client.lives for client in clients)
        assert node.violations == ""
    while clients:
        clients.pop().close()
    for _ in range(10):
        await node.look(*wanted)
        node.now += 60
    assert {name: said.ready for name, said in node.reports().items()} == {one.resource: True for one in wanted}
    taken = {gpu for one in wanted for gpu in one.gpus}
    assert [mode == 3 for mode in node.modes()] == [gpu in taken for gpu in node.uuids]
    await node.supervisor.stop()
    assert node.modes() == [0] * len(node.uuids)
    node.supervisor.leave()
    node.thread.close()
