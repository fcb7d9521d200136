"""Ready with claims: once kubelet has taken us and slices were written; and never unready for want of an API server."""

import asyncio
import json

import grpc.aio
import httpx2 as httpx
import pytest
from structlog.testing import capture_logs

from gpuplugin.pb import pluginregistration_v1_pb2 as registration
from gpuplugin.pb import pluginregistration_v1_pb2_grpc as registration_rpc
from tests.daemon.conftest import GPU
from tests.daemon.test_dra import (  # noqa: F401 - claims is a fixture
    DRIVER,
    NODE,
    Claims,
    claims,
)

KEY = "gpuplugin.io/not-ready"


class Node:
    """The daemon's status, and a kubelet that takes notice of its claims when told to."""

    def __init__(self, claims: Claims) -> None:  # noqa: F811
        self.claims, self.bench, self.api = claims, claims.bench, claims.api

    def daemon(self, text: str, **flags: str):
        status = str(self.bench.folder / "own" / "status.sock")
        config = self.bench.configure(text)
        return self.bench.daemon(**self.claims.settings, config_file=config, paths_status=status, **flags)

    async def status(self):
        reader, writer = await asyncio.open_unix_connection(self.bench.folder / "own" / "status.sock")
        answer = json.loads(await reader.readline())
        writer.close()
        await writer.wait_closed()
        return answer

    async def until(self, ready: bool, words: str):  # noqa: FBT001 - what is waited for
        answer = None
        try:
            async with asyncio.timeout(20):
                while answer is None or answer["ready"] != ready or words not in "; ".join(answer["reasons"]):
                    await asyncio.sleep(0.02)
                    try:
                        answer = await self.status()
                    except OSError:
                        continue
        except TimeoutError:
            raise TimeoutError(f"wanted {ready}, {words!r}; last: {answer}") from None
        return answer

    async def take_notice(self, error: str = "") -> None:
        """As kubelet's plugin watcher does."""
        folder = self.bench.folder / "plugins_registry"
        await self.claims.until(lambda: list(folder.glob("*.sock")), "a socket to find us by")
        (path,) = folder.glob("*.sock")
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            stub = registration_rpc.RegistrationStub(channel)
            info = await stub.GetInfo(registration.InfoRequest(), timeout=20)
            assert info.name == DRIVER
            told = registration.RegistrationStatus(plugin_registered=not error, error=error)
            await stub.NotifyRegistrationStatus(told, timeout=20)

    def cut(self) -> None:
        """Nothing reaches the API server any more, and what is open breaks."""
        self.api.faults.insert(0, lambda _: httpx.ConnectError("cut off"))
        for watcher in self.api.watchers:
            watcher.cut()

    def mend(self) -> None:
        self.api.faults.clear()


@pytest.fixture
def node(claims) -> Node:  # noqa: F811
    return Node(claims)


async def test_ready_when_kubelet_has_taken_us_and_slices_are_written(node):
    async with node.daemon("dra: {gpus: all}"):
        await node.claims.published(8)
        waiting = await node.until(False, "claims are not registered with kubelet: kubelet has not taken notice yet")
        assert waiting["registered"] == {DRIVER: False, GPU: True}
        await node.take_notice("no such version")
        await node.until(False, "claims are not registered with kubelet: kubelet refused: no such version")
        await node.take_notice()
        ready = await node.until(True, f"claims of {DRIVER}: 8 devices published")
        assert ready["registered"] == {DRIVER: True, GPU: True}


async def test_what_matches_no_gpu_is_warned_of_once_and_told_with_readiness(node):
    said = "dra.gpus: 'al' matches no GPU of this node"
    with capture_logs() as logs:
        async with node.daemon(f"dra: {{gpus: [al, {node.bench.state.snapshot.gpus[0].uuid}]}}"):
            await node.claims.published(1)
            await node.take_notice()
            answer = await node.until(True, said)
            assert any("1 devices published" in reason for reason in answer["reasons"])
            node.bench.state.lose(7)  # the daemon looks again, and says nothing anew
            await node.bench.usable(6)
    warned = [line for line in logs if line.get("reason") == said]
    assert [(line["event"], line["log_level"]) for line in warned] == [("configuration and machine", "warning")]


