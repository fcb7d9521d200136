"""The first process of the container: it starts the one that does the work, and starts it again when that dies.

A container ends with its first process, and all control daemons with it. So the first one does nothing that can fail:
a fault of ours, however bad, then ends no client, since the next worker takes the living control daemons up again. It
has imported nothing that the worker needs, so it is small.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_REST_SECONDS, LONGEST_REST_SECONDS = 0.5, 30.0
STEADY_SECONDS: Final = 60.0
"""A worker that has lived so long has not failed at once."""
FINAL: Final = frozenset({0, 2})
"""Statuses with which the worker ends for good: told to, and called wrongly."""
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def keep(work: Callable[[], int]) -> int:
    """Run `work` in a process of its own until it ends as it should; returns the exit status.

    Signals to end or to read the configuration again are passed on. Processes that lose their parent become ours, so
    that none stays as a zombie.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_PASSED_ON, signal.SIGCHLD))
    rest = FIRST_REST_SECONDS
    while True:
        began = time.monotonic()
        status, told = _attend(_begin(work, libc))
        if told or status in FINAL:
            return status
        print(f"gpuplugin: the supervisor of MPS has ended with status {status}: starting it again", file=sys.stderr)  # noqa: T201
        rest = FIRST_REST_SECONDS if time.monotonic() - began > STEADY_SECONDS else min(rest * 2, LONGEST_REST_SECONDS)
        if signal.sigtimedwait(_PASSED_ON[:2], rest) is not None:
            return 0


def _begin(work: Callable[[], int], libc: ctypes.CDLL) -> int:
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_PASSED_ON, signal.SIGCHLD))
        if os.getppid() == parent:
            status = work()
    except SystemExit as end:  # argparse, after help and for what it does not know
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:  # noqa: BLE001 - nothing may return into the parent's code
        import traceback  # noqa: PLC0415 - seldom

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _attend(child: int) -> tuple[int, bool]:
    """Pass signals on until the child has ended; returns its status, and whether it was told to end."""
    told = False
    while True:
        number = signal.sigwait((*_PASSED_ON, signal.SIGCHLD))
        if number != signal.SIGCHLD:
            told = told or number != signal.SIGHUP
            os.kill(child, number)
            continue
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == child:
                return os.waitstatus_to_exitcode(status), told
