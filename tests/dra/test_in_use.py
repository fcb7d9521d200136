"""Whose devices may not be taken back though their claim is gone: by what kubelet leaves of pods, and nothing else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dra.checkpoint import Record, RecordedDevice, RecordedPod
from dra.claim import sole
from dra.in_use import SLACK_SECONDS, may_still_run
from gpuplugin.errors import DeviceHeld
from tests.dra.claims import ApiServer, Node, claim, gpu

NOW = time.time()
FIRST = RecordedPod("team/first", "uid-first")
SHARED = Record("uid-c", "team", "c", (RecordedDevice("gpus", "node-1", "gpu-2", gpu(2), ("x",)),), (FIRST,), since=NOW)


def changed(record: Record, **fields: object) -> Record:
    return Record(**{name: getattr(record, name) for name in record.__struct_fields__} | fields)


@pytest.fixture
def pods(tmp_path: Path) -> Path:
    (tmp_path / "pods").mkdir()
    return tmp_path / "pods"


def test_pod_that_it_was_prepared_for_has_it_until_its_folder_is_gone(pods: Path):
    (pods / "uid-first").mkdir()
    for one in (SHARED, changed(SHARED, sole=True)):
        assert "pod team/first is not gone yet" in may_still_run(pods, one)
        assert "team/first" in may_still_run(pods, one, {"uid-first"}), "whoever else waits"
    (pods / "uid-first").rmdir()
    assert may_still_run(pods, SHARED) == ""


def test_pod_that_came_later_may_share_a_claim_that_people_made(pods: Path):
    (pods / "uid-later").mkdir()
    assert "uid-later" in may_still_run(pods, SHARED)
    assert may_still_run(pods, changed(SHARED, sole=True)) == ""
    assert may_still_run(pods, SHARED, {"uid-later"}) == "", "it waits for the very device"


def test_pod_that_was_there_before_it_was_prepared_does_not(pods: Path):
    (pods / "uid-earlier").mkdir()
    assert may_still_run(pods, changed(SHARED, since=time.time() + SLACK_SECONDS + 1)) == ""
    assert "uid-earlier" in may_still_run(pods, changed(SHARED, since=time.time() + SLACK_SECONDS - 5)), "clocks"


def test_where_it_is_not_known_since_when_any_pod_may_have_it(pods: Path):
    (pods / "uid-any").mkdir()
    assert "uid-any" in may_still_run(pods, changed(SHARED, since=0.0))


def test_what_is_no_folder_is_no_pod(pods: Path):
    (pods / "file").touch()
    (pods / "link").symlink_to("nowhere")
    assert may_still_run(pods, SHARED) == ""


def test_where_nothing_is_known_it_is_in_use(pods: Path):
    assert "not known which pods" in may_still_run(pods, changed(SHARED, pods=()))
    assert "cannot be read" in may_still_run(pods / "none", SHARED)
    assert "cannot be read" in may_still_run(pods / "none", changed(SHARED, sole=True))


@pytest.mark.parametrize(("owner", "expected"), [("", False), ("Pod", True), ("PodGroup", False)])
def test_claim_that_was_made_for_one_pod_is_its_alone(owner: str, expected: bool):  # noqa: FBT001
    assert sole(claim("one", 2, owner=owner)) is expected


@pytest.fixture
def node(tmp_path: Path, pods: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node that looks at folders of pods, as the daemon does."""
    monkeypatch.setattr(Node, "_in_use", lambda _, record, newcomers: may_still_run(pods, record, newcomers))
    return Node(tmp_path / "claims", ApiServer())


@pytest.mark.parametrize("restarted", [False, True])
async def test_shared_claim_whose_later_pod_was_force_deleted_is_not_given_to_the_next(
    node: Node,
    pods: Path,
    restarted: bool,  # noqa: FBT001
):
    """Nobody but the folder tells of that pod: not the record, nor the API server, nor kubelet's own APIs."""
    shared, rival = claim("shared", 2, pod="first"), claim("rival", 2, pod="rival")
    node.api.put(shared, rival)
    (pods / "uid-first").mkdir()
    await node.prepare(shared)
    (pods / "uid-later").mkdir()  # kubelet does not call us: the claim is prepared
    (pods / "uid-first").rmdir()
    node.api.drop(shared)  # with the later pod, by force
    (pods / "uid-rival").mkdir()
    if restarted:
        node = node.again()
        assert not await node.preparing.reclaim("uid-shared")
    with pytest.raises(DeviceHeld, match="team/shared"):
        await node.prepare(rival)
    (pods / "uid-later").rmdir()
    await node.prepare(rival)
    assert node.given() == {"rival": {"gpu-2"}}


async def test_claim_of_one_pod_is_taken_back_whatever_pods_came_later(node: Node, pods: Path):
    own, rival = claim("own", 2, pod="first", owner="Pod"), claim("rival", 2, pod="rival")
    node.api.put(own, rival)
    await node.prepare(own)
    (pods / "uid-other").mkdir()
    node.api.drop(own)
    await node.prepare(rival)
    assert node.given() == {"rival": {"gpu-2"}}


async def test_record_of_an_earlier_version_counts_as_one_that_may_be_shared(node: Node, pods: Path):
    own = claim("own", 2, pod="first", owner="Pod")
    node.api.put(own)
    await node.prepare(own)
    path = node.folder / "uid-own.json"
    text = path.read_text()
    assert '"sole":true' in text
    assert '"since":' in text
    path.write_text(text.replace('"sole":true,', "").replace('"since":', '"before":'))
    (pods / "uid-other").mkdir()
    node.api.drop(own)
    assert not await node.again().preparing.reclaim("uid-own")
    (pods / "uid-other").rmdir()
    assert await node.again().preparing.reclaim("uid-own")
