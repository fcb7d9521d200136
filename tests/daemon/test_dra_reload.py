"""GPUs that change between device plugin and claims while the daemon runs: one owner at every moment."""

import asyncio
import threading

import httpx2 as httpx
import pytest
from structlog.testing import capture_logs

from dra.checkpoint import COMPLETED, Checkpoint, Record, RecordedDevice, RecordedPod
from gpuplugin.plan.ledger import Ledger
from tests.daemon.conftest import GPU
from tests.daemon.test_dra import (  # noqa: F401 - claims is a fixture
    CLAIMS,
    DRIVER,
    NODE,
    SLICE,
    Claims,
    claims,
)
from tests.daemon.test_sharing import lines

ALL, NONE = "dra: {gpus: all}\n", "dra: {}\n"
END = "claims are not served any more: they have no GPU, and nobody has one by a claim"


@pytest.fixture
def node(claims, monkeypatch):  # noqa: F811
    monkeypatch.setattr("gpuplugin.daemon.dra.LOOK_SECONDS", 0.02)
    monkeypatch.setattr("gpuplugin.daemon.dra.QUIET_SECONDS", 0.2)
    return claims


def daemon(node: Claims, text: str):
    return node.bench.daemon(**node.settings, config_file=node.bench.configure(text))


def reconfigure(node: Claims, text: str) -> None:
    node.bench.configure(text)
    node.bench.source.asked.set()


def sockets(node: Claims) -> list[str]:
    return [path.name for path in (node.bench.folder / "plugins_registry").iterdir()]


