"""What kubelet gets over its sockets: both versions, an answer for each claim, and sockets that come back."""

import asyncio
import shutil
import tempfile
from pathlib import Path

import grpc.aio
import pytest
from structlog.testing import capture_logs

from dra.registration import VERSIONS, Registered
from dra.server import add_claim_calls
from gpuplugin.errors import CheckpointError
from gpuplugin.metrics.instruments import PREPARE_ERRORS
from gpuplugin.pb import dra_v1_pb2 as v1
from gpuplugin.pb import dra_v1_pb2_grpc as v1_rpc
from gpuplugin.pb import dra_v1beta1_pb2 as v1beta1
from gpuplugin.pb import dra_v1beta1_pb2_grpc as v1beta1_rpc
from gpuplugin.pb import pluginregistration_v1_pb2 as registration
from gpuplugin.pb import pluginregistration_v1_pb2_grpc as registration_rpc
from tests.dra.claims import DRIVER, KIND, POOL, ApiServer, Node, claim, gpu

VERSION = {"v1": (v1, v1_rpc), "v1beta1": (v1beta1, v1beta1_rpc)}
SOON = 20


@pytest.fixture
def folder():
    """Short, since a socket's path is."""
    made = Path(tempfile.mkdtemp(prefix="dra"))
    for kubelets in ("plugins", "plugins_registry"):
        (made / kubelets).mkdir()
    yield made
    shutil.rmtree(made)


@pytest.fixture
def api():
    return ApiServer()


@pytest.fixture
async def node(folder, api):
    return Node(folder / "plugins" / DRIVER / "claims", api)


async def socket(folder, kind, earlier=()):
    async with asyncio.timeout(SOON):
        while True:
            found = sorted(set((folder / kind).glob("gpuplugin-*.sock")) - set(earlier))
            if found:
                return found[-1]
            await asyncio.sleep(0.01)


@pytest.fixture
async def served(folder, node):
    one = Registered(folder, DRIVER, lambda server: add_claim_calls(server, node.preparing))
    task = asyncio.create_task(one.run())
    yield await socket(folder, f"plugins/{DRIVER}")
    task.cancel()
    await asyncio.wait([task])


async def info(path):
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        return await registration_rpc.RegistrationStub(channel).GetInfo(registration.InfoRequest(), timeout=SOON)


def names(api, *claims):
    return [api.Claim(namespace=c.metadata.namespace, name=c.metadata.name, uid=c.metadata.uid) for c in claims]


@pytest.mark.parametrize("version", VERSION)
async def test_every_claim_has_an_answer_and_one_that_fails_keeps_none_back(served, api, version):
    messages, rpc = VERSION[version]
    good, missing, twin = claim("good", 1, 2), claim("missing", 3), claim("twin", 4)
    refused = PREPARE_ERRORS.count("prepare", "claim_changed")
    api.put(good, twin)
    async with grpc.aio.insecure_channel(f"unix:{served}") as channel:
        stub = rpc.DRAPluginStub(channel)
        request = messages.NodePrepareResourcesRequest(claims=names(messages, good, missing, twin))
        answer = (await stub.NodePrepareResources(request, timeout=SOON)).claims
        assert set(answer) == {"uid-good", "uid-missing", "uid-twin"}
        assert [
            (list(d.request_names), d.pool_name, d.device_name, list(d.cdi_device_ids))
            for d in answer["uid-good"].devices
        ] == [(["gpus"], POOL, f"gpu-{i}", [f"{KIND}={gpu(i)}"]) for i in (1, 2)]
        assert answer["uid-good"].error == answer["uid-twin"].error == ""
        assert "none of that name" in answer["uid-missing"].error
        assert not answer["uid-missing"].devices
        assert PREPARE_ERRORS.count("prepare", "claim_changed") == refused + 1

        request = messages.NodeUnprepareResourcesRequest(claims=names(messages, good, missing, twin))
        answer = (await stub.NodeUnprepareResources(request, timeout=SOON)).claims
        assert {uid: entry.error for uid, entry in answer.items()} == dict.fromkeys(
            ["uid-good", "uid-missing", "uid-twin"], ""
        )


