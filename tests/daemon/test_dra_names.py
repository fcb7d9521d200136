"""A GPU that is swapped: when the new one gets the name of the one before it, and what is asked for that."""

import json
import shutil

import httpx2 as httpx
import pytest
from structlog.testing import capture_logs

from gpuplugin.errors import CheckpointError
from tests.daemon.test_dra import (  # noqa: F401 - claims is a fixture
    CLAIMS,
    DRIVER,
    NODE,
    SLICE,
    Claims,
    claims,
)
from tests.kube.standin import refusal

LIST = "/apis/resource.k8s.io/v1/resourceclaims"
NEW, NEWER = (f"GPU-{letter * 8}-0000-0000-0000-000000000000" for letter in "ab")


def swap(node: Claims, uuid: str = NEW, index: int = 1) -> None:
    node.bench.state.update(index, uuid=uuid)


def published(node: Claims) -> dict[str, str]:
    """Names by UUID, of what is published now."""
    one = node.api.objects.get(SLICE)
    return {
        device["attributes"]["uuid"]["string"]: device["name"]
        for device in (one["spec"].get("devices", ()) if one else ())
    }


async def named(node: Claims, uuid: str) -> str:
    await node.until(lambda: uuid in published(node), f"{uuid} published")
    return published(node)[uuid]


def lists(node: Claims) -> int:
    """How often all claims have been asked for."""
    return sum(url.path == LIST for _, url in node.api.asked)


async def test_new_gpu_in_the_place_of_one_that_nobody_means_gets_its_name(claims):  # noqa: F811
    async with claims.daemon(rescan_seconds="1"):
        await claims.published(8)
        claims.put("elsewhere", "gpu-4")
        assert lists(claims) == 0
        before = claims.uuid(1)
        swap(claims)
        assert await named(claims, NEW) == "gpu-1"
        assert before not in published(claims)
        assert lists(claims) == 1
        await claims.published(8)  # without a taint: kubelet has said that no pod has it
        assert (await claims.prepare("train", "gpu-1"))[1].devices[0].cdi_device_ids == [f"gpuplugin.io/gpu={NEW}"]
    file = json.loads((claims.bench.folder / "plugins" / DRIVER / "device-names.json").read_text())
    assert file["names"][NEW] == "gpu-1"
    assert before not in file["names"]


async def test_name_is_taken_off_the_list_before_it_is_asked_who_means_it(claims):  # noqa: F811
    async with claims.daemon(rescan_seconds="1"):
        await claims.published(8)
        seen = []

        def look(request: httpx.Request) -> None:
            if request.url.path == LIST:
                seen.append(published(claims))

        claims.api.faults.append(look)
        swap(claims)
        await named(claims, NEW)
    (while_asked,) = seen
    assert len(while_asked) == 7
    assert "gpu-1" not in while_asked.values()
    assert NEW not in while_asked


async def test_claim_that_is_allocated_and_not_prepared_keeps_the_name_of_a_gpu_that_has_gone(claims):  # noqa: F811
    async with claims.daemon(rescan_seconds="1"):
        await claims.published(8)
        waiting = claims.put("waiting", "gpu-1")["metadata"]["uid"]
        swap(claims)
        assert await named(claims, NEW) == "gpu-8"
        assert "none of that name" in (await claims.call("Prepare", "waiting", waiting)).error
        claims.api.remove(f"{CLAIMS}/waiting")
        swap(claims, NEWER)
        assert await named(claims, NEWER) == "gpu-1", "freed once no claim has it"


async def test_prepared_claim_keeps_the_name_though_the_api_server_has_no_such_claim(claims):  # noqa: F811
    async with claims.daemon(rescan_seconds="1"):
        await claims.published(8)
        uid, answer = await claims.prepare("train", "gpu-1")
        assert answer.error == ""
        (claims.bench.folder / "pods" / "uid-train").mkdir()
        claims.api.remove(f"{CLAIMS}/train")
        swap(claims)
        assert await named(claims, NEW) == "gpu-8"
        assert lists(claims) == 0, "the record says enough"
        assert (await claims.call("Unprepare", "train", uid)).error == ""
        swap(claims, NEWER)
        assert await named(claims, NEWER) == "gpu-1"


