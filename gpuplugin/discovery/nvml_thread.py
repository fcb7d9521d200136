"""NVML for asyncio: one thread makes every call, and a call that never comes back costs one GPU, not the daemon.

NVML calls block, and on a sick GPU they block for ever inside the driver. No such thread can be stopped, so it is given
up and replaced. What hung is remembered until it comes back, and is not asked again before: that GPU is in quarantine,
the others go on. When the replacement hangs too, with no call having come back in between, it is NVML's own lock that
is held, and every call fails at once until one comes back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from gpuplugin.discovery.worker import Worker
from gpuplugin.errors import NvmlHung

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuplugin.discovery.nvml import Nvml
    from gpuplugin.model.ids import GpuUuid

T = TypeVar("T")

MAX_THREADS: Final = 4
"""Threads alive at any time, given up or not."""


@dataclass(eq=False, slots=True)
class _Call:
    function: Callable[[], Any]
    name: str
    gpu: GpuUuid | int | None
    answer: asyncio.Future[Any]
    worker: Worker | None = None
    began: float = 0.0
    deadline: asyncio.TimerHandle | None = None

    def same_subject(self, other: _Call) -> bool:
        """Whether both are about one GPU, or are the same call about NVML as a whole."""
        return self.gpu == other.gpu and (self.gpu is not None or self.name == other.name)


class NvmlThread:
    """Makes NVML calls one after the other, in the order asked.

    nvml: for those who need it to name a call (``thread.call(thread.nvml.gpu, 3, gpu=uuid)``) · timeout_seconds: how
    long one call may take, counted from when its turn comes · on_call: hears of each call by its name, with the seconds
    that it took and what it raised, if anything; of one that hangs, when it is given up.

    Everything here runs on one event loop; only the functions given to `call` run on the thread.
    """

    def __init__(
        self,
        nvml: Nvml,
        timeout_seconds: float = 10.0,
        on_call: Callable[[str, float, BaseException | None], object] = lambda _name, _seconds, _error: None,
    ) -> None:
        self.nvml = nvml
        self.timeout_seconds = timeout_seconds
        self._on_call = on_call
        self._waiting: deque[_Call] = deque()
        self._running: _Call | None = None
        self._given_up: list[_Call] = []
        self._idle: Worker | None = None
        self._hangs_in_a_row = 0
        self._closed = False

    @property
    def stuck(self) -> bool:
        """Whether NVML as a whole does not answer: nothing can be said about any GPU."""
        return self._hangs_in_a_row > 1 or len(self._given_up) >= MAX_THREADS

    @property
    def quarantined(self) -> frozenset[GpuUuid | int]:
        """GPUs with a call that has not come back, by what `call` was told as `gpu`."""
        return frozenset(call.gpu for call in self._given_up if call.gpu is not None)

    async def call(self, function: Callable[..., T], *args: object, gpu: GpuUuid | int | None = None) -> T:
        """Make one call on the thread and return its result, or raise what it raised.

        gpu: who the call is about, by UUID, or by NVML index while it has not told its UUID; None for a call about
        NVML as a whole. Raises NvmlHung when the call does
        not come back in time, and at once while an earlier call about the same GPU (or the same call about NVML as a
        whole) has not come back, or while NVML is `stuck`. A caller that is cancelled leaves the call to finish.
        """
        if self._closed:
            raise RuntimeError("the NVML thread is closed")
        name = getattr(function, "__name__", type(function).__name__)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Call(partial(function, *args), name, gpu, answer))
        self._next()
        return await answer

    def close(self) -> None:
        """Take no more calls; those that have not been answered are cancelled. A hung call holds up nothing."""
        self._closed = True
        running = [self._running] if self._running else []
        for call in (*self._waiting, *running):
            call.answer.cancel()
        self._waiting.clear()
        for call in running:
            if call.deadline is not None:
                call.deadline.cancel()
        for worker in (self._idle, *(call.worker for call in (*running, *self._given_up))):
            if worker is not None:
                worker.end()
        self._idle = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _next(self) -> None:
        """Start the first waiting call that can be made; refuse those that cannot."""
        while self._waiting and self._running is None:
            call = self._waiting.popleft()
            if call.answer.done():  # its caller was cancelled
                continue
            if (culprit := self._hung(call)) is not None:
                call.answer.set_exception(NvmlHung(culprit.name, self.timeout_seconds))
                continue
            self._start(call)

    def _hung(self, call: _Call) -> _Call | None:
        """The call for whose sake `call` must not be made."""
        if self.stuck:
            return self._given_up[-1]
        return next((hung for hung in self._given_up if hung.same_subject(call)), None)

    def _start(self, call: _Call) -> None:
        worker, self._idle = self._idle or Worker("nvml"), None
        call.worker, self._running = worker, call
        call.began = asyncio.get_running_loop().time()
        call.deadline = asyncio.get_running_loop().call_later(self.timeout_seconds, self._give_up, call)
        worker.run(call.function).add_done_callback(partial(self._came_back, call))

    def _give_up(self, call: _Call) -> None:
        self._running = None
        self._given_up.append(call)
        self._hangs_in_a_row += 1
        hung = NvmlHung(call.name, self.timeout_seconds)
        self._on_call(call.name, self.timeout_seconds, hung)
        if not call.answer.done():
            call.answer.set_exception(hung)
        self._next()

    def _came_back(self, call: _Call, result: asyncio.Future[Any]) -> None:
        assert call.worker is not None  # noqa: S101 - set when the call was started
        assert call.deadline is not None  # noqa: S101 - likewise
        call.deadline.cancel()
        self._hangs_in_a_row = 0
        if call is self._running:
            self._running = None
            self._on_call(call.name, asyncio.get_running_loop().time() - call.began, result.exception())
            self._answer(call, result)
        else:
            self._given_up.remove(call)
        if self._closed:
            return
        if self._idle is not None or self._running is not None:
            call.worker.end()
        else:
            self._idle = call.worker
        self._next()

    @staticmethod
    def _answer(call: _Call, result: asyncio.Future[Any]) -> None:
        if call.answer.done():
            return
        if (error := result.exception()) is not None:
            call.answer.set_exception(error)
        else:
            call.answer.set_result(result.result())
