"""The metrics' port: HTTP GET on the daemon's own loop, with TLS and passwords where they are wanted.

asyncio's streams and no web framework: there is one page, its body is ready, and the daemon's memory is budgeted. What
a scraper sends is held to small limits, because the port may be open to a whole cluster.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import ssl
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from gpuplugin.errors import MetricsUnserved
from gpuplugin.metrics.exposition import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from gpuplugin.metrics.exposition import Exposition

MOST_CONNECTIONS: Final = 64
LONGEST_REQUEST: Final = 16 << 10
REQUEST_SECONDS, IDLE_SECONDS = 10.0, 300.0
_TEXT: Final = "text/plain; charset=utf-8"
_END: Final = b"\r\n\r\n"
_HASHED: Final = ("$2", "$5$", "$6$", "$argon2", "{")


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; host None: on all interfaces."""

    host: str | None
    port: int


@dataclass(frozen=True, slots=True)
class Access:
    """Files that say who may read, and under which name we answer; None: not wanted. Looked at again at each use."""

    certificate: Path | None = None
    key: Path | None = None
    users: Path | None = None


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    headers: Mapping[str, str]

    @property
    def brings_body(self) -> bool:
        return self.headers.get("content-length", "0") != "0" or "transfer-encoding" in self.headers

    @property
    def stays(self) -> bool:
        return self.headers.get("connection", "").lower() != "close"


class MetricsServer:
    """Serves ``/metrics``, and ``/health`` for those who ask whether we answer. ask: the newest snapshot."""

    def __init__(self, address: Address, access: Access, ask: Callable[[], Exposition | None]) -> None:
        self._address, self._access, self._ask = address, access, ask
        self._tls: ssl.SSLContext | None = None
        self._seen: object = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port that is listened on, also where any free one was asked for."""
        assert self._server is not None  # noqa: S101 - only asked of a server that was started
        number: int = self._server.sockets[0].getsockname()[1]
        return number

    async def start(self) -> None:
        """Listen. Raises MetricsUnserved."""
        _users(self._access.users)
        if self._access.certificate is not None:
            self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
            self._load_certificate(self._tls)
        try:
            self._server = await asyncio.start_server(
                self._serve,
                self._address.host,
                self._address.port,
                ssl=self._tls,
                limit=LONGEST_REQUEST,
                **({"ssl_handshake_timeout": REQUEST_SECONDS} if self._tls else {}),
            )
        except OSError as error:
            where = f"{self._address.host or ''}:{self._address.port}"
            raise MetricsUnserved(
                f"metrics.address: {where} cannot be listened on: {error.strerror or error}"
            ) from None

    async def close(self) -> None:
        """Stop at once, whoever is connected."""
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._connections):
            writer.transport.abort()

    def renew(self) -> None:
        """Take over a certificate that has been replaced. Raises MetricsUnserved; the one before then stays."""
        if self._tls is not None:
            self._load_certificate(self._tls)

    def _load_certificate(self, tls: ssl.SSLContext) -> None:
        certificate, key = self._access.certificate, self._access.key
        assert certificate is not None  # noqa: S101 - there is no TLS without
        try:
            seen = tuple(path.stat().st_mtime_ns for path in (certificate, key) if path is not None)
            if seen != self._seen:
                tls.load_cert_chain(certificate, key)
                self._seen = seen
        except (OSError, ssl.SSLError) as error:
            raise MetricsUnserved(f"metrics.certificate and metrics.key: {certificate}, {key}: {error}") from None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MOST_CONNECTIONS:
            writer.close()
            return
        self._connections.add(writer)
        try:
            with suppress(ConnectionError, TimeoutError, ssl.SSLError, asyncio.IncompleteReadError):
                while await self._answer_one(reader, writer):
                    pass
            await _hang_up(writer)
        finally:
            self._connections.discard(writer)
            writer.transport.abort()  # what a client has not read would otherwise be kept for it, for ever

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer a request; False: the connection ends."""
        async with asyncio.timeout(IDLE_SECONDS):
            first = await reader.readexactly(1)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                request = _parsed(first + await reader.readuntil(_END))
        except asyncio.LimitOverrunError:
            request = None
        if request is None or request.brings_body:
            await _send(writer, HTTPStatus.BAD_REQUEST, stays=False)
            return False
        await self._respond(request, writer)
        return request.stays

    async def _respond(self, request: _Request, writer: asyncio.StreamWriter) -> None:
        send = partial(_send, writer, stays=request.stays, head=request.method == "HEAD")
        if request.method not in ("GET", "HEAD"):
            await send(HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "GET, HEAD"})
        elif request.path in ("/health", "/healthz"):
            await send(HTTPStatus.OK, body=b"ok\n")
        elif not self._allowed(request):
            await send(HTTPStatus.UNAUTHORIZED, {"WWW-Authenticate": 'Basic realm="gpuplugin", charset="UTF-8"'})
        elif request.path != "/metrics":
            await send(HTTPStatus.NOT_FOUND, body=b"the metrics are at /metrics\n")
        elif (snapshot := self._ask()) is None:
            body = b"the GPUs have not been looked at yet\n"
            await send(HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "5"}, body)
        else:
            zipped = "gzip" in request.headers.get("accept-encoding", "")
            headers = {"Content-Type": CONTENT_TYPE, "Vary": "Accept-Encoding"}
            headers |= {"Content-Encoding": "gzip"} if zipped else {}
            body = snapshot.gzipped if zipped else snapshot.plain
            await send(HTTPStatus.OK, headers, body)

    def _allowed(self, request: _Request) -> bool:
        if self._access.users is None:
            return True
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            given = base64.b64decode(secret.strip(), validate=True)
            known = _users(self._access.users)
        except (ValueError, MetricsUnserved):
            return False
        matches = [hmac.compare_digest(given, one.encode()) for one in known]  # all of them: no time tells which
        return any(matches)


