"""The metrics' port, spoken to by the standard library's own client and by hand."""

import asyncio
import base64
import gzip
import http.client
import os
import shutil
import socket
import ssl
import subprocess
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from gpuplugin.errors import MetricsUnserved
from gpuplugin.metrics import http as metrics_http
from gpuplugin.metrics.exposition import Exposition
from gpuplugin.metrics.http import LONGEST_REQUEST, MOST_CONNECTIONS, Access, Address, MetricsServer
from gpuplugin.metrics.series import Family, Kind, Sample, Series

LOOPBACK = Address("127.0.0.1", 0)
SNAPSHOT = Exposition(lambda: [Family(Series("one", Kind.GAUGE, "text"), [Sample("", 1)])])
NOBODY = Access()


@asynccontextmanager
async def served(access=NOBODY, ask=lambda: SNAPSHOT):
    server = MetricsServer(LOOPBACK, access, ask)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def get(port, path="/metrics", headers=None, method="GET", tls=None):
    def ask():
        if tls is None:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        else:
            connection = http.client.HTTPSConnection("localhost", port, timeout=10, context=tls)
        try:
            connection.request(method, path, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    return await asyncio.to_thread(ask)


async def raw(port, text):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_a_scrape_gets_the_snapshot_plain_or_compressed():
    async with served() as server:
        status, headers, body = await get(server.port)
        assert (status, body) == (200, SNAPSHOT.plain)
        assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        status, headers, body = await get(server.port, headers={"Accept-Encoding": "gzip, deflate"})
        assert (status, headers["Content-Encoding"], gzip.decompress(body)) == (200, "gzip", SNAPSHOT.plain)


async def test_one_connection_serves_many_scrapes():
    async with served() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for _ in range(3):
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
            assert await reader.readexactly(length) == SNAPSHOT.plain
        writer.close()


async def test_what_is_not_the_page_is_told_so():
    async with served() as server:
        assert (await get(server.port, "/"))[0] == 404
        assert (await get(server.port, "/metrics?name=x"))[0] == 200
        assert (await get(server.port, method="POST"))[0] == 405
        assert (await get(server.port, "/health"))[::2] == (200, b"ok\n")
        status, headers, body = await get(server.port, method="HEAD")
        assert (status, body, headers["Content-Length"]) == (200, b"", str(len(SNAPSHOT.plain)))


@pytest.mark.parametrize("path", ["/metrics", "/health", "/nothing"])
async def test_an_answer_to_head_has_no_body_so_that_the_connection_can_go_on(path):
    async with served() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for _ in range(2):
            writer.write(f"HEAD {path} HTTP/1.1\r\n\r\n".encode())
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 ")
        writer.close()


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


async def until_open(count):
    async with asyncio.timeout(10):
        while open_files() != count:
            await asyncio.sleep(0.02)


async def test_a_client_that_does_not_read_costs_nothing_once_it_is_given_up(monkeypatch):
    monkeypatch.setattr(metrics_http, "REQUEST_SECONDS", 0.5)
    large = Exposition(lambda: [Family(Series("one", Kind.GAUGE, "x" * (4 << 20)), [Sample("", 1)])])
    async with served(ask=lambda: large) as server:
        before = open_files()
        with ExitStack() as clients:
            for _ in range(8):
                client = clients.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n" * 4)
            await until_open(before + 16)
            await until_open(before + 8)


async def test_before_the_first_look_there_is_nothing_to_give():
    async with served(ask=lambda: None) as server:
        status, headers, _ = await get(server.port)
        assert (status, headers["Retry-After"]) == (503, "5")


@pytest.mark.parametrize(
    "text",
    [
        b"nonsense\r\n\r\n",
        b"GET /metrics\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
        b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 2 * LONGEST_REQUEST + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64 + b"\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_refused_and_the_server_goes_on(text):
    async with served() as server:
        answer = await raw(server.port, text)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
        assert (await get(server.port))[0] == 200


async def test_http_1_0_gets_an_answer_and_an_end():
    async with served() as server:
        answer = await raw(server.port, b"GET /metrics HTTP/1.0\r\n\r\n")
        assert answer.endswith(SNAPSHOT.plain)


async def test_connections_beyond_the_limit_are_turned_away():
    async with served() as server:
        held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(MOST_CONNECTIONS)]
        for _, writer in held:
            writer.write(b"GET /health HTTP/1.1\r\n\r\n")
        for reader, _ in held:
            await reader.readuntil(b"ok\n")
        assert await raw(server.port, b"GET /metrics HTTP/1.1\r\n\r\n") == b""
        for _, writer in held:
            writer.close()
            await writer.wait_closed()
        async with asyncio.timeout(10):
            while not (await raw(server.port, b"GET /metrics HTTP/1.0\r\n\r\n")):
                await asyncio.sleep(0.01)


def basic(text):
    return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


async def test_passwords_are_asked_for_and_may_be_changed_while_it_runs(tmp_path):
    users = tmp_path / "users"
    users.write_text("# who may\nprometheus:oné:two\n")
    async with served(Access(users=users)) as server:
        status, headers, _ = await get(server.port)
        assert (status, headers["WWW-Authenticate"].partition(" ")[0]) == (401, "Basic")
        assert (await get(server.port, headers=basic("prometheus:oné:two")))[0] == 200
        assert (await get(server.port, headers=basic("prometheus:one")))[0] == 401
        assert (await get(server.port, headers={"Authorization": "Basic ///"}))[0] == 401
        assert (await get(server.port, headers={"Authorization": "Bearer abc"}))[0] == 401
        assert (await get(server.port, "/health"))[0] == 200, "that we answer is no secret"
        users.write_text("other:three\n")
        assert (await get(server.port, headers=basic("prometheus:oné:two")))[0] == 401
        assert (await get(server.port, headers=basic("other:three")))[0] == 200
        users.unlink()
        assert (await get(server.port, headers=basic("other:three")))[0] == 401


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("", "names nobody"),
        ("prometheus", "entry 1: allowed: name:password"),
        ("a:b\nprometheus:$2b$12$abcdefghijklmnopqrstuv", "entry 2: prometheus's password looks like a hash"),
    ],
)
async def test_a_list_of_users_that_is_none_keeps_it_from_starting(tmp_path, text, words):
    users = tmp_path / "users"
    if text is not None:
        users.write_text(text)
    with pytest.raises(MetricsUnserved, match=words):
        await MetricsServer(LOOPBACK, Access(users=users), lambda: None).start()


