"""The daemon takes over from the reference's driver, whose claims live on."""

import asyncio
import json
from types import SimpleNamespace

from structlog.testing import capture_logs

from dra.checkpoint import Checkpoint
from gpuplugin.config.settings import Config, Paths
from gpuplugin.daemon.dra_take_over import predecessor, take_over
from tests.daemon.test_dra import DRIVER, NODE, SLICE, claims  # noqa: F401 - a fixture
from tests.dra.leftovers import checkpoint, of_gpu, of_mig, of_mig_25, prepared


def leave(claims, content):  # noqa: F811
    folder = claims.bench.folder / "plugins" / DRIVER
    folder.mkdir()
    (folder / "checkpoint.json").write_text(json.dumps(checkpoint(content, boot=None)))
    return folder


def given(claims, *minors, pod):  # noqa: F811
    return prepared(*(of_gpu(minor, claims.uuid(minor), pool=NODE) for minor in minors), pod=pod)


async def test_what_it_prepared_stays_with_who_has_it_until_it_is_unprepared(claims):  # noqa: F811
    uid = claims.put("train", "gpu-2", "gpu-3")["metadata"]["uid"]
    folder = leave(claims, {uid: given(claims, 2, 3, pod="train")})
    document = claims.bench.cdi.parent / f"k8s.{DRIVER}-claim_{uid}.yaml"
    document.parent.mkdir()
    document.touch()
    async with claims.daemon():
        await claims.published(8)
        assert "still held by claim team/train" in (await claims.prepare("eager", "gpu-3"))[1].error
        assert (await claims.call("Prepare", "train", uid)).error == "", "kubelet has restarted"
        assert document.exists(), "a container of it may start again"
        assert (await claims.call("Unprepare", "train", uid)).error == ""
        assert not document.exists()
        assert (await claims.prepare("eager", "gpu-3"))[1].error == ""
    assert not (folder / "checkpoint.json").exists(), "it would keep GPUs back for ever, should that driver return"


async def test_mig_claims_of_versions_that_do_not_tell_the_gpu_wait_for_a_look(claims):  # noqa: F811
    folder = leave(claims, {"uid-old": prepared(of_mig_25("gpu-1-mig-19-0-1", "MIG-a", pool=NODE), pod="old")})
    before = predecessor(Config(paths=Paths(kubelet=str(claims.bench.folder))))
    node = SimpleNamespace(looked=asyncio.Event(), inventory=None)
    records = Checkpoint(claims.bench.folder / "records")

    async def blocking(call):
        return call()

    with capture_logs() as logs:
        taking = asyncio.create_task(take_over(before, records, blocking, node))
        await claims.until(lambda: logs, "that it waits")
        assert "MIG-a" in logs[0]["reason"]
        assert (folder / "checkpoint.json").exists()
        node.inventory = SimpleNamespace(
            gpus=[SimpleNamespace(uuid=claims.uuid(1), mig_devices=[SimpleNamespace(uuid="MIG-a")])]
        )
        node.looked.set()
        await taking
    assert {hold.gpu for hold in records.ledger.holds} == {claims.uuid(1)}
    assert not (folder / "checkpoint.json").exists()


async def test_names_are_those_that_it_gave(claims):  # noqa: F811
    """Its ResourceSlices are gone a minute after it, and a GPU may have another number than when it named it."""
    uid = claims.put("train", "gpu-9")["metadata"]["uid"]
    mig = of_mig("gpu-1-mig-1g10gb-19-0", claims.uuid(1), "MIG-a", pool=NODE)
    leave(claims, {uid: prepared(of_gpu(9, claims.uuid(2), pool=NODE), mig, pod="train")})
    async with claims.daemon():
        await claims.published(8)
        assert names(claims, 2, 1) == ["gpu-9", "gpu-1"]


async def test_names_that_it_has_published_count_before_those_that_we_remember(claims):  # noqa: F811
    """It was here after us, and what is allocated by now is allocated by its names."""
    async with claims.daemon():
        await claims.published(8)
    own = claims.api.objects.pop(SLICE)
    theirs = {"metadata": {"name": f"{NODE}-{DRIVER}-x7k2p"}, "spec": own["spec"] | {"devices": swapped(own)}}
    claims.api.put(f"{SLICE.removesuffix('00')}x7k2p", theirs)
    async with claims.daemon():
        await claims.published(8)
        assert names(claims, 0, 1, 2) == ["gpu-1", "gpu-0", "gpu-2"]
    assert [path for path in claims.api.objects if "resourceslices" in path] == [SLICE]


def swapped(one):
    other = {"gpu-0": "gpu-1", "gpu-1": "gpu-0"}
    return [device | {"name": other.get(device["name"], device["name"])} for device in one["spec"]["devices"]]


def names(claims, *indices):  # noqa: F811
    devices = claims.api.objects[SLICE]["spec"]["devices"]
    by_uuid = {device["attributes"]["uuid"]["string"]: device["name"] for device in devices}
    return [by_uuid[claims.uuid(index)] for index in indices]


async def test_what_its_claims_hold_is_kept_from_the_device_plugin(claims):  # noqa: F811
    uid = claims.put("train", "gpu-2")["metadata"]["uid"]
    leave(claims, {uid: given(claims, 2, pod="train")})
    async with claims.daemon([claims.uuid(0)]):
        await claims.bench.usable(6)
        assert (await claims.call("Unprepare", "train", uid)).error == ""
        await claims.bench.usable(7)


async def test_it_is_waited_for_while_it_serves_and_it_is_said_when_it_comes_back(claims, monkeypatch):  # noqa: F811
    monkeypatch.setattr("gpuplugin.daemon.dra_take_over.LOOK_SECONDS", 0.02)
    monkeypatch.setattr("gpuplugin.daemon.dra_take_over.WATCH_SECONDS", 0.02)
    folder = leave(claims, {})
    path = claims.bench.folder / "plugins_registry" / f"{DRIVER}-reg.sock"
    other = await asyncio.start_unix_server(lambda _, writer: writer.close(), path)
    with capture_logs() as logs:
        async with claims.daemon():
            await claims.until(lambda: [line for line in logs if "another driver" in line["event"]], "the reason")
            assert not claims.devices()
            assert not list(folder.glob("*.sock"))
            other.close()
            await other.wait_closed()
            path.unlink(missing_ok=True)
            await claims.published(8)
            other = await asyncio.start_unix_server(lambda _, writer: writer.close(), path)
            await claims.until(lambda: [line for line in logs if "beside this one" in line["event"]], "that it is back")
            other.close()
            await other.wait_closed()


async def test_a_checkpoint_that_makes_no_sense_is_said_and_kubelet_is_asked(claims):  # noqa: F811
    folder = leave(claims, {})
    (folder / "checkpoint.json").write_text("{")
    claims.put("train", "gpu-2")
    claims.lister.claims = {"train": ["gpu-2"]}
    with capture_logs() as logs:
        async with claims.daemon():
            await claims.published(8)
            assert "still held by claim team/train" in (await claims.prepare("eager", "gpu-2"))[1].error
    assert [line for line in logs if "makes no sense" in line.get("reason", "")]


async def test_device_plugin_alone_says_that_claims_still_have_gpus(claims):  # noqa: F811
    folder = leave(claims, {"uid-train": given(claims, 2, pod="train")})
    with capture_logs() as logs:
        async with claims.bench.daemon():
            await claims.bench.usable(8)
    (said,) = [line for line in logs if "claims of another driver" in line["event"]]
    assert said["gpus"] == [claims.uuid(2)]
    assert (folder / "checkpoint.json").exists()
