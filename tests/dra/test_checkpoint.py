"""The records on disk: atomic, readable by older and newer versions, and never silently given up."""

import json
import os
import subprocess
import sys
import threading

import pytest

from dra.checkpoint import COMPLETED, STARTED, Checkpoint, Record, RecordedDevice, RecordedPod
from gpuplugin.errors import CheckpointError, DeviceHeld
from gpuplugin.plan.ledger import Ledger


def record(name, *indices, state=COMPLETED, **fields):
    devices = tuple(
        RecordedDevice("gpus", "node-1", f"gpu-{i}", f"GPU-{i}", (f"gpuplugin.io/gpu=GPU-{i}",)) for i in indices
    )
    pods = (RecordedPod("team/pod", "uid-pod"),)
    return Record(uid=name, namespace="team", name=name, devices=devices, pods=pods, state=state, **fields)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "plugins" / "claims"


def text(folder, name):
    return (folder / f"{name}.json").read_text()


def test_what_is_entered_is_read_by_the_next_one(folder):
    one = Checkpoint(folder)
    one.begin(record("a", 1, 2, state=STARTED), Ledger())
    assert Checkpoint(folder).find("a") == record("a", 1, 2, state=STARTED)
    assert one.complete("a") == record("a", 1, 2)
    assert Checkpoint(folder).find("a") == record("a", 1, 2)
    one.remove("a")
    assert Checkpoint(folder).find("a") is None
    assert [path.name for path in folder.iterdir()] == [".lock"]


def test_each_instance_sees_what_the_other_has_done(folder):
    old, new = Checkpoint(folder), Checkpoint(folder)
    old.begin(record("a", 1), Ledger())
    with pytest.raises(DeviceHeld, match="GPU-1 is still held by claim team/a"):
        new.begin(record("b", 1), Ledger())
    new.remove("a")
    assert old.complete("a") is None
    old.begin(record("b", 1), Ledger())
    assert set(new.records) == set()
    new.load()
    assert set(new.records) == {"b"}


