"""Critical XIDs as they happen, so that a sick GPU is taken off the market in milliseconds and not at the next look.

Waiting blocks, so it has a thread of its own, in slices, one after the other. Registering (`Nvml.watch`) is an NVML
call like any other and is made on the NVML thread, while a wait is in progress: the port allows `wait` beside all other
calls, and a wait that is under way stays with the event set that it began with. That way next to nothing that happens
while re-arming is missed (a second XID queued in the old set in those milliseconds); one may be told twice instead,
which harms nobody, because health is a level.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gpuplugin.discovery.worker import Worker
from gpuplugin.errors import NvmlError, NvmlHung

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuplugin.discovery.nvml_thread import NvmlThread
    from gpuplugin.model.health import XidEvent
    from gpuplugin.model.ids import GpuUuid

MAX_BACKOFF_SECONDS: Final = 30.0


class XidWatch:
    """Waits for critical XIDs on every GPU.

    slice_seconds: how long one wait lasts, and so how long after `rearm` a new GPU's XID may be held back ·
    first_backoff_seconds: the pause after a failure; it doubles up to MAX_BACKOFF_SECONDS.

    The callbacks are called on the event loop. on_event: each XID · on_trouble: why none can be seen at present, or
    None when they can again; only when that changes · on_unwatched: the GPUs that cannot be watched, each with the
    reason; only when that changes.
    """

    def __init__(
        self,
        thread: NvmlThread,
        on_event: Callable[[XidEvent], object],
        on_trouble: Callable[[str | None], object],
        on_unwatched: Callable[[Mapping[GpuUuid, str]], object],
        *,
        slice_seconds: float = 1.0,
        first_backoff_seconds: float = 1.0,
    ) -> None:
        self._thread = thread
        self._on_event, self._on_trouble, self._on_unwatched = on_event, on_trouble, on_unwatched
        self._slice_seconds = slice_seconds
        self._first_backoff = first_backoff_seconds
        self._trouble: str | None = None
        self._unwatched: dict[GpuUuid, str] = {}
        self._armed = False
        self._asked = asyncio.Event()
        self._woken: asyncio.Future[None] | None = None
        self._wait: asyncio.Future[XidEvent | None] | None = None
        self._worker: Worker | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def trouble(self) -> str | None:
        """Why no XID can be seen at present; None when they can."""
        return self._trouble

    def start(self) -> None:
        """Begin; nothing is waited for before the first `rearm`. Starting twice does nothing."""
        if self._task is None:
            self._worker = Worker("xid")
            self._task = asyncio.get_running_loop().create_task(self._run(), name="xid-watch")

    async def rearm(self) -> Mapping[GpuUuid, str]:
        """Register every GPU that there is now; to be called once NVML is open, and when GPUs came or went.

        Returns those that cannot be watched, with the reason. Raises NvmlError when nothing can be registered; this is
        then tried again until it works, and said by `on_trouble`.
        """
        try:
            unwatched = await self._arm()
        except NvmlError:
            self._armed = False
            raise
        finally:
            self._asked.set()
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)
        return unwatched

    async def stop(self) -> None:
        """Stop at once: a wait in progress ends by itself, and its thread with it."""
        if self._task is None or self._worker is None:
            return
        self._worker.end()
        self._task.cancel()
        await asyncio.wait({self._task})
        self._task = self._worker = self._wait = None

    async def _arm(self) -> Mapping[GpuUuid, str]:
        unwatched = await self._thread.call(self._thread.nvml.watch)
        self._armed = True
        if unwatched != self._unwatched:
            self._unwatched = unwatched
            self._call(self._on_unwatched, unwatched)
        return unwatched

    async def _run(self) -> None:
        await self._asked.wait()
        loop = asyncio.get_running_loop()
        backoff = self._first_backoff
        while True:
            began = loop.time()
            try:
                if not self._armed:
                    await self._arm()
                event = await self._next()
            except Exception as error:  # noqa: BLE001 - an end of the watch that nobody sees is worse than any error
                # A wait that hangs is still in its event set: another set would be one more that cannot be freed.
                self._armed = self._armed and isinstance(error, NvmlHung)
                self._say(str(error) if isinstance(error, NvmlError) else f"{type(error).__name__}: {error}")
                await self._pause(backoff)
                backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)
                continue
            backoff = self._first_backoff
            self._say(None)
            if event is not None:
                self._call(self._on_event, event)
            elif (left := began + self._slice_seconds - loop.time()) > self._slice_seconds / 2:
                await self._pause(left)  # a wait that does not wait must not become a busy loop

    async def _next(self) -> XidEvent | None:
        """One slice of waiting; the earlier one while that has not come back."""
        assert self._worker is not None  # noqa: S101 - made by start, as is the task that runs this
        if self._wait is None:
            self._wait = self._worker.run(partial(self._thread.nvml.wait, self._slice_seconds))
        limit = self._slice_seconds + self._thread.timeout_seconds
        await asyncio.wait({self._wait}, timeout=limit)
        if not self._wait.done():
            raise NvmlHung("wait", limit)
        done, self._wait = self._wait, None
        return done.result()

    async def _pause(self, seconds: float) -> None:
        """Sleep, but no longer than until the next successful `rearm`, or until a wait that hung comes back."""
        self._woken = asyncio.get_running_loop().create_future()
        waits: set[asyncio.Future[Any]] = {self._woken} if self._wait is None else {self._woken, self._wait}
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def _say(self, trouble: str | None) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self._call(self._on_trouble, trouble)

    @staticmethod
    def _call(callback: Callable[..., object], argument: object) -> None:
        """In order, and so that what a callback raises is the loop's to report and does not end the watch."""
        asyncio.get_running_loop().call_soon(callback, argument)
