"""A thread for calls that may never come back, so that neither the event loop nor the interpreter's exit waits for one.

asyncio's own executor is no use for that: it joins its threads at exit, and has no way to give one up.
"""

from __future__ import annotations

import asyncio
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_Job = tuple["Callable[[], Any]", "asyncio.Future[Any]"]


class Worker:
    """One daemon thread that makes blocking calls, in order, for the loop that asks."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self.thread.start()

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Make `call` on the thread; the future is done when, and only when, the call has come back.

        Waiting for it with a limit is asyncio.wait's business. A future that nobody looks at again is no fault: an
        exception in it is not reported as unretrieved. Cancelling it does not stop the call.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._jobs.put((call, future))
        return future

    def end(self) -> None:
        """Let the thread end once it has made the calls that it was given. Returns at once."""
        self._jobs.put(None)

    def _serve(self) -> None:
        for call, future in iter(self._jobs.get, None):
            result: Any = None
            error: BaseException | None = None
            try:
                result = call()
            except BaseException as raised:  # noqa: BLE001 - whatever it is belongs to the one who asked
                error = raised
            try:
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:  # the loop is closed: there is nobody left to work for
                return
            del call, future, result, error


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):  # a future refuses it
        future.set_exception(RuntimeError(f"call raised {error!r}"))
    else:
        future.set_exception(error)