def _users(path: Path | None) -> tuple[str, ...]:
    """Read ``name:password`` lines. Raises MetricsUnserved."""
    if path is None:
        return ()
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise MetricsUnserved(f"metrics.users: {path}: {error}") from None
    users = tuple(line for line in lines if line and not line.startswith("#"))
    for number, line in enumerate(users, 1):
        name, colon, password = line.partition(":")
        if not name or not colon or not password:
            raise MetricsUnserved(f"metrics.users: {path}: entry {number}: allowed: name:password")
        if password.startswith(_HASHED):
            raise MetricsUnserved(
                f"metrics.users: {path}: entry {number}: {name}'s password looks like a hash, which cannot be checked "
                "here; write the password, and mount the file from a Secret"
            )
    if not users:
        raise MetricsUnserved(f"metrics.users: {path}: names nobody; allowed: lines of name:password")
    return users


def _parsed(text: bytes) -> _Request | None:
    lines = text.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):  # noqa: PLR2004 - method, target, version
        return None
    headers: dict[str, str] = {}
    for line in filter(None, lines[1:]):
        name, colon, value = line.partition(":")
        if not colon:
            return None
        headers[name.lower()] = value.strip()
    if words[2] == "HTTP/1.0":
        headers["connection"] = "close"
    return _Request(words[0], words[1].partition("?")[0], headers)


async def _send(
    writer: asyncio.StreamWriter,
    status: HTTPStatus,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    stays: bool,
    head: bool = False,
) -> None:
    body = body or f"{status.phrase}\n".encode()
    fields = {"Content-Type": _TEXT, "Content-Length": f"{len(body)}", **(headers or {})}
    if not stays:
        fields["Connection"] = "close"
    lines = (f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in fields.items()))
    writer.write("\r\n".join(lines).encode() + _END)
    if not head:
        writer.write(body)
    async with asyncio.timeout(REQUEST_SECONDS):
        await writer.drain()


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    """Close, once what was written last has been taken; a client that takes nothing is waited for no longer."""
    writer.close()
    with suppress(ConnectionError, TimeoutError, ssl.SSLError):
        async with asyncio.timeout(REQUEST_SECONDS):
            await writer.wait_closed()
