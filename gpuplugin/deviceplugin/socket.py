"""The socket that kubelet dials: put in place whole, noticed when it is taken away, never taken from another owner.

gRPC binds a name of its own beside the final one, and the finished socket is renamed onto it: there is no moment
without a socket when one instance follows another, and gRPC's clean-up at shutdown removes only its own name.
"""

from __future__ import annotations

import contextlib
import os
from socket import AF_UNIX, SOCK_STREAM, socket
from typing import TYPE_CHECKING, Any

import grpc.aio

from gpuplugin.errors import SocketError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Identity = tuple[int, int, int]
_LONGEST_PATH = 107  # bytes: sockaddr_un's 108 less the final NUL


def identity(path: Path) -> Identity | None:
    """What tells one socket from another of the same name: device, inode and time of change; None where none is."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


class ListeningSocket:
    """A gRPC server on a Unix socket that is ours as long as `state()` says so."""

    def __init__(self, path: Path, add_services: Callable[[grpc.aio.Server], Any]) -> None:
        self.path, self._add_services = path, add_services
        self._server: grpc.aio.Server | None = None
        self._identity: Identity | None = None

    async def open(self) -> None:
        """Serve at the path, in place of whatever was there. Raises SocketError with what to do."""
        await self.close()
        ours = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        if len(os.fsencode(ours)) > _LONGEST_PATH:
            raise SocketError(
                f"{ours} is longer than the {_LONGEST_PATH} bytes of a socket's path: use a shorter folder"
            )
        if not self.path.parent.is_dir():
            raise SocketError(f"{self.path.parent} is not there: is kubelet running, and is the folder mounted here?")
        if not os.access(self.path.parent, os.W_OK | os.X_OK):
            raise SocketError(
                f"{self.path.parent} is not writable for user {os.geteuid()}: run as root, mount it writable"
            )
        server = grpc.aio.server()
        self._add_services(server)
        try:
            server.add_insecure_port(f"unix:{ours}")
            await server.start()
            ours.rename(self.path)
        except (RuntimeError, OSError) as error:
            await server.stop(None)
            raise SocketError(f"{self.path} cannot be served: {error}") from error
        self._server, self._identity = server, identity(self.path)

    def lost(self) -> bool:
        """Whether nothing serves at the path any more: it is gone, or what was put there does not accept."""
        if self._server is None:
            return True
        now = identity(self.path)
        return now is None or (now != self._identity and not _accepts(self.path))

    def replaced(self) -> bool:
        """Whether another process serves where we did."""
        now = identity(self.path)
        return self._server is not None and now is not None and now != self._identity and _accepts(self.path)

    async def close(self) -> None:
        """Stop serving; the path is removed only while it is ours."""
        server, self._server = self._server, None
        if server is None:
            return
        if identity(self.path) == self._identity:
            with contextlib.suppress(OSError):
                self.path.unlink()
        await server.stop(None)


def _accepts(path: Path) -> bool:
    with socket(AF_UNIX, SOCK_STREAM) as probe:
        probe.setblocking(False)  # noqa: FBT003
        try:
            probe.connect(os.fsencode(path))
        except BlockingIOError:
            return True  # its backlog is full: somebody is there
        except OSError:
            return False
    return True