async def test_share_of_a_device_is_told(served, api):
    one = claim("one", 1, shares=("share-1",))
    api.put(one)
    async with grpc.aio.insecure_channel(f"unix:{served}") as channel:
        request = v1.NodePrepareResourcesRequest(claims=names(v1, one))
        answer = await v1_rpc.DRAPluginStub(channel).NodePrepareResources(request, timeout=SOON)
    assert answer.claims["uid-one"].devices[0].share_id == "share-1"


async def test_a_fault_of_ours_is_that_claims_error(served, api, node):
    one, two = claim("one", 1), claim("two", 2)
    api.put(one, two)
    api.objects[("team", "one")] = None
    async with grpc.aio.insecure_channel(f"unix:{served}") as channel:
        request = v1.NodePrepareResourcesRequest(claims=names(v1, one, two))
        answer = await v1_rpc.DRAPluginStub(channel).NodePrepareResources(request, timeout=SOON)
    assert "a fault of gpuplugin: AttributeError" in answer.claims["uid-one"].error
    assert answer.claims["uid-two"].error == ""


async def test_kubelet_is_told_name_socket_and_versions_v1_first(served, folder):
    found = await info(await socket(folder, "plugins_registry"))
    assert (found.type, found.name, found.endpoint) == ("DRAPlugin", DRIVER, str(served))
    assert tuple(found.supported_versions) == VERSIONS
    assert VERSIONS[0] == "v1.DRAPlugin"


@pytest.mark.parametrize("which", ["plugins_registry", f"plugins/{DRIVER}"])
async def test_socket_that_somebody_removes_comes_back_and_both_fit(served, folder, which):
    before = {await socket(folder, "plugins_registry"), served}
    (await socket(folder, which)).unlink()
    again = await socket(folder, which, before)
    assert again.exists()
    service = await socket(folder, f"plugins/{DRIVER}")
    async with asyncio.timeout(SOON):
        while (await info(await socket(folder, "plugins_registry"))).endpoint != str(service):
            await asyncio.sleep(0.05)


async def test_two_instances_serve_side_by_side_and_the_old_one_ends_alone(served, folder, node, api):
    api.put(one := claim("one", 1))
    old = await socket(folder, "plugins_registry")
    next_one = Registered(folder, DRIVER, lambda server: add_claim_calls(server, node.again().preparing))
    task = asyncio.create_task(next_one.run())
    new_service = await socket(folder, f"plugins/{DRIVER}", [served])
    new = await socket(folder, "plugins_registry", [old])
    assert ((await info(old)).endpoint, (await info(new)).endpoint) == (str(served), str(new_service))
    for path in (served, new_service):
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            request = v1.NodePrepareResourcesRequest(claims=names(v1, one))
            answer = await v1_rpc.DRAPluginStub(channel).NodePrepareResources(request, timeout=SOON)
            assert answer.claims["uid-one"].error == ""
    assert len(node.records()) == 1
    task.cancel()
    await asyncio.wait([task])
    assert (old.exists(), served.exists(), new.exists(), new_service.exists()) == (True, True, False, False)


async def test_registration_status_is_heard(folder, node):
    heard = []
    one = Registered(folder, DRIVER, lambda server: add_claim_calls(server, node.preparing), lambda: heard.append(1))
    task = asyncio.create_task(one.run())
    path = await socket(folder, "plugins_registry")
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        stub = registration_rpc.RegistrationStub(channel)
        await stub.NotifyRegistrationStatus(
            registration.RegistrationStatus(plugin_registered=False, error="no"), timeout=SOON
        )
        assert heard == []
        await stub.NotifyRegistrationStatus(registration.RegistrationStatus(plugin_registered=True), timeout=SOON)
        assert heard == [1]
    task.cancel()
    await asyncio.wait([task])


async def test_no_folder_is_made_where_there_is_no_kubelet(folder, node):
    shutil.rmtree(folder / "plugins")
    shutil.rmtree(folder / "plugins_registry")
    with capture_logs() as logs:
        task = asyncio.create_task(Registered(folder, DRIVER, lambda _: None).run())
        async with asyncio.timeout(SOON):
            while not logs:
                await asyncio.sleep(0.01)
    assert "is kubelet running" in logs[0]["reason"]
    with pytest.raises(CheckpointError):
        node.checkpoint.load()
    assert list(folder.iterdir()) == []
    for kubelets in ("plugins", "plugins_registry"):
        (folder / kubelets).mkdir()
    await socket(folder, "plugins_registry")
    task.cancel()
    await asyncio.wait([task])