async def test_a_port_that_is_taken_is_named():
    async with served() as server:
        taken = Address("127.0.0.1", server.port)
        with pytest.raises(MetricsUnserved, match=f"127.0.0.1:{server.port} cannot be listened on"):
            await MetricsServer(taken, NOBODY, lambda: None).start()


def certificate(folder, name):
    """Make a key and a certificate for localhost with that common name."""
    openssl = shutil.which("openssl")
    if openssl is None:
        why = "left out, TLS: there is no openssl to make a certificate with"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(why)
        pytest.skip(why)
    key, made = folder / "tls.key", folder / "tls.crt"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "1", "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*command, "-keyout", key, "-out", made], check=True, capture_output=True)
    return made, key


def trusting(made):
    return ssl.create_default_context(cafile=str(made))


async def test_tls_with_a_certificate_that_is_renewed_while_it_runs(tmp_path):
    made, key = certificate(tmp_path, "first")
    async with served(Access(made, key)) as server:
        first = trusting(made)
        assert (await get(server.port, tls=first))[0] == 200
        assert await raw(server.port, b"GET /metrics HTTP/1.1\r\n\r\n") != SNAPSHOT.plain
        certificate(tmp_path, "second")
        server.renew()
        assert (await get(server.port, tls=trusting(made)))[0] == 200
        with pytest.raises(ssl.SSLError):
            await get(server.port, tls=first)
        second = trusting(made)
        made.write_text("broken")
        with pytest.raises(MetricsUnserved, match=r"tls\.crt"):
            server.renew()
        assert (await get(server.port, tls=second))[0] == 200, "the one before stays"


async def test_a_certificate_that_is_not_there_is_named(tmp_path):
    with pytest.raises(MetricsUnserved, match=r"metrics\.certificate and metrics\.key: .*tls\.crt"):
        await MetricsServer(LOOPBACK, Access(tmp_path / "tls.crt", tmp_path / "tls.key"), lambda: None).start()
