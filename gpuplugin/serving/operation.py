"""A number for each call that kubelet makes of us, in every line that is written on its behalf.

It travels by a context variable, which each call's task has a copy of, so that what is called on the way need not hand
it on.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import grpc.aio
from structlog.contextvars import bind_contextvars

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    _Interceptor = grpc.aio.ServerInterceptor[Any, Any]  # generic in its stubs alone
else:
    _Interceptor = grpc.aio.ServerInterceptor

_numbers = itertools.count(1)


def begin() -> int:
    """Give what this task does from now on a number of its own; the log says it as ``operation``."""
    number = next(_numbers)
    bind_contextvars(operation=number)
    return number


class Operations(_Interceptor):
    """Begins an operation with each call."""

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Let the call go on, numbered."""
        begin()
        return await continuation(handler_call_details)
