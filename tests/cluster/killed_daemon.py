"""The daemon, killed as by SIGKILL the first time that it comes to the point that GPUPLUGIN_TEST_KILL names.

A point is ``before`` or ``after`` and the name of a step of dra.checkpoint.Checkpoint: ``after begin``.
"""

import os
import signal
from typing import Any

from dra.checkpoint import Checkpoint
from gpuplugin.daemon.main import main

when, step = os.environ["GPUPLUGIN_TEST_KILL"].split()
real = getattr(Checkpoint, step)


def killed(*arguments: Any) -> None:
    if when == "after":
        real(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)


setattr(Checkpoint, step, killed)
main([])
