"""Doubles and checks that several discovery tests share; nothing a test starts may outlive it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest


async def eventually(condition: Callable[[], object], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        await asyncio.sleep(0.002)


@pytest.fixture
def until() -> Callable[..., object]:
    return eventually


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 5
    while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        for thread in left:
            thread.join(0.05)
    assert not left, f"threads left behind: {left}"


@pytest.fixture(autouse=True)
async def no_leaked_tasks_or_errors() -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    unhandled: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    before = asyncio.all_tasks()
    yield
    await asyncio.sleep(0)
    left = {task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()}
    loop.set_exception_handler(None)
    assert not left, f"tasks left behind: {left}"
    assert not unhandled, f"errors that nobody handled: {unhandled}"


class Gate:
    """A call that blocks until it is let go, and tells when it is in."""

    def __init__(self, result: object = None, error: Exception | None = None) -> None:
        self.inside = threading.Event()
        self.open = threading.Event()
        self.result, self.error = result, error

    def __call__(self, *_: object) -> object:
        self.inside.set()
        if not self.open.wait(30):
            raise TimeoutError("the test never let this call go")
        if self.error is not None:
            raise self.error
        return self.result


@pytest.fixture
def gate() -> Iterator[Callable[..., Gate]]:
    made: list[Gate] = []

    def make(result: object = None, error: Exception | None = None) -> Gate:
        made.append(Gate(result, error))
        return made[-1]

    yield make
    for each in made:
        each.open.set()