async def test_pod_with_a_claim_that_nobody_else_knows_keeps_the_name(claims):  # noqa: F811
    async with claims.daemon(rescan_seconds="1"):
        await claims.published(8)
        claims.lister.claims = {"old": ["gpu-1"]}
        swap(claims)
        assert await named(claims, NEW) == "gpu-8"


@pytest.mark.parametrize("broken", ["the API server", "kubelet", "a record"])
async def test_name_stays_where_it_cannot_be_asked_who_means_it(claims, broken, monkeypatch):  # noqa: F811
    monkeypatch.setattr("gpuplugin.daemon.dra_names.ASK_SECONDS", 2.0)
    with capture_logs() as logs:
        async with claims.daemon(rescan_seconds="1"):
            await claims.published(8)
            if broken == "the API server":
                claims.api.faults.append(
                    lambda request: refusal(403, "Forbidden") if request.url.path == LIST else None
                )
            elif broken == "kubelet":
                shutil.rmtree(claims.bench.folder / "pod-resources")
            else:
                folder = claims.bench.folder / "plugins" / DRIVER / "claims"
                claims.lister.claims = {"old": ["gpu-5"]}  # whose record it may be: it cannot be made anew
                claims.api.faults.append(lambda request: refusal(403) if request.url.path.endswith("/old") else None)
                (folder / "uid-x.json").write_text("{")
            swap(claims)
            assert await named(claims, NEW) == "gpu-8"
    (told,) = [line for line in logs if line["event"] == "a new GPU cannot be called as the one before it"]
    assert told["names"] == ["gpu-1"]


async def test_gpu_that_was_swapped_while_we_were_down_is_taken_off_the_list_first_too(claims):  # noqa: F811
    async with claims.daemon():
        await claims.published(8)
    swap(claims)
    claims.api.asked.clear()
    async with claims.daemon():
        assert await named(claims, NEW) == "gpu-1"
        assert lists(claims) == 1
        assert len([write for write in claims.api.writes if "slices" in write]) == 2


async def test_new_gpu_has_a_name_though_slices_cannot_be_written(claims):  # noqa: F811
    async with claims.daemon():
        await claims.published(8)
    swap(claims)
    claims.api.fail(lambda: refusal(403, "Forbidden"), times=1, method="PUT")
    async with claims.daemon():
        assert await named(claims, NEW) == "gpu-8"
        assert lists(claims) == 0


async def test_nobody_is_asked_while_no_gpu_is_swapped(claims):  # noqa: F811
    async with claims.daemon(rescan_seconds="1"):
        await claims.published(8)
        claims.bench.state.lose(3)
        await claims.published(7, tainted=1)
    claims.bench.state.restore(3)
    async with claims.daemon():
        await claims.published(8)
    assert lists(claims) == 0
    assert claims.api.objects[f"/api/v1/nodes/{NODE}"]


async def test_names_that_could_not_be_written_are_written_once_they_can_be_and_that_is_said_once(
    claims,  # noqa: F811
    monkeypatch,
):
    refused = []

    def full(file, names):
        refused.append(names)
        raise CheckpointError(file, "No space left on device")

    file = claims.bench.folder / "plugins" / DRIVER / "device-names.json"
    with monkeypatch.context() as broken, capture_logs() as logs:
        broken.setattr("gpuplugin.daemon.dra_names.save", full)
        async with claims.daemon(rescan_seconds="1"):
            await claims.published(8)
            claims.bench.state.lose(3)
            await claims.published(7, tainted=1)
            await claims.until(lambda: len(refused) > 1, "another try")
            assert not file.exists()
            broken.undo()
            claims.bench.state.restore(3)
            await claims.until(file.exists, "the names on disk")
    assert len([line for line in logs if line["event"] == "device names may not outlive the daemon"]) == 1