def test_instances_that_want_the_same_gpu_at_once_do_not_both_get_it(folder):
    given = []

    def want(name):
        try:
            Checkpoint(folder).begin(record(name, 1), Ledger())
        except DeviceHeld:
            return
        given.append(name)

    threads = [threading.Thread(target=want, args=(f"c{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(given) == 1


def test_claims_cost_does_not_grow_with_the_others(folder):
    one = Checkpoint(folder)
    for index in range(7):
        one.begin(record(f"c{index}", index), Ledger())
    before = {path.name: path.stat().st_ino for path in folder.iterdir()}
    one.begin(record("c7", 7), Ledger())
    assert {path.name: path.stat().st_ino for path in folder.iterdir() if path.name in before} == before


def test_what_a_newer_version_adds_is_left_aside(folder):
    Checkpoint(folder).begin(record("a", 1), Ledger())
    found = json.loads(text(folder, "a"))
    found |= {"format": 7, "invented": {"x": 1}}
    found["devices"][0] |= {"invented": [1], "use": "invented"}
    (folder / "a.json").write_text(json.dumps(found))
    assert Checkpoint(folder).find("a").devices[0].gpu == "GPU-1"
    with pytest.raises(DeviceHeld):  # a use that we do not know bars most
        Checkpoint(folder).begin(record("b", 1), Ledger())


def test_what_an_older_version_did_not_write_has_its_default(folder):
    folder.mkdir(parents=True)
    oldest = {"uid": "a", "namespace": "team", "name": "a", "devices": []}
    (folder / "a.json").write_text(json.dumps(oldest))
    assert Checkpoint(folder).find("a") == Record(uid="a", namespace="team", name="a", devices=())


def test_state_of_a_newer_version_is_not_completed(folder):
    Checkpoint(folder).begin(record("a", 1), Ledger())
    (folder / "a.json").write_text(text(folder, "a").replace("completed", "half-way"))
    assert not Checkpoint(folder).find("a").completed


@pytest.mark.parametrize(
    "spoil",
    [
        lambda whole: whole[: len(whole) // 2],
        lambda _: "",
        lambda _: "\x00" * 100,
        lambda whole: whole.replace('"uid":"a"', '"uid":"b"'),
        lambda whole: whole.replace("{", '{"readable":2,', 1),
        lambda whole: whole.replace('"devices":[', '"devices":{', 1),
    ],
    ids=["truncated", "empty", "zeroes", "of another", "of a format we cannot read", "no JSON"],
)
def test_file_that_makes_no_sense_keeps_new_claims_out_until_it_is_settled(folder, spoil):
    one = Checkpoint(folder)
    one.begin(record("a", 1), Ledger())
    spoilt = spoil(text(folder, "a"))
    (folder / "a.json").write_text(spoilt)
    again = Checkpoint(folder)
    assert again.load() == ("a",)
    with pytest.raises(CheckpointError, match=r"a\.json: the record of a prepared claim makes no sense"):
        again.begin(record("b", 2), Ledger())
    again.put_aside("a", record("a", 1))
    assert again.load() == ()
    assert again.find("a") == record("a", 1)
    again.begin(record("b", 2), Ledger())
    (aside,) = (folder / "unreadable").iterdir()
    assert aside.read_text() == spoilt


def test_file_of_a_claim_that_is_no_more_is_put_aside_and_not_lost(folder):
    folder.mkdir(parents=True)
    (folder / "a.json").write_text("{")
    one = Checkpoint(folder)
    assert one.load() == ("a",)
    one.put_aside("a", None)
    assert one.load() == ()
    assert [path.read_text() for path in (folder / "unreadable").iterdir()] == ["{"]


def test_file_that_could_not_be_read_for_a_moment_is_read_again(folder, monkeypatch):
    Checkpoint(folder).begin(record("a", 1), Ledger())
    with monkeypatch.context() as moment:
        moment.setattr(
            "pathlib.Path.read_bytes", lambda path: (_ for _ in ()).throw(OSError(24, "Too many open files"))
        )
        one = Checkpoint(folder)
        assert one.load() == ("a",)
        with pytest.raises(CheckpointError):
            one.begin(record("b", 1), Ledger())
    assert one.load() == ()
    assert one.find("a") == record("a", 1)


def test_unprepare_settles_a_file_that_makes_no_sense(folder):
    folder.mkdir(parents=True)
    (folder / "a.json").write_text("{")
    one = Checkpoint(folder)
    one.remove("a")
    assert one.load() == ()
    assert len(list((folder / "unreadable").iterdir())) == 1


def test_folder_that_cannot_be_used_is_named(folder):
    folder.parent.mkdir()
    folder.write_text("a file")
    with pytest.raises(CheckpointError, match=r"claims.*must be writable"):
        Checkpoint(folder).load()


@pytest.mark.parametrize("uid", ["", "../a", "a/b", ".a"])
def test_uid_is_never_a_path(folder, uid):
    with pytest.raises(CheckpointError, match="no UID"):
        Checkpoint(folder).begin(record("a", 1).__class__(uid=uid, namespace="n", name="n", devices=()), Ledger())


def test_disk_that_is_full_leaves_what_was_there(folder, monkeypatch):
    one = Checkpoint(folder)
    one.begin(record("a", 1, state=STARTED), Ledger())

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(CheckpointError, match="No space left"):
        one.complete("a")
    monkeypatch.undo()
    assert [path.name for path in folder.glob(".a*")] == []
    assert Checkpoint(folder).find("a").state == STARTED
    assert one.complete("a").completed


KILLED = """
import os, sys
from pathlib import Path
from dra.checkpoint import Checkpoint, Record, RecordedDevice, STARTED
from gpuplugin.plan.ledger import Ledger
folder, what, left = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def counted(call):
    def instead(*arguments, **named):
        global left
        if left == 0:
            os._exit(9)
        left -= 1
        return call(*arguments, **named)
    return instead

checkpoint = Checkpoint(folder)
checkpoint.load()
for name in ("open", "write", "fdatasync", "fsync", "close", "replace", "unlink", "link", "mkdir", "scandir"):
    setattr(os, name, counted(getattr(os, name)))
device = RecordedDevice("gpus", "node-1", "gpu-1", "GPU-1", ("gpuplugin.io/gpu=GPU-1",))
record = Record(uid="a", namespace="team", name="a", devices=(device,), state=STARTED)
calls = {
    "begin": lambda: checkpoint.begin(record, Ledger()),
    "complete": lambda: checkpoint.complete("a"),
    "remove": lambda: checkpoint.remove("a"),
    "put_aside": lambda: checkpoint.put_aside("a", record),
}
calls[what]()
os._exit(0)
"""


@pytest.mark.parametrize("what", ["begin", "complete", "remove", "put_aside"])
def test_killed_before_any_call_of_the_kernel_the_record_is_old_or_new(folder, what):
    device = RecordedDevice("gpus", "node-1", "gpu-1", "GPU-1", ("gpuplugin.io/gpu=GPU-1",))
    started = Record(uid="a", namespace="team", name="a", devices=(device,), state=STARTED)
    completed = Record(uid="a", namespace="team", name="a", devices=(device,), state=COMPLETED)
    allowed = {
        "begin": [None, started],
        "complete": [started, completed],
        "remove": [started, None],
        "put_aside": ["broken", started],
    }[what]
    for left in range(60):
        for path in folder.glob("**/*.json*"):
            path.unlink()
        if what == "put_aside":
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "a.json").write_text("{")
        elif what != "begin":
            Checkpoint(folder).begin(started, Ledger())
        code = subprocess.run([sys.executable, "-c", KILLED, str(folder), what, str(left)], check=False).returncode
        after = Checkpoint(folder)
        found = "broken" if after.load() else after.find("a")
        assert found in allowed, left
        assert not list(folder.glob(".*.tmp"))
        if code == 0:
            assert found == allowed[1]
            assert left > 4, "calls were counted"
            return
        assert code == 9
    pytest.fail("never came to an end")
