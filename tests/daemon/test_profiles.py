"""A node label that chooses the configuration file."""

import asyncio

import pytest
from structlog.testing import capture_logs

from gpuplugin.config.settings import Profiles
from gpuplugin.daemon import profiles, service
from gpuplugin.daemon.profiles import ProfileChoice
from gpuplugin.daemon.reload import ConfigSource
from gpuplugin.errors import KubeUnconfigured
from tests.daemon.conftest import GPU, SOON
from tests.daemon.test_sharing import lines, sliced


@pytest.fixture
def folder_of_files(tmp_path):
    for name in ("slices", "whole", ".hidden"):
        (tmp_path / name).write_text("")
    return tmp_path


def choice(folder, **settings):
    source = ConfigSource(None, {}, {})
    return ProfileChoice(Profiles(folder=str(folder), **settings), source), source


def test_each_label_takes_its_file_and_has_it_read(folder_of_files):
    chosen, source = choice(folder_of_files, default="whole")
    for label, name in (("", "whole"), ("slices", "slices"), ("whole", "whole")):
        source.asked.clear()
        chosen.take(label)
        assert (source.file, source.asked.is_set()) == (folder_of_files / name, True)
    source.asked.clear()
    chosen.take("whole")
    assert not source.asked.is_set()


def test_a_label_that_names_nothing_keeps_the_file_and_is_told_of_once(folder_of_files):
    chosen, source = choice(folder_of_files, default="whole")
    chosen.take("slices")
    with capture_logs() as logs:
        chosen.take("slcies")
        chosen.take("slcies")
    assert source.file == folder_of_files / "slices"
    [line] = lines(logs, "no configuration chosen")
    assert "'slcies'" in line["reason"]


def test_a_folder_that_is_not_there_is_told_of(tmp_path):
    chosen, source = choice(tmp_path / "none")
    with capture_logs() as logs:
        chosen.take("slices")
    assert "No such file or directory" in lines(logs, "no configuration chosen")[0]["reason"]
    assert (source.file, chosen.decided.is_set()) == (None, True)


async def silent():
    await asyncio.get_running_loop().create_future()
    yield ""


async def nowhere():
    raise KubeUnconfigured("there is no service account")
    yield ""


async def test_a_node_whose_api_server_is_away_gets_its_gpus_all_the_same(folder_of_files, monkeypatch):
    monkeypatch.setattr(profiles, "PATIENCE_SECONDS", 0.01)
    chosen, source = choice(folder_of_files, default="whole")
    task = asyncio.create_task(chosen.follow(silent()))
    await asyncio.wait_for(chosen.decided.wait(), SOON)
    assert source.file == folder_of_files / "whole"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_stopped_before_the_label_is_known_nothing_goes_on_listening(folder_of_files):
    chosen, _ = choice(folder_of_files)
    before = asyncio.all_tasks()
    task = asyncio.create_task(chosen.follow(silent()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks() - before) == 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert asyncio.all_tasks() == before


async def test_a_label_may_come_before_the_file_that_it_names(folder_of_files, monkeypatch):
    monkeypatch.setattr(profiles, "LOOK_SECONDS", 0.01)

    async def labelled():
        yield "later"
        await asyncio.get_running_loop().create_future()

    chosen, source = choice(folder_of_files, default="whole")
    with capture_logs() as logs:
        task = asyncio.create_task(chosen.follow(labelled()))
        await asyncio.wait_for(chosen.decided.wait(), SOON)
        await asyncio.sleep(0.1)
        assert source.file is None
        (folder_of_files / "later").write_text("")
        await asyncio.wait_for(source.asked.wait(), SOON)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert source.file == folder_of_files / "later"
    assert len(lines(logs, "no configuration chosen")) == 1


async def test_who_is_outside_of_kubernetes_has_no_label(folder_of_files):
    chosen, source = choice(folder_of_files, default="whole")
    with capture_logs() as logs:
        await chosen.follow(nowhere())
    assert source.file == folder_of_files / "whole"
    assert lines(logs, "the node's label cannot be read")


async def test_nothing_is_offered_before_the_label_is_known_and_a_new_label_is_another_file(bench, monkeypatch):
    labels: asyncio.Queue[str] = asyncio.Queue()

    async def followed(_):
        while True:
            yield await labels.get()

    monkeypatch.setattr(service, "node_labels", followed)
    available = bench.folder / "available"
    available.mkdir()
    (available / "slices").write_text(sliced(4))
    (available / "whole").write_text("")
    with capture_logs() as logs:
        async with bench.daemon(config_file_srcdir=str(available), node_name="here", default_config="whole"):
            await asyncio.sleep(0.5)
            assert not lines(logs, "offering")
            labels.put_nowait("slices")
            await bench.usable(32)
            labels.put_nowait("")
            await bench.usable(8)
            labels.put_nowait("slcies")
            labels.put_nowait("slices")
            await bench.usable(32)
    assert [line["devices"] for line in lines(logs, "offering")] == [32, 8, 32]
    assert len([line for line in lines(logs, "kubelet watches") if line["resource"] == GPU]) == 1
