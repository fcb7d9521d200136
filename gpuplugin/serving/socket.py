"""The socket that kubelet dials: of a new name each time, noticed when it is taken away, cleared up after a crash.

Kubelet refuses a socket's name for as long as it holds a stream to it, and takes several sockets for one resource, of
which the newest is asked. So no name is ever used twice: one instance follows another without a moment in which
kubelet has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import time
from socket import AF_UNIX, SOCK_STREAM, socket
from typing import TYPE_CHECKING, Any

import grpc.aio

from gpuplugin.errors import SocketError
from gpuplugin.serving.operation import Operations

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Identity = tuple[int, int, int]
_LONGEST_PATH = 107  # bytes: sockaddr_un's 108 less the final NUL
_PREFIX = "gpuplugin-"
_LONGEST_LABEL = 30


def identity(path: Path) -> Identity | None:
    """What tells one socket from another of the same name: device, inode and time of change; None where none is."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def serves(folder: Path) -> bool:
    """Whether an instance of ours serves in a folder, at whatever socket. What killed ones have left does not count."""
    return any(accepts(path) for path in _ours(folder, _PREFIX))


class ListeningSocket:
    """A gRPC server on a Unix socket in `folder`. label: what the name is made of, such as ``gpu``."""

    def __init__(self, folder: Path, label: str, add_services: Callable[[grpc.aio.Server], Any]) -> None:
        self.folder, self._add_services = folder, add_services
        self._stem = f"{_PREFIX}{_short(label)}-"
        self.path = folder / self._stem
        self._server: grpc.aio.Server | None = None
        self._identity: Identity | None = None

    async def open(self) -> None:
        """Serve at a new path, `path`. Raises SocketError with what to do."""
        await self.close()
        path = self.folder / f"{self._stem}{time.time_ns():x}.sock"
        self._check(path)
        self._clear_up()
        server = grpc.aio.server(interceptors=[Operations()])
        self._add_services(server)
        try:
            server.add_insecure_port(f"unix:{path}")
            starting = asyncio.ensure_future(server.start())
            try:
                await asyncio.shield(starting)
            finally:  # half a start, when we are cancelled, would leave the socket behind, and gRPC in disorder
                await starting
                self._server, self.path, self._identity = server, path, identity(path)
        except (RuntimeError, OSError) as error:
            await server.stop(None)
            raise SocketError(f"{path} cannot be served: {error}") from error

    def lost(self) -> bool:
        """Whether kubelet could not reach us (any more): as it starts, it removes what it finds in its folder."""
        return self._server is None or self._identity is None or identity(self.path) != self._identity

    def newer(self) -> Path | None:
        """A later instance's socket for the same, if one serves."""
        serial = re.compile(rf"{re.escape(self._stem)}[0-9a-f]+\.sock")  # not those of gpu-part, for gpu
        others = (path for path in self._others(self._stem) if serial.fullmatch(path.name))
        later = (path for path in others if path.name > self.path.name)
        return next(filter(accepts, later), None)

    async def close(self) -> None:
        """Stop serving and remove the socket."""
        server, self._server = self._server, None
        if server is None:
            return
        if identity(self.path) == self._identity:
            with contextlib.suppress(OSError):
                self.path.unlink()
        await server.stop(None)

    def _check(self, path: Path) -> None:
        if not self.folder.is_dir():
            raise SocketError(f"{self.folder} is not there: is kubelet running, and is the folder mounted here?")
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise SocketError(f"{self.folder} is not writable for user {os.geteuid()}: run as root, mount it writable")
        if len(os.fsencode(path)) > _LONGEST_PATH:
            raise SocketError(f"{path} is longer than the {_LONGEST_PATH} bytes of a socket's path: use a shorter one")

    def _clear_up(self) -> None:
        """Remove what instances that were killed have left."""
        for path in self._others(_PREFIX):
            if not accepts(path):
                with contextlib.suppress(OSError):
                    path.unlink()

    def _others(self, stem: str) -> list[Path]:
        return [path for path in _ours(self.folder, stem) if path != self.path]


def _ours(folder: Path, stem: str) -> list[Path]:
    try:
        return [path for path in folder.glob(f"{stem}*.sock") if path.is_socket()]
    except OSError:
        return []


def _short(label: str) -> str:
    """Give a label that fits into a socket's path, and is another for another label."""
    if len(label) <= _LONGEST_LABEL:
        return label
    return f"{label[: _LONGEST_LABEL - 9]}_{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def accepts(path: Path) -> bool:
    """Whether somebody listens at that socket."""
    with socket(AF_UNIX, SOCK_STREAM) as probe:
        probe.setblocking(False)  # noqa: FBT003
        try:
            probe.connect(os.fsencode(path))
        except BlockingIOError:
            return True  # its backlog is full: somebody is there
        except OSError:
            return False
    return True
