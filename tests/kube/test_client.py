"""What each answer, and none, becomes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2 as httpx
import pytest

from gpuplugin.errors import (
    KubeConflict,
    KubeError,
    KubeForbidden,
    KubeInvalid,
    KubeNotFound,
    KubeUnavailable,
    KubeUnconfigured,
)
from gpuplugin.kube.client import Kube
from gpuplugin.kube.kinds import CLAIMS, SLICES
from gpuplugin.kube.objects import AllocatedDeviceStatus, Attribute, Device, Meta, Pool, ResourceSlice, SliceSpec
from tests.kube.standin import Hang, StandInApi, kubeconfig, refusal

POOL = Pool(name="n", generation=1, resource_slice_count=1)
PATH = "/apis/resource.k8s.io/v1/resourceslices"
CLAIM = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/train"


def a_slice(name: str = "a", version: str = "") -> ResourceSlice:
    device = Device(name="gpu-0", attributes={"uuid": Attribute(string="GPU-1"), "n": Attribute(number=0)})
    return ResourceSlice(
        metadata=Meta(name=name, resource_version=version),
        spec=SliceSpec(driver="d", node_name="n", pool=POOL, devices=(device,)),
    )


async def test_an_object_comes_back_as_it_was_written(kube: Kube, api: StandInApi):
    made = await kube.create(SLICES, a_slice())
    assert made.spec == a_slice().spec
    assert api.objects[f"{PATH}/a"]["spec"]["devices"][0]["attributes"] == {
        "uuid": {"string": "GPU-1"},
        "n": {"int": 0},
    }
    assert api.objects[f"{PATH}/a"]["kind"] == "ResourceSlice"
    assert await kube.get(SLICES, "a") == made


async def test_who_we_are_is_said(kube: Kube, api: StandInApi):
    seen: list[httpx.Headers] = []
    api.faults.append(lambda request: seen.append(request.headers))
    await kube.list(SLICES)
    assert seen[0]["Authorization"] == "Bearer secret"
    assert seen[0]["User-Agent"] == "gpuplugin"


async def test_a_list_is_read_to_its_last_page(kube: Kube, api: StandInApi):
    api.page = 2
    for name in "abcde":
        await kube.create(SLICES, a_slice(name))
    found, version = await kube.list(SLICES, fields="spec.driver=d")
    assert [one.metadata.name for one in found] == list("abcde")
    assert version == found[-1].metadata.resource_version
    assert await kube.list(SLICES, fields="spec.driver=other") == ((), version)


async def test_claims_that_are_not_to_be_kept_are_not_given(kube: Kube, api: StandInApi):
    api.page = 2
    for name, namespace in (("a", "one"), ("b", "one"), ("a", "two")):
        where = {"name": name, "namespace": namespace}
        api.put(f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}", {"metadata": where})
    kept = await kube.claims(lambda claim: claim.metadata.name == "a")
    assert [claim.metadata.namespace for claim in kept] == ["one", "two"]
    assert len(await kube.claims()) == 3


async def test_pages_that_expired_are_read_in_one(kube: Kube, api: StandInApi):
    api.page = 2
    for name in "abc":
        await kube.create(SLICES, a_slice(name))

    def expire(request: httpx.Request) -> httpx.Response | None:
        if "continue" not in request.url.params:
            return None
        api.page = 500
        return refusal(410, "Expired")

    api.faults.append(expire)
    found, _ = await kube.list(SLICES)
    assert [one.metadata.name for one in found] == list("abc")


async def test_a_replacement_of_another_version_is_a_conflict(kube: Kube):
    made = await kube.create(SLICES, a_slice())
    with pytest.raises(KubeConflict) as caught:
        await kube.replace(SLICES, a_slice(version="0"))
    assert not caught.value.exists
    with pytest.raises(KubeConflict) as caught:
        await kube.create(SLICES, a_slice())
    assert caught.value.exists
    assert await kube.get(SLICES, "a") == made


async def test_only_the_object_that_was_meant_is_deleted(kube: Kube):
    made = await kube.create(SLICES, a_slice())
    assert not await kube.delete(SLICES, "a", uid="another")
    assert await kube.delete(SLICES, "a", uid=made.metadata.uid)
    assert not await kube.delete(SLICES, "a", uid=made.metadata.uid)


async def test_a_dry_run_leaves_nothing(kube: Kube, api: StandInApi):
    assert (await kube.create(SLICES, a_slice(), dry_run=True)).spec == a_slice().spec
    assert api.objects == {}


async def test_a_claims_devices_are_set_on_that_very_claim(kube: Kube, api: StandInApi):
    api.put(CLAIM, {"metadata": {"namespace": "team", "name": "train"}, "status": {"reservedFor": []}})
    claim = await kube.claim("team", "train")
    device = AllocatedDeviceStatus(driver="gpu.nvidia.com", pool="n", device="gpu-0", data={"uuid": "GPU-1"})
    done = await kube.set_claim_devices(claim, [device])
    assert done.status.devices == (device,)
    assert api.objects[CLAIM]["status"]["devices"][0]["data"] == {"uuid": "GPU-1"}
    api.remove(CLAIM)
    api.put(CLAIM, {"metadata": {"namespace": "team", "name": "train"}})
    with pytest.raises(KubeConflict):
        await kube.set_claim_devices(claim, [device])
    assert [one.metadata.uid for one in await kube.claims()] != [claim.metadata.uid]


@pytest.mark.parametrize(
    ("status", "error"),
    [(404, KubeNotFound), (409, KubeConflict), (422, KubeInvalid), (400, KubeInvalid), (403, KubeForbidden)],
)
async def test_a_refusal_is_not_asked_for_twice(kube: Kube, api: StandInApi, status: int, error: type[KubeError]):
    api.fail(lambda: refusal(status))
    with pytest.raises(error):
        await kube.get(SLICES, "a")
    assert len(api.asked) == 1


async def test_forbidden_says_the_rule_that_is_missing(kube: Kube, api: StandInApi):
    api.fail(lambda: refusal(403, "Forbidden", 'User "x" cannot get'))
    with pytest.raises(KubeForbidden) as caught:
        await kube.claim("team", "train")
    assert str(caught.value) == (
        'get resourceclaims.resource.k8s.io team/train: User "x" cannot get; needed is an RBAC rule with '
        "apiGroups ['resource.k8s.io'], resources ['resourceclaims'], verbs ['get'], and an admission policy that lets "
        "it pass"
    )


@pytest.mark.parametrize(
    "trouble",
    [
        lambda: refusal(500),
        lambda: refusal(503),
        lambda: httpx.Response(502, content=b"<html>no"),
        lambda: refusal(429, headers={"Retry-After": "0"}),
        lambda: refusal(429, headers={"Retry-After": "nonsense"}),
        lambda: httpx.ConnectError("refused"),
        lambda: httpx.RemoteProtocolError("closed"),
    ],
)
async def test_what_passes_is_tried_again(kube: Kube, api: StandInApi, trouble):
    api.fail(trouble, times=2)
    await kube.create(SLICES, a_slice())
    assert len(api.asked) == 3


async def test_trying_ends_with_the_patience(kube: Kube, api: StandInApi):
    api.fail(lambda: httpx.ConnectError("refused"), times=1000)
    with pytest.raises(KubeUnavailable, match=r"get resourceslices\.resource\.k8s\.io a: refused"):
        await kube.get(SLICES, "a", patience=0)
    assert len(api.asked) == 1
    with pytest.raises(KubeUnavailable):
        await kube.get(SLICES, "a")
    assert 2 < len(api.asked) < 10


async def test_a_server_that_wants_more_patience_than_there_is_is_believed(kube: Kube, api: StandInApi):
    api.fail(lambda: refusal(429, headers={"Retry-After": "3600"}))
    with pytest.raises(KubeUnavailable):
        await kube.get(SLICES, "a")
    assert len(api.asked) == 1


async def test_a_request_that_is_swallowed_is_given_up(kube: Kube, api: StandInApi, monkeypatch):
    monkeypatch.setattr("gpuplugin.kube.client.READ_SECONDS", 0.05)
    await kube.create(SLICES, a_slice())
    api.fail(Hang)
    assert await kube.get(SLICES, "a")
    api.fail(Hang, times=1000)
    with pytest.raises(KubeUnavailable, match="no answer in time"):
        await kube.get(SLICES, "a")


async def test_a_body_that_is_no_object_is_trouble_of_the_way(kube: Kube, api: StandInApi):
    api.fail(lambda: httpx.Response(200, content=b"<html>login"), times=2)
    with pytest.raises(KubeUnavailable, match="makes no sense"):
        await kube.get(SLICES, "a")
    with pytest.raises(KubeUnavailable, match="makes no sense"):
        await kube.list(CLAIMS)


async def test_a_server_that_closes_each_connection_is_survived(tmp_path: Path):
    async def slam(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(slam, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Kube(kubeconfig(tmp_path, f"http://127.0.0.1:{port}"), patience=0.5) as kube:
        with pytest.raises(KubeUnavailable):
            await kube.get(SLICES, "a")
        assert kube.calls["GET"] > 1


def test_nothing_configured_says_what_was_looked_at(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(KubeUnconfigured, match="outside a pod give a kubeconfig"):
        Kube()
    with pytest.raises(KubeUnconfigured, match="absent"):
        Kube(tmp_path / "absent")
    (tmp_path / "odd").write_text("{}")
    with pytest.raises(KubeUnconfigured, match="odd"):
        Kube(tmp_path / "odd")


@pytest.mark.parametrize(
    "text", ["", "[]", "text", "{", "\0", "users: null\nclusters: null\n", "users: [a]\nclusters: [b]\n"]
)
def test_a_kubeconfig_that_is_none_or_half_written_is_named(tmp_path: Path, text: str):
    (tmp_path / "odd").write_text(text)
    with pytest.raises(KubeUnconfigured, match=r"odd: is empty, half written, or no kubeconfig$"):
        Kube(tmp_path / "odd")


async def test_a_token_that_was_rotated_is_read_again(tmp_path: Path, api: StandInApi):
    config = kubeconfig(tmp_path)
    token = tmp_path / "token"
    token.write_text("old")
    config.write_text(config.read_text().replace('"token": "secret"', f'"tokenFile": "{token}"'))

    def only_new(request: httpx.Request) -> httpx.Response | None:
        return None if request.headers["Authorization"] == "Bearer new" else refusal(401, "Unauthorized")

    async with Kube(config, transport=api) as kube:
        api.faults.append(only_new)
        with pytest.raises(KubeForbidden, match="look at the service account"):
            await kube.list(SLICES)
        token.write_text("new")
        await kube.list(SLICES)


AUTHORITY = """\
-----BEGIN CERTIFICATE-----
MIIBdjCCARugAwIBAgIUT5S04xwguYtz6Zi+csv6mJ/xL1MwCgYIKoZIzj0EAwIw
DzENMAsGA1UEAwwEdGVzdDAgFw0yNjExMzAxMDQ4MjlaGA8yMTI2MTEwNjEwNDgy
OVowDzENMAsGA1UEAwwEdGVzdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABHFW
n6CFrz52A7hGcqGckmyxiwB3BohOUPUNk6IWLp8l3LG0A4UFw3jTgq6gIVBmWAEw
eAg0UmPdY4xd38HAWIejUzBRMB0GA1UdDgQWBBT1nK9jF8GYa3RYU4KGg1SbxiYA
7TAfBgNVHSMEGDAWgBT1nK9jF8GYa3RYU4KGg1SbxiYA7TAPBgNVHRMBAf8EBTAD
AQH/MAoGCCqGSM49BAMCA0kAMEYCIQDiNSg9AZEp0L5OrzOcqk7TZppZ8LLghvyB
zkNsNcfEYgIhAKHwBOZP0V2oRc3HNGDc0uCjYA9Xyv9nh3Gc0HXyyozc
-----END CERTIFICATE-----
"""


async def test_in_a_pod_the_service_account_says_all(tmp_path: Path, api: StandInApi, monkeypatch):
    for name, content in {"token": "first", "namespace": "gpus", "ca.crt": AUTHORITY}.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setattr("gpuplugin.kube.connection.SERVICE_ACCOUNT", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    valid = ["first"]
    said: list[str] = []

    def authenticate(request: httpx.Request) -> httpx.Response | None:
        said.append(str(request.url))
        return None if request.headers["Authorization"] == f"Bearer {valid[0]}" else refusal(401, "Unauthorized")

    api.faults.append(authenticate)
    async with Kube(transport=api) as kube:
        await kube.list(SLICES)
        valid[0] = "second"  # kubelet renews tokens in place
        (tmp_path / "token").write_text("second\n")
        await kube.list(SLICES)
    assert said[0].startswith("https://[fd00::1]/apis/resource.k8s.io/v1/resourceslices")
    (tmp_path / "ca.crt").write_text("nonsense")
    with pytest.raises(KubeUnconfigured):
        Kube()
