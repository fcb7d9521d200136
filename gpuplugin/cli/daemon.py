"""Asking the daemon of this node, over its socket in a folder that only it and root may enter."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from gpuplugin.daemon.explain_socket import SOCKET
from gpuplugin.errors import DaemonSilent, NothingToExplain
from gpuplugin.explain.questions import Reply

if TYPE_CHECKING:
    from gpuplugin.explain.questions import Question

T = TypeVar("T")

STATUS = "GPUPLUGIN_PATHS_STATUS"
ANSWER_SECONDS = 30.0


def ask(question: Question, kind: type[T]) -> T:
    """Ask, and read the answer as `kind`. Raises NothingToExplain; where no daemon answers, DaemonSilent."""
    status = os.environ.get(STATUS)
    if not status:
        raise DaemonSilent(
            f"{STATUS} is not set: it names the daemon's socket (paths.status). In the daemon's container it is; run "
            "this there: kubectl exec -n NAMESPACE POD -- gpuplugin …"
        )
    path = Path(status).with_name(SOCKET)
    try:
        reply = msgspec.json.decode(_exchange(path, msgspec.json.encode(question) + b"\n"), type=Reply)
    except (OSError, msgspec.MsgspecError) as error:
        raise DaemonSilent(f"the daemon does not answer at {path}: {error}. Is it running?") from error
    if reply.refused:
        raise NothingToExplain(reply.refused)
    return msgspec.convert(reply.answer, type=kind)


def _exchange(path: Path, line: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(str(path))
        connection.sendall(line)
        with connection.makefile("rb") as answer:
            return answer.readline()
