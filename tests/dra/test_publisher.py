"""The publisher against an API server with faults: what is wanted comes about, and nothing more is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx2 as httpx
import pytest

from dra.gated import TAINTS
from dra.publisher import Publisher
from dra.slices import Contents, Owner
from gpuplugin.kube.backoff import Backoff
from gpuplugin.kube.client import Kube
from gpuplugin.kube.objects import Device, Taint
from tests.kube.standin import Json, StandInApi, kubeconfig, refusal

ROOT = "/apis/resource.k8s.io/v1/resourceslices"
PATH = f"{ROOT}/node-1-gpu.nvidia.com-00"
SICK = Taint(key="gpuplugin.io/unhealthy", effect="NoSchedule", value="XID-79")


def gpus(count: int, *sick: int) -> Contents:
    return Contents(tuple(Device(name=f"gpu-{i}", taints=(SICK,) if i in sick else ()) for i in range(count)))


class Running:
    def __init__(self, api: StandInApi, publisher: Publisher) -> None:
        self.api, self.publisher = api, publisher

    def devices(self, path: str = PATH) -> list[str] | None:
        one = self.api.objects.get(path)
        return [device["name"] for device in one["spec"].get("devices", ())] if one else None

    async def until(self, wanted: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not wanted():
                await asyncio.sleep(0.001)

    async def at_rest(self) -> None:
        """The watch is open and has nothing for us any more."""
        await self.until(lambda: self.api.watchers and all(w.lines.empty() for w in self.api.watchers))
        for _ in range(50):
            await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for module in ("gpuplugin.kube.watch", "gpuplugin.kube.client", "dra.publisher"):
        monkeypatch.setattr(f"{module}.Backoff", lambda _first, _longest: Backoff(0.005, 0.02))


@pytest.fixture
def api() -> StandInApi:
    return StandInApi()


@pytest.fixture
async def running(api: StandInApi, tmp_path: Path) -> AsyncIterator[Running]:
    async with Kube(kubeconfig(tmp_path), transport=api, patience=0.05) as kube:
        publisher = Publisher(kube, Owner("node-1", "uid-1"))
        task = asyncio.create_task(publisher.run())
        yield Running(api, publisher)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_what_is_wanted_is_published_once(running: Running, api: StandInApi):
    running.publisher.want(gpus(4))
    await running.until(lambda: running.devices() == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"])
    await running.at_rest()
    running.publisher.want(gpus(4))
    await running.at_rest()
    assert api.writes == [f"POST {ROOT}"]
    assert running.publisher._mended_at == float("-inf")
    state = running.publisher.state.value
    assert (state.outcome.offered, state.trouble) == (("gpu-0", "gpu-1", "gpu-2", "gpu-3"), "")


async def test_a_restart_writes_nothing(running: Running, api: StandInApi, tmp_path: Path):
    running.publisher.want(gpus(4, 2))
    await running.until(lambda: running.publisher.state.value.outcome)
    before = list(api.writes)
    async with Kube(kubeconfig(tmp_path), transport=api) as kube:
        again = Publisher(kube, Owner("node-1", "uid-1"))
        task = asyncio.create_task(again.run())
        again.want(gpus(4, 2))
        await running.until(lambda: again.state.value.outcome)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert api.writes == before


async def test_no_gpus_are_an_empty_slice(running: Running):
    running.publisher.want(Contents(()))
    await running.until(lambda: running.devices() == [])


async def test_deleted_and_edited_slices_are_mended(running: Running, api: StandInApi):
    running.publisher.want(gpus(2))
    await running.until(lambda: running.devices() == ["gpu-0", "gpu-1"])
    await running.at_rest()
    api.remove(PATH)
    await running.until(lambda: running.devices() == ["gpu-0", "gpu-1"])
    await running.at_rest()
    edited: Json = api.objects[PATH]
    api.put(PATH, edited | {"spec": edited["spec"] | {"devices": []}})
    await running.until(lambda: running.devices() == ["gpu-0", "gpu-1"])
    assert api.objects[PATH]["spec"]["pool"]["generation"] == 1


async def test_a_foreign_slice_of_our_driver_and_node_goes(running: Running, api: StandInApi):
    pool = {"name": "node-1", "generation": 3, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "node-1", "pool": pool, "devices": [{"name": "gpu-9"}]}
    api.put(f"{ROOT}/theirs", {"metadata": {"name": "theirs"}, "spec": spec})
    other = {"metadata": {"name": "other"}, "spec": spec | {"nodeName": "node-2"}}
    api.put(f"{ROOT}/other", other)
    running.publisher.want(gpus(1))
    await running.until(lambda: f"{ROOT}/theirs" not in api.objects)
    assert api.objects[PATH]["spec"]["pool"]["generation"] == 4
    assert f"{ROOT}/other" in api.objects


async def test_a_taint_comes_and_goes(running: Running, api: StandInApi):
    for sick, taints in (((), []), ((1,), ["XID-79"]), ((), [])):
        running.publisher.want(gpus(2, *sick))
        await running.until(
            lambda taints=taints: (
                PATH in api.objects
                and [t["value"] for d in api.objects[PATH]["spec"]["devices"] for t in d.get("taints", ())] == taints
                and len(running.publisher.state.value.outcome.offered if running.publisher.state.value.outcome else ())
                == 2
            )
        )
    assert api.objects[PATH]["spec"]["pool"]["generation"] == 1


async def test_a_server_without_taints_is_not_offered_the_ill_and_asked_again_when_it_comes_back(
    running: Running, api: StandInApi
):
    api.drops = {"taints"}
    running.publisher.want(gpus(2, 1))
    await running.until(lambda: running.devices() == ["gpu-0"])
    await running.until(lambda: running.publisher.state.value.outcome)
    assert running.publisher.state.value.outcome.dropped == {TAINTS}
    assert running.publisher.state.value.outcome.withdrawn == ("gpu-1",)
    await running.at_rest()
    api.drops = set()
    for watcher in list(api.watchers):
        watcher.cut()
    await running.until(lambda: running.devices() == ["gpu-0", "gpu-1"])
    assert api.objects[PATH]["spec"]["devices"][1]["taints"][0]["value"] == "XID-79"


async def test_a_conflict_is_read_again(running: Running, api: StandInApi):
    running.publisher.want(gpus(1))
    await running.until(lambda: running.devices() == ["gpu-0"])
    await running.at_rest()
    api.fail(lambda: refusal(409, "Conflict"), times=1, method="PUT")
    running.publisher.want(gpus(2))
    await running.until(lambda: running.devices() == ["gpu-0", "gpu-1"])
    assert running.publisher.state.value.trouble == ""


@pytest.mark.parametrize(
    "trouble",
    [lambda: refusal(403, "Forbidden", "no"), lambda: httpx.ConnectError("refused"), lambda: refusal(422, "Invalid")],
)
async def test_trouble_is_told_and_got_over(running: Running, api: StandInApi, trouble):
    down = [True]
    api.faults.append(lambda request: trouble() if down[0] and request.method == "POST" else None)
    running.publisher.want(gpus(1))
    await running.until(lambda: running.publisher.state.value.trouble)
    assert "resourceslices" in running.publisher.state.value.trouble
    down[0] = False
    await running.until(lambda: running.devices() == ["gpu-0"])
    await running.until(lambda: not running.publisher.state.value.trouble)


async def test_an_answer_that_was_lost_costs_nothing_but_a_look(running: Running, api: StandInApi):
    lost = iter([True])

    class Losing(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            answer = await api.handle_async_request(request)
            if request.method == "POST" and next(lost, False):
                raise httpx.ReadError("reset")
            return answer

    running.publisher._api.kube._http._transport = Losing()
    running.publisher.want(gpus(1))
    await running.until(lambda: running.publisher.state.value.outcome)
    assert running.devices() == ["gpu-0"]
    assert set(api.writes) == {f"POST {ROOT}"}


async def test_somebody_who_undoes_it_all_is_not_raced(running: Running, api: StandInApi, monkeypatch):
    pauses: list[float] = []
    real = Publisher._pause

    async def pause(self: Publisher, seconds: float) -> None:
        pauses.append(seconds)
        await real(self, 0.001)

    monkeypatch.setattr(Publisher, "_pause", pause)
    running.publisher._mends = Backoff(1.0, 60.0)
    running.publisher.want(gpus(1))
    for _ in range(6):
        await running.until(lambda: running.devices() == ["gpu-0"])
        await running.at_rest()
        api.remove(PATH)
    await running.until(lambda: running.devices() == ["gpu-0"])
    assert pauses[0] == 0.0
    assert pauses[-1] > 4 * pauses[1] > 0


async def test_a_new_wish_does_not_wait_for_a_pause_to_end(running: Running, api: StandInApi):
    running.publisher._pauses = Backoff(3600.0, 3600.0)
    api.fail(lambda: refusal(403), times=1, method="POST")
    running.publisher.want(gpus(1))
    await running.until(lambda: running.publisher.state.value.trouble)
    running.publisher.want(gpus(2))
    await running.until(lambda: running.devices() == ["gpu-0", "gpu-1"])


async def test_a_wish_that_breaks_the_rules_is_told_and_the_last_good_one_stays(running: Running, api: StandInApi):
    running.publisher.want(gpus(1))
    await running.until(lambda: running.devices() == ["gpu-0"])
    running.publisher.want(Contents((Device(name="GPU"),)))
    await running.until(lambda: "'GPU' is not allowed" in running.publisher.state.value.trouble)
    assert running.devices() == ["gpu-0"]
    running.publisher.want(gpus(2))
    await running.until(lambda: running.devices() == ["gpu-0", "gpu-1"])
    await running.until(lambda: not running.publisher.state.value.trouble)


async def test_the_names_that_are_published_can_be_read(running: Running):
    assert running.publisher.seen() == ()
    running.publisher.want(gpus(1))
    await running.until(running.publisher.seen)
    assert running.publisher.seen()[0].spec.devices == gpus(1).devices


async def test_the_ill_stay_published_with_their_taints_over_a_restart_of_the_server(running: Running, api: StandInApi):
    running.publisher.want(gpus(2, 0))
    await running.until(lambda: running.devices() == ["gpu-0", "gpu-1"])
    await running.at_rest()
    writes = list(api.writes)
    for watcher in list(api.watchers):
        watcher.cut()
    await running.until(lambda: len(api.watchers) == 1)
    await running.at_rest()
    assert api.writes == writes
