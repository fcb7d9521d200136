"""What the reference's driver leaves behind, by its versions, and what becomes of it."""

import json
import socket

import pytest

from dra.predecessor import Predecessor
from gpuplugin.errors import CheckpointError, DeviceHeld
from tests.dra.claims import DRIVER, POOL, ApiServer, Node, claim, gpu, named
from tests.dra.leftovers import checkpoint, of_gpu, of_mig, of_mig_25, prepared, started
from tests.dra.test_recovery import Kubelet, recovery

BOOT = "8f1c6a52-9d0b-4a55-9a53-0f7d0c1c8c11"


@pytest.fixture
def before(tmp_path):
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text(f"{BOOT}\n")
    folders = [tmp_path / name for name in ("plugin", "registry", "cdi")]
    for folder in folders:
        folder.mkdir()
    return Predecessor(DRIVER, *folders, tmp_path / "proc")


def left(before, content):
    (before.plugin / "checkpoint.json").write_text(json.dumps(content))
    return before


def held(records):
    return {record.uid: [(device.device, device.gpu) for device in record.devices] for record in records}


TWO = prepared(of_gpu(2, gpu(2)), of_gpu(3, gpu(3)), pod="pod")


@pytest.mark.parametrize(
    "content",
    [
        checkpoint({"uid-a": TWO}, boot=BOOT),
        checkpoint({"uid-a": TWO}, boot=None),
        checkpoint({"uid-a": TWO}, boot=None, version=1),
    ],
    ids=["0.4", "25.12", "25.3"],
)
def test_claims_are_known_by_uid_with_names_and_gpus(before, content):
    (record,) = left(before, content).prepared({})
    assert held([record]) == {"uid-a": [("gpu-2", gpu(2)), ("gpu-3", gpu(3))]}
    assert record.completed
    assert {(device.request, device.pool) for device in record.devices} == {("gpus", POOL)}
    assert record.devices[0].cdi == ("k8s.gpu.nvidia.com/claim=uid-gpu-2",)
    assert [pod.uid for pod in record.pods] == ["uid-pod"]


def test_mig_device_holds_its_gpu(before):
    content = checkpoint({"new": prepared(of_mig("gpu-1-mig-1g10gb-19-0", gpu(1), "MIG-a"))}, boot=BOOT)
    assert held(left(before, content).prepared({})) == {"new": [("gpu-1-mig-1g10gb-19-0", gpu(1))]}
    old = checkpoint({"old": prepared(of_mig_25("gpu-1-mig-19-0-1", "MIG-a"))}, boot=None)
    assert held(left(before, old).prepared({"MIG-a": gpu(1)})) == {"old": [("gpu-1-mig-19-0-1", gpu(1))]}


def test_mig_devices_whose_gpu_is_not_written_down_are_told(before):
    assert before.on_unnamed_gpus() == ()
    claims = {
        "new": prepared(of_mig("gpu-1-mig-1g10gb-19-0", gpu(1), "MIG-a"), of_gpu(2, gpu(2))),
        "old": prepared(of_mig_25("gpu-1-mig-19-0-1", "MIG-b")),
    }
    assert left(before, checkpoint(claims, boot=None)).on_unnamed_gpus() == ("MIG-b",)
    assert left(before, checkpoint({"uid-a": TWO}, boot=None)).on_unnamed_gpus() == ()


def test_only_what_is_prepared_in_this_boot_counts(before):
    vfio = {"vfio": {"info": {"uuid": "x"}, "device": {"DeviceName": "gpu-vfio-0"}}, "gpu": None, "mig": None}
    claims = {"half": started("half"), "machine": prepared(vfio)}
    assert left(before, checkpoint(claims, boot=BOOT)).prepared({}) == ()
    assert left(before, checkpoint({"uid-a": TWO}, boot="another")).prepared({}) == ()


def test_nothing_left_is_nothing_held(before):
    assert before.prepared({}) == ()
    before.put_aside()
    assert left(before, {"checksum": 0, "v1": {}, "v2": {"checksum": 0}}).prepared({}) == ()


@pytest.mark.parametrize("content", ["", "{", '{"v2": {"preparedClaims": []}}', '{"v2": {"preparedClaims": {"a": 1}}}'])
def test_nonsense_is_said(before, content):
    (before.plugin / "checkpoint.json").write_text(content)
    with pytest.raises(CheckpointError, match="makes no sense"):
        before.prepared({})


def test_it_is_put_aside_once_and_says_nothing_more(before):
    left(before, checkpoint({"uid-a": TWO}, boot=BOOT)).put_aside()
    assert before.prepared({}) == ()
    assert [path.name for path in before.plugin.iterdir()] == ["checkpoint.json.taken-over"]


def test_document_of_a_claim_goes_with_it_and_no_other(before):
    names = [f"k8s.gpu.nvidia.com-claim_{uid}.yaml" for uid in ("a", "b")]
    for name in (*names, "k8s.gpu.nvidia.com-device_base.yaml"):
        (before.cdi / name).touch()
    for uid in ("a", "a", "../plugin/x"):
        before.forget(uid)
    assert {path.name for path in before.cdi.iterdir()} == {names[1], "k8s.gpu.nvidia.com-device_base.yaml"}


def test_it_serves_as_long_as_its_socket_answers(before, monkeypatch):
    monkeypatch.chdir(before.registry)  # a socket's path is short
    assert not before.serves()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{DRIVER}-reg.sock")
        assert not before.serves(), "nobody listens"
        listening.listen()
        assert before.serves()
    assert not before.serves(), "killed, it has left the socket"


async def test_claims_get_their_names_once_the_api_server_is_asked(before, tmp_path):
    """One that is gone there is held as long as its pod is here; MIG and shared devices are held like others."""
    api = ApiServer()
    node = Node(tmp_path / "claims", api)
    runs, forced = claim("runs", 2, 3), claim("forced", 4, pod="forced")
    api.put(runs)
    content = {
        "uid-runs": TWO,
        "uid-forced": prepared(of_gpu(4, gpu(4)), pod="forced"),
        "uid-over": prepared(of_gpu(5, gpu(5)), pod="over"),
    }
    for record in left(before, checkpoint(content, boot=BOOT)).prepared({}):
        node.checkpoint.adopt(record)
    node.pods_here = {"uid-pod", "uid-forced"}
    await recovery(node, Kubelet(runs)).complete()
    records = node.checkpoint.records
    assert {uid: record.name for uid, record in records.items()} == {"uid-runs": "runs", "uid-forced": "unknown"}
    assert records["uid-runs"].holds[0].holder.pods == ("team/pod",)
    for number, holder in ((3, "claim team/runs"), (4, "prepared for pod unknown/forced")):
        new = claim(f"new-{number}", number)
        api.put(new)
        with pytest.raises(DeviceHeld, match=holder):
            await node.prepare(new)
    await node.preparing.prepare(named(runs))
    assert await node.unprepare(forced)
    assert await node.unprepare(runs)
    assert not node.checkpoint.records
