"""``gpuplugin ready`` and ``gpuplugin alive``: what kubelet runs in our container, many times a day.

It imports next to nothing, since each run is a new process: tens of milliseconds of a core, a few MiB for that long.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

VERBS = ("alive", "ready")
ANSWER_SECONDS = 5.0
_LONGEST = 1 << 20


def main(verb: str) -> int:
    """Ask the daemon and print its reasons; 0: alive, or ready."""
    path = os.environ.get("GPUPLUGIN_PATHS_STATUS", "")
    if not path:
        return _say(2, "GPUPLUGIN_PATHS_STATUS is not set: it names the socket on which the daemon answers")
    try:
        answer = _ask(path)
        ready, reasons = bool(answer["ready"]), [str(reason) for reason in answer["reasons"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        return _say(1, f"the daemon does not answer at {path}: {error!r}")
    if verb == "alive":
        return 0
    return _say(0 if ready else 1, "; ".join(reasons))


def _ask(path: str) -> Any:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(path)
        with connection.makefile("rb") as answer:
            return json.loads(answer.readline(_LONGEST))


def _say(status: int, text: str) -> int:
    print(text, file=sys.stderr if status else sys.stdout)
    return status
