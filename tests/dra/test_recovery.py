"""What is settled after an absence: lost records, broken ones, claims that went meanwhile."""

import asyncio
import shutil
from pathlib import Path

import pytest

from dra.devices import NodeDevices
from dra.recovery import Recovery
from gpuplugin.errors import CheckpointError, DeviceHeld, KubeUnavailable, PodResourcesUnavailable
from tests.dra.claims import Node, claim, device, inline


class Kubelet:
    def __init__(self, *claims):
        self.claims, self.asked = claims, 0

    async def __call__(self):
        self.asked += 1
        if self.claims is None:
            raise PodResourcesUnavailable(Path("kubelet.sock"), "no answer")
        return {(one.metadata.namespace, one.metadata.name) for one in self.claims}


def recovery(node, kubelet):
    return Recovery(node.preparing, node.checkpoint, inline, node.api, kubelet)


def recovering(tmp_path, api, kubelet):
    """A node that does it whenever its records are to be complete."""

    async def complete():
        await settled.complete()

    node = Node(tmp_path / "claims", api, complete=complete)
    settled = recovery(node, kubelet)
    return node


async def test_claim_that_a_pod_has_and_nobody_recorded_is_recorded(node, api):
    """So after the vendor's driver, or when the folder was lost."""
    running, new = claim("running", 2, 3), claim("new", 3)
    api.put(running, new)
    await recovery(node, Kubelet(running)).complete()
    with pytest.raises(DeviceHeld, match="team/running"):
        await node.prepare(new)
    await node.unprepare(running)
    await node.prepare(new)


async def test_gpu_that_cannot_be_given_now_is_still_held_by_who_has_it(node, api):
    running = claim("running", 2)
    api.put(running)
    node.devices = NodeDevices({"gpu-2": device(2, "/dev/nvidia2 is missing")})
    await recovery(node, Kubelet(running)).complete()
    assert node.given() == {"running": {"gpu-2"}}


async def test_gpu_that_is_lost_does_not_give_the_others_of_its_claim_away(node, api):
    running, new = claim("running", 2, 3), claim("new", 2)
    api.put(running, new)
    everything, node.devices = node.devices, NodeDevices({"gpu-2": device(2), "gpu-4": device(4)})
    await recovery(node, Kubelet(running)).complete()
    with pytest.raises(DeviceHeld, match="team/running"):
        await node.prepare(new)
    node.devices = everything
    await node.prepare(running)
    assert node.given() == {"running": {"gpu-2", "gpu-3"}}


async def test_broken_record_is_made_anew_from_its_claim(node, api):
    one, other = claim("one", 2), claim("other", 3)
    api.put(one, other)
    await node.prepare(one)
    (node.folder / "uid-one.json").write_text("{")
    again = node.again()
    with pytest.raises(CheckpointError):
        await again.prepare(other)
    await recovery(again, Kubelet()).complete()
    assert again.given() == {"one": {"gpu-2"}}
    await again.prepare(other)
    assert (await again.prepare(one)).completed


async def test_record_that_breaks_later_is_made_anew_too(tmp_path, api):
    one, other = claim("one", 2), claim("other", 3)
    api.put(one, other)
    node = recovering(tmp_path, api, Kubelet(one))
    await node.prepare(one)
    (node.folder / "uid-one.json").write_text("{")
    with pytest.raises(CheckpointError, match="made anew"):
        await node.prepare(other)
    await node.prepare(other)  # kubelet asks again
    assert node.given() == {"one": {"gpu-2"}, "other": {"gpu-3"}}


async def test_records_that_somebody_removes_later_are_found_again(tmp_path, api):
    """Who clears up after the vendor's driver finds them in its folder."""
    running, new = claim("running", 2), claim("new", 2)
    api.put(running, new)
    node = recovering(tmp_path, api, Kubelet(running))
    await node.prepare(running)
    shutil.rmtree(node.folder)
    with pytest.raises(CheckpointError, match="it was removed"):
        await node.prepare(new)
    with pytest.raises(DeviceHeld, match="team/running"):
        await node.prepare(new)  # kubelet asks again
    assert node.given() == {"running": {"gpu-2"}}