def hold_up(monkeypatch, begin) -> tuple[threading.Event, threading.Event]:
    """Have claims be entered by `begin`, and not before the second event is set; the first is once one waits."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(*arguments):
        begun.set()
        assert go_on.wait(20)
        return begin(*arguments)

    monkeypatch.setattr(Checkpoint, "begin", slow)
    return begun, go_on


async def ended(node: Claims, logs) -> None:
    await node.until(lambda: lines(logs, END), "claims no longer served")
    await node.until(lambda: not sockets(node), "the sockets removed")


async def test_claims_get_all_gpus_but_the_one_that_a_pod_has_until_it_has_ended(node):
    async with daemon(node, NONE):
        await node.bench.usable(8)
        assert sockets(node) == []
        (held,) = (await node.bench.kubelet.admit("old", GPU, 1)).ids
        reconfigure(node, ALL)
        await node.published(7, tainted=1)
        await node.bench.usable(0)
        ((name, why),) = node.taints().items()
        assert "pod-team-old" in why
        assert f"{held} is still held by pod team/old" in (await node.prepare("eager", name))[1].error
        node.bench.kubelet.release("old")
        await node.published(8)
        assert (await node.prepare("eager", name))[1].error == ""


async def test_pod_that_came_after_the_start_is_asked_for_when_its_gpu_changes_owner(node):
    async with daemon(node, f"dra: {{gpus: [{node.uuid(0)}]}}"):
        await node.published(1)
        await node.bench.usable(7)
        (held,) = (await node.bench.kubelet.admit("late", GPU, 1)).ids
        reconfigure(node, ALL)
        await node.published(7, tainted=1)
        (name,) = node.taints()
        assert held in (await node.prepare("eager", name))[1].error


async def test_gpu_that_kubelet_still_counts_for_a_device_plugin_is_given_to_no_claim(node):
    node.lister.counted = [node.uuid(2)]
    async with daemon(node, ALL):
        await node.published(7, tainted=1)
        ((name, why),) = node.taints().items()
        assert "kubelet-still-counts-it-for-a-device-plugin" in why
        assert "still counts it for a device plugin" in (await node.prepare("eager", name))[1].error
        node.lister.counted = []
        await node.published(8)
        assert (await node.prepare("eager", name))[1].error == ""


async def test_device_plugin_gets_a_prepared_gpu_back_when_it_is_unprepared_and_claims_are_served_until_then(node):
    with capture_logs() as logs:
        async with daemon(node, ALL):
            await node.published(8)
            uid, answer = await node.prepare("train", "gpu-3")
            assert answer.error == ""
            reconfigure(node, NONE)
            await node.published(0)
            await node.bench.usable(7)
            assert node.api.objects[SLICE]["spec"]["pool"]["name"], "an empty slice, not none"
            assert "handed out by the device plugin" in (await node.prepare("late", "gpu-1"))[1].error
            assert not lines(logs, END)
            assert (await node.call("Unprepare", "train", uid)).error == ""
            await node.bench.usable(8)
            node.api.remove(f"{CLAIMS}/train")
            await asyncio.sleep(1)  # that nothing happens has no end to wait for
            assert not lines(logs, END), "kubelet needs us to end the pod of claim late"
            node.api.remove(f"{CLAIMS}/late")
            await ended(node, logs)
            reconfigure(node, ALL)
            await node.published(8)
            assert (await node.prepare("again", "gpu-3"))[1].error == ""
    assert sockets(node) == []


async def test_claim_on_its_way_when_its_gpu_changes_owner_has_it_alone(node, monkeypatch):
    begun, go_on = hold_up(monkeypatch, Checkpoint.begin)
    async with daemon(node, ALL):
        await node.published(8)
        calling = asyncio.create_task(node.prepare("train", "gpu-3"))
        await asyncio.to_thread(begun.wait, 20)
        reconfigure(node, NONE)
        await node.bench.usable(7)
        assert node.uuid(3) not in node.bench.kubelet.free(GPU)
        go_on.set()
        uid, answer = await calling
        assert answer.error == ""
        await node.published(0)
        assert node.uuid(3) not in node.bench.kubelet.free(GPU)
        assert (await node.call("Unprepare", "train", uid)).error == ""
        await node.bench.usable(8)


async def test_claim_on_its_way_that_fails_keeps_no_gpu_from_the_device_plugin(node, monkeypatch):
    def broken(*_):
        raise RuntimeError("broken")

    begun, go_on = hold_up(monkeypatch, broken)
    async with daemon(node, ALL):
        await node.published(8)
        calling = asyncio.create_task(node.prepare("train", "gpu-3"))
        await asyncio.to_thread(begun.wait, 20)
        reconfigure(node, NONE)
        await node.bench.usable(7)
        go_on.set()
        assert "a fault of gpuplugin" in (await calling)[1].error
        await node.bench.usable(8)


async def test_record_that_makes_no_sense_keeps_all_gpus_from_the_device_plugin_until_it_is_known_whose_they_are(node):
    with capture_logs() as logs:
        async with daemon(node, ALL):
            await node.published(8)
            uid, answer = await node.prepare("train", "gpu-3")
            assert answer.error == ""
            node.lister.claims = {"train": ["gpu-3"]}
            (node.bench.folder / "plugins" / DRIVER / "claims" / f"{uid}.json").write_text("{")
    for watcher in node.api.watchers:
        watcher.end()
    away = [True]
    node.api.faults.append(lambda _: httpx.ConnectError("cut off") if away else None)
    with capture_logs() as logs:
        async with daemon(node, NONE):
            told = "makes no sense: a claim has GPUs, and nobody knows which"
            await node.until(lambda: any(told in line["reason"] for line in lines(logs, "withdrawn")), "the reason")
            await node.bench.usable(0)
            away.clear()
            await node.bench.usable(7)
            assert node.uuid(3) not in node.bench.kubelet.free(GPU)
            assert not lines(logs, END)
            assert (await node.call("Unprepare", "train", uid)).error == ""
            await node.bench.usable(8)


async def test_file_that_gives_gpus_to_claims_without_a_node_name_is_refused(node):
    with capture_logs() as logs:
        async with node.bench.daemon(config_file=node.bench.configure(NONE)):
            await node.bench.usable(8)
            reconfigure(node, ALL)
            refused = "configuration refused: the earlier one stays in force"
            await node.until(lambda: lines(logs, refused), "the refusal")
            await node.bench.usable(8)


async def test_owners_change_again_and_again_and_no_gpu_has_two(node):
    async with daemon(node, NONE):
        await node.bench.usable(8)
        for turn in range(3):
            (held,) = (await node.bench.kubelet.admit(f"pod-{turn}", GPU, 1)).ids
            reconfigure(node, ALL)
            await node.published(7, tainted=1)
            free = min(node.devices(False))
            uid, answer = await node.prepare(f"claim-{turn}", free)
            assert answer.error == ""
            assert held not in answer.devices[0].cdi_device_ids[0]
            reconfigure(node, NONE)
            await node.bench.usable(7)
            assert (await node.call("Unprepare", f"claim-{turn}", uid)).error == ""
            await node.bench.usable(8)
            node.bench.kubelet.release(f"pod-{turn}")


async def test_claim_that_an_instance_before_us_still_prepares_is_seen_where_claims_have_no_gpu(node, monkeypatch):
    monkeypatch.setattr("gpuplugin.daemon.dra_service.LOOK_SECONDS", 0.02)
    async with daemon(node, NONE):
        await node.bench.usable(8)
        uid = node.put("late", "gpu-2")["metadata"]["uid"]
        device = RecordedDevice("gpus", NODE, "gpu-2", node.uuid(2), (f"gpuplugin.io/gpu={node.uuid(2)}",))
        earlier = Checkpoint(node.bench.folder / "plugins" / DRIVER / "claims")
        earlier.load()
        earlier.begin(
            Record(uid, "team", "late", (device,), (RecordedPod("team/late", "uid-late"),), COMPLETED), Ledger()
        )
        await node.bench.usable(7)
        assert (await node.call("Unprepare", "late", uid)).error == ""
        await node.bench.usable(8)
