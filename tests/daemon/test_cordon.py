"""A GPU that an operator takes out of service stays out, whoever restarts, until it is let back."""

import asyncio
import errno
import os
import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gpuplugin.daemon.cordon import LONGEST_REASON, Cordons, CordonWatch, gpu_uuid
from gpuplugin.errors import CordonRefused
from gpuplugin.model.ids import pci_address
from tests.daemon.conftest import GPU, SOON
from tests.daemon.explained import own, run
from tests.daemon.test_node import lines

UUID = gpu_uuid("GPU-01234567-89ab-cdef-0123-456789abcdef")


@pytest.fixture
def cordons(tmp_path):
    return Cordons(tmp_path / "state")


def test_what_is_put_is_read_by_the_next_one_and_taken_away_once(cordons, tmp_path):
    assert cordons.read() == {}
    cordons.put(UUID, "fans  are\nloud")
    again = Cordons(tmp_path / "state")
    assert again.read()[UUID].reason == "fans are loud"
    assert again.read()[UUID].since.endswith("+00:00")
    assert again.take_away(UUID)
    assert not again.take_away(UUID)
    assert again.read() == {}


def test_the_folder_is_for_its_owner_alone_and_holds_nothing_else(cordons, tmp_path):
    path = cordons.put(UUID, "x")
    for folder in (path.parent, path.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == [f"{UUID}.json"]


def test_a_folder_that_kubelet_made_is_closed_and_one_that_others_use_is_left_as_it_is(tmp_path):
    made, shared = tmp_path / "made", tmp_path / "shared"
    for folder in (made, shared):
        folder.mkdir()
        folder.chmod(0o755)
    (shared / "theirs").touch()
    for folder in (made, shared):
        Cordons(folder).put(UUID, "x")
        assert stat.S_IMODE((folder / "cordons").stat().st_mode) == 0o700
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (made, shared)] == [0o700, 0o755]


def test_nothing_is_left_when_the_last_is_taken_away(cordons, tmp_path):
    other = gpu_uuid(f"{UUID[:-1]}0")
    cordons.put(UUID, "x")
    cordons.put(other, "x")
    cordons.take_away(UUID)
    assert list(cordons.read()) == [other]
    cordons.take_away(other)
    assert list((tmp_path / "state").iterdir()) == []


@pytest.mark.parametrize("reason", ["", "  \n", "x" * (LONGEST_REASON + 1), "a\x1b[31m"])
def test_a_reason_is_one_line_for_people(cordons, reason):
    with pytest.raises(CordonRefused, match="--reason"):
        cordons.put(UUID, reason)
    assert cordons.read() == {}


def test_a_folder_that_cannot_be_written_is_named_with_the_setting(tmp_path):
    (tmp_path / "state").write_text("a file")
    with pytest.raises(CordonRefused, match=r"paths\.state"):
        Cordons(tmp_path / "state").put(UUID, "x")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '"x"', "\x00"])
def test_a_file_that_makes_no_sense_holds_all_the_same(cordons, text):
    path = cordons.put(UUID, "x")
    path.write_text(text)
    assert str(path) in cordons.read()[UUID].reason


def test_names_that_are_no_gpu_are_left_alone(cordons):
    folder = cordons.put(UUID, "x").parent
    (folder / "GPU-nonsense.json").write_text("{}")
    (folder / f"{UUID}.txt").write_text("{}")
    assert list(cordons.read()) == [UUID]


def test_a_watch_tells_when_something_has_changed_and_only_then(cordons):
    told = []
    watch = CordonWatch(cordons, told.append)
    watch.look()
    watch.look()
    path = cordons.put(UUID, "one")
    watch.look()
    watch.look()
    path.write_text('{"reason": "by hand"}')
    watch.look()
    cordons.take_away(UUID)
    watch.look()
    assert told == [{}, {UUID: "one"}, {UUID: "by hand"}, {}]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.EMFILE])
def test_what_was_told_holds_while_the_folder_cannot_be_read_and_that_is_said_once(cordons, monkeypatch, code):
    told = []
    watch = CordonWatch(cordons, told.append)
    cordons.put(UUID, "one")
    watch.look()

    def refuse(folder):
        raise OSError(code, os.strerror(code), str(folder))

    with monkeypatch.context() as broken, capture_logs() as logs:
        broken.setattr(os, "listdir", refuse)
        watch.look()
        watch.look()
    assert told == [{UUID: "one"}]
    (line,) = logs
    assert os.strerror(code) in line["reason"]
    cordons.take_away(UUID)
    watch.look()
    assert told[-1] == {}