async def test_broken_record_of_a_claim_that_is_gone_is_put_aside(node):
    (node.folder / "uid-gone.json").write_text("{")
    await recovery(node, Kubelet()).complete()
    assert node.checkpoint.load() == ()
    assert len(list((node.folder / "unreadable").iterdir())) == 1


async def test_broken_record_stays_while_the_api_server_cannot_be_asked(node, api):
    (node.folder / "uid-one.json").write_text("{")
    api.away = True
    one = recovery(node, Kubelet())
    with pytest.raises(KubeUnavailable):
        await one.complete()
    assert node.checkpoint.load() == ("uid-one",)
    api.away = False
    await one.complete()
    assert one.done


async def test_claim_that_went_while_we_were_down_is_reclaimed_unless_its_pod_is_still_there(node, api):
    gone, kept, there = claim("gone", 1, pod="gone"), claim("kept", 2, pod="kept"), claim("there", 3, pod="there")
    api.put(gone, kept, there)
    for one in (gone, kept, there):
        await node.prepare(one)
    again = node.again()
    api.drop(gone)
    api.drop(kept)
    again.pods_here = {"uid-kept"}
    await recovery(again, Kubelet()).complete()
    assert set(again.given()) == {"kept", "there"}


async def test_claim_that_went_is_not_taken_from_a_pod_that_came_to_share_it_later(node, api):
    """Kubelet has it prepared once, for the first pod: the record does not know of the second."""
    shared, other = claim("shared", 2, pod="first"), claim("other", 2)
    api.put(shared, other)
    await node.prepare(shared)
    node.pods_here = {"uid-later"}
    api.drop(shared)
    kubelet = Kubelet(shared)
    await recovery(node, kubelet).complete()
    with pytest.raises(DeviceHeld, match="team/shared"):
        await node.prepare(other)
    kubelet.claims = None  # cannot be asked
    with pytest.raises(DeviceHeld, match="team/shared"):
        await node.prepare(other)
    kubelet.claims = ()
    await node.prepare(other)
    assert node.given() == {"other": {"gpu-2"}}


async def test_pod_with_a_later_claim_of_the_same_name_does_not_hold_the_earlier_one(node, api):
    old, new, other = claim("one", 1, uid="old"), claim("one", 2, uid="new"), claim("other", 1)
    api.put(old)
    await node.prepare(old)
    api.put(new, other)
    await node.prepare(new)
    await recovery(node, Kubelet(new)).complete()
    node.pods_here = set()
    await node.prepare(other)
    assert set(node.records()) == {"new", "uid-other"}


async def test_claim_that_went_is_reclaimed_once_its_pod_is_gone_though_nobody_wants_its_gpu(node, api, monkeypatch):
    monkeypatch.setattr("dra.recovery.RECLAIM_SECONDS", 0.01)
    gone, there = claim("gone", 1, pod="gone"), claim("there", 2, pod="there")
    api.put(gone, there)
    await node.prepare(gone)
    await node.prepare(there)
    again = node.again()
    api.drop(gone)
    again.pods_here = {"uid-gone"}
    one = recovery(again, Kubelet())
    await one.complete()
    reclaiming = asyncio.create_task(one.keep_reclaiming())
    try:
        await asyncio.sleep(0.05)
        assert set(again.given()) == {"gone", "there"}
        again.pods_here = set()
        async with asyncio.timeout(20):
            while "gone" in again.given():
                await asyncio.sleep(0.01)
    finally:
        reclaiming.cancel()
    assert set(again.given()) == {"there"}


async def test_claim_of_the_same_name_is_not_the_same_claim(node, api):
    old, new = claim("one", 1, uid="old"), claim("one", 2, uid="new")
    api.put(old)
    await node.prepare(old)
    api.put(new)
    again = node.again()
    again.pods_here = set()
    await recovery(again, Kubelet()).complete()
    assert again.records() == {}


async def test_it_is_done_once_and_tried_until_it_works(node, api):
    api.put(running := claim("running", 2))
    api.away = True
    kubelet = Kubelet(running)
    one = recovery(node, kubelet)
    trying = asyncio.create_task(one.keep_trying())
    async with asyncio.timeout(20):
        while not kubelet.asked:
            await asyncio.sleep(0.01)
        api.away = False
        await trying
    asked = kubelet.asked
    await one.complete()
    assert kubelet.asked == asked
    assert node.given() == {"running": {"gpu-2"}}