async def test_not_ready_before_slices_are_written_and_says_why(node):
    gone = node.api.objects.pop(f"/api/v1/nodes/{NODE}")
    async with node.daemon("dra: {gpus: all}"):
        await node.until(False, "ResourceSlices are not published")
        await node.take_notice()
        answer = await node.until(False, f"nodes {NODE}")
        assert answer["reasons"] == [answer["reasons"][0]], "that alone"
        node.api.objects[f"/api/v1/nodes/{NODE}"] = gone
        await node.until(True, "8 devices published")


async def test_slices_that_may_not_be_written_are_the_reason(node):
    node.api.faults.append(
        lambda request: (
            httpx.Response(403, json={"kind": "Status", "code": 403, "message": "not yours"})
            if request.method == "POST"
            else None
        )
    )
    async with node.daemon("dra: {gpus: all}"):
        await node.until(False, "ResourceSlices are not published: ")
        await node.take_notice()
        await node.until(False, "not yours")
        node.mend()
        await node.until(True, "8 devices published")


async def test_an_api_server_that_goes_away_makes_nobody_unready(node):
    async with node.daemon("dra: {gpus: all}"):
        await node.claims.published(8)
        await node.take_notice()
        await node.until(True, "8 devices published")
        node.cut()
        node.bench.state.lose(3)
        asked = len(node.api.asked)
        await node.claims.until(lambda: len(node.api.asked) > asked + 3, "the API server asked in vain")
        assert (await node.status())["ready"]


async def test_claims_that_are_wanted_later_while_the_api_server_is_away_make_nobody_unready(node):
    async with node.daemon("dra: {}"):
        answer = await node.until(True, "8 of 8 usable")
        assert answer["registered"] == {GPU: True}
        node.cut()
        node.bench.configure("dra: {gpus: all}")
        node.bench.source.asked.set()
        await node.until(False, "claims are not registered with kubelet")
        await node.take_notice()
        await node.until(True, "ResourceSlices are not published yet: ")
        node.mend()
        await node.until(True, "8 devices published")


async def test_socket_that_is_taken_away_is_registered_anew(node):
    async with node.daemon("dra: {gpus: all}"):
        await node.claims.published(8)
        await node.take_notice()
        await node.until(True, "8 devices published")
        (path,) = (node.bench.folder / "plugins_registry").glob("*.sock")
        path.unlink()
        await node.until(False, "claims are not registered with kubelet")
        await node.take_notice()
        await node.until(True, "8 devices published")


async def test_folder_that_is_not_mounted_is_the_reason(node):
    (node.bench.folder / "plugins_registry").rmdir()
    async with node.daemon("dra: {gpus: all}"):
        await node.until(False, "plugins_registry is not there")


async def test_startup_taint_stays_until_slices_are_written(node, monkeypatch):
    monkeypatch.setattr("gpuplugin.daemon.taint.LOOK_SECONDS", 0.02)
    path = f"/api/v1/nodes/{NODE}"
    node.api.objects[path] |= {"spec": {"taints": [{"key": KEY, "effect": "NoSchedule"}]}, "status": {}}
    patched = []

    def faults(request: httpx.Request) -> httpx.Response | None:
        if request.method == "PATCH" and request.url.path == path:
            patched.append(len(node.claims.devices()))
            node.api.objects[path] |= {"spec": {"taints": []}}
            return httpx.Response(200, json=node.api.objects[path])
        return httpx.Response(403, json={"code": 403, "message": "no"}) if held and request.method == "POST" else None

    held = [True]
    node.api.faults.append(faults)
    async with node.daemon("dra: {gpus: all}", node_startup_taint=KEY):
        await node.until(False, "ResourceSlices are not published")
        await node.take_notice()
        await node.until(False, "ResourceSlices are not published")
        await asyncio.sleep(0.5)  # that nothing happens has no end to wait for
        assert patched == []
        held.clear()
        await node.claims.until(lambda: patched, "the taint lifted")
    assert patched == [8]