def test_one_that_is_taken_away_while_it_is_read_is_none(cordons):
    cordons.put(UUID, "x").unlink()
    (cordons._folder / f"{UUID}.json").symlink_to("nowhere")
    assert cordons.read() == {}
    assert cordons.stamp == ()


@pytest.mark.parametrize("text", ["GPU-x", "", "3", f"{UUID} ", f"MIG-{UUID[4:]}", f"../{UUID}"])
def test_what_is_no_uuid(text):
    assert gpu_uuid(text) is None


def test_a_uuid_is_brought_to_nvmls_spelling():
    assert gpu_uuid(UUID.upper()) == UUID


async def test_a_cordoned_gpu_is_not_given_out_also_by_the_next_daemon(bench):
    uuid = bench.state.snapshot.gpu(3).uuid
    cordons = Cordons(bench.folder / "state")
    with capture_logs() as logs:
        async with bench.daemon():
            await bench.usable(8)
            held = await bench.kubelet.admit("holds", GPU, 4)
            cordons.put(uuid, "coolant leak")
            await bench.usable(7)
            assert uuid in held.ids, "the pod that has it goes on"
        await bench.kubelet.until(lambda: not bench.kubelet.watches(GPU), SOON, "kubelet sees the first daemon's end")
        async with bench.daemon():
            await bench.usable(7)
            cordons.take_away(uuid)
            await bench.usable(8)
    first, second = lines(logs, "withdrawn")
    assert first["reason"] == second["reason"] == "cordoned: coolant leak"
    assert (first["devices"], first["gpus"]) == ([uuid], [3])
    assert [line["fault"] for line in lines(logs, "fault ended")] == ["cordoned"]


async def test_a_cordoned_gpu_that_is_unplugged_is_cordoned_when_it_is_back(bench):
    Cordons(bench.folder / "state").put(bench.state.snapshot.gpu(7).uuid, "x")
    async with bench.daemon(rescan_seconds="1"):
        await bench.usable(7)
        gone = bench.machine.unplug(7)
        await bench.kubelet.until(lambda: len(bench.kubelet.devices(GPU)) == 7, 20, "seven devices")
        bench.machine.plug(gone)
        await bench.kubelet.until(lambda: len(bench.kubelet.devices(GPU)) == 8, 20, "eight devices")
        assert bench.kubelet.allocatable(GPU) == 7


async def test_an_index_is_the_daemons_and_a_uuid_that_it_does_not_know_is_warned_of(bench):
    state, gpus = str(bench.folder / "state"), bench.state.snapshot.gpus

    async def cordon(gpu):
        return await run(bench, "cordon", gpu, "--reason", "x", "--state", state)

    async with bench.daemon(paths_status=own(bench)):
        await bench.usable(8)
        for name in ("3", gpus[3].bus_id, gpus[3].uuid):
            status, said = await cordon(name)
            assert status == 0
            assert said.startswith(f"{gpus[3].uuid} is cordoned: ")
            assert "warning" not in said
        await bench.usable(7)
        status, said = await cordon("9")
        assert status == 1
        assert f"'9' is none of the GPUs here; there are: 0 ({pci_address(gpus[0].bus_id)}, {gpus[0].uuid})" in said
        status, said = await cordon(UUID)
        assert status == 0
        assert f"{UUID} is cordoned: " in said
        assert f"warning: the daemon knows no GPU {UUID}" in said
        assert f"`gpuplugin uncordon {UUID}`" in said
        assert (await run(bench, "uncordon", "3", "--state", state))[0] == 0
        await bench.usable(8)
    assert list(Cordons(Path(state)).read()) == [UUID]


async def test_a_daemon_that_has_seen_no_gpu_yet_says_so_and_nothing_is_cordoned(bench):
    bench.state.driver(False)
    state = str(bench.folder / "state")
    async with bench.daemon(paths_status=own(bench)):
        async with asyncio.timeout(SOON):
            said = ""
            while "no GPU could be looked at yet: " not in said:
                status, said = await run(bench, "cordon", "3", "--reason", "x", "--state", state)
                assert status == 1
        assert "A GPU's UUID is taken as it is" in said
        assert "--simulate" not in said
    assert Cordons(Path(state)).read() == {}
