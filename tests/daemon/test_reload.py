"""A configuration file that changes under a running daemon."""

import asyncio
import os

import pytest
from structlog.testing import capture_logs

from gpuplugin.config import Config
from gpuplugin.config.settings import Dra, Flags, Health, Log, Paths, ReplicatedResource, Sharing, TimeSlicing
from gpuplugin.daemon.reload import ConfigSource, Reload, taken_over
from tests.daemon.conftest import GPU, SOON
from tests.daemon.test_sharing import ids, layout, lines, sliced

SLICES = Sharing(time_slicing=TimeSlicing(resources=(ReplicatedResource(GPU, 4, devices=("0", "GPU-1")),)))


@pytest.mark.parametrize(
    ("given", "at_once", "waiting"),
    [
        (Config(), (), ()),
        (Config(rescan_seconds=5.0), ("rescanSeconds",), ()),
        (Config(health=Health(disable=(13,))), ("health.disable",), ()),
        (Config(flags=Flags(mig_strategy="mixed")), ("flags.migStrategy",), ()),
        (Config(dra=Dra(gpus=("all",))), ("dra.gpus",), ()),
        (Config(paths=Paths(cdi="/x"), log=Log(level="debug")), ("log.level",), ("paths.cdi",)),
        (
            Config(flags=Flags(mig_strategy="single", nvidia_driver_root="/d")),
            ("flags.migStrategy",),
            ("flags.nvidia",),
        ),
    ],
)
def test_what_can_change_at_once_does_and_the_rest_waits(given, at_once, waiting):
    config, found, later = taken_over(Config(), given)
    assert found == at_once
    assert all(key.startswith(start) for key, start in zip(later, waiting, strict=True))
    assert taken_over(config, given)[1] == ()


def test_a_section_comes_and_goes_as_a_whole():
    with_slices, found, _ = taken_over(Config(), Config(sharing=SLICES))
    assert with_slices.sharing == SLICES
    assert "sharing.timeSlicing.resources" in found
    assert taken_over(with_slices, Config())[0] == Config()


def read(folder, before, after):
    """The configurations that are put in force, and what is said, when a file changes."""
    path = folder / "c.yaml"
    path.write_text(before)
    source = ConfigSource(path, {}, {})
    applied = []
    reload = Reload(source, source.load(), applied.append)
    with capture_logs() as logs:
        for text in after:
            path.write_text(text)
            reload.read()
    return applied, logs


def test_a_file_that_is_refused_is_told_of_once_and_changes_nothing(tmp_path):
    applied, logs = read(
        tmp_path, "rescanSeconds: 5", ["rescanSeconds: 0", "rescanSeconds: 0 # still", "rescanSeconds: 6"]
    )
    assert [config.rescan_seconds for config in applied] == [6.0]
    [refused] = lines(logs, "configuration refused: the earlier one stays in force")
    assert "rescanSeconds: 0 is not allowed" in refused["reason"]


def test_what_waits_for_a_start_is_told_once(tmp_path):
    _, logs = read(tmp_path, "", ["log: {format: text}", "log: {format: text}\nrescanSeconds: 6"])
    assert [line["keys"] for line in lines(logs, "settings that hold from the next start on")] == [("log.format",)]


def test_environment_and_flags_hold_over_any_file(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("rescanSeconds: 5")
    source = ConfigSource(path, {"GPUPLUGIN_RESCAN_SECONDS": "7"}, {"health-probe-seconds": "3"})
    path.write_text("rescanSeconds: 9\nhealth: {probeSeconds: 1}")
    assert (source.load().rescan_seconds, source.load().health.probe_seconds) == (7.0, 3.0)


@pytest.fixture
async def watched(tmp_path):
    """A ConfigMap's folder, with a Reload that looks at the file in it."""
    (tmp_path / "..one").mkdir()
    (tmp_path / "..one/c.yaml").write_text("rescanSeconds: 5")
    (tmp_path / "..data").symlink_to("..one")
    (tmp_path / "c.yaml").symlink_to("..data/c.yaml")
    source = ConfigSource(tmp_path / "c.yaml", {}, {})
    applied: asyncio.Queue[Config] = asyncio.Queue()
    task = asyncio.create_task(Reload(source, source.load(), applied.put_nowait).keep_watching())
    yield tmp_path, source, applied
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_configmap_that_is_exchanged_is_read_again(watched):
    folder, _, applied = watched
    (folder / "..two").mkdir()
    (folder / "..two/c.yaml").write_text("rescanSeconds: 6")
    (folder / "..new").symlink_to("..two")
    os.replace(folder / "..new", folder / "..data")  # noqa: PTH105 - as kubelet does it
    assert (await asyncio.wait_for(applied.get(), SOON)).rescan_seconds == 6.0


async def test_a_signal_reads_it_at_once_and_is_answered_though_nothing_changed(watched):
    _, source, applied = watched
    with capture_logs() as logs:
        source.asked.set()
        async with asyncio.timeout(SOON):
            while not lines(logs, "configuration unchanged"):
                await asyncio.sleep(0.01)
    assert applied.empty()


async def test_a_file_that_goes_away_keeps_what_it_said(watched):
    folder, source, applied = watched
    with capture_logs() as logs:
        (folder / "c.yaml").unlink()
        source.asked.set()
        async with asyncio.timeout(SOON):
            while not lines(logs, "configuration refused: the earlier one stays in force"):
                await asyncio.sleep(0.01)
    assert applied.empty()


async def test_names_that_stay_keep_their_streams_and_new_slices_are_offered(bench):
    with capture_logs() as logs:
        async with bench.daemon(config_file=bench.configure(sliced(2))):
            await bench.usable(16)
            held = await bench.kubelet.admit("before", GPU, 1)
            bench.configure(sliced(4))
            await bench.usable(32)
            assert held.ids[0] in ids(bench)
            bench.configure(sliced(4) + "flags: {plugin: {sharedDevicesAllocationPolicy: packed}}\n")
            bench.source.asked.set()
            async with asyncio.timeout(SOON):
                while len(lines(logs, "configuration in force")) < 2:
                    await asyncio.sleep(0.01)
    assert len(lines(logs, "kubelet watches")) == 1
    assert not lines(logs, "gone")


async def test_a_resource_that_is_renamed_away_is_offered_empty(bench):
    async with bench.daemon(config_file=bench.configure("")):
        await bench.usable(8)
        bench.configure(sliced(2, section=", renameByDefault: true"))
        await bench.usable(16, "nvidia.com/gpu.shared")
        await bench.usable(0)
        assert ids(bench) == []


async def test_a_bad_file_keeps_pods_coming(bench):
    with capture_logs() as logs:
        async with bench.daemon(config_file=bench.configure(sliced(2))):
            await bench.usable(16)
            bench.configure("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpus, replicas: 2}]}}")
            bench.source.asked.set()
            async with asyncio.timeout(SOON):
                while not lines(logs, "configuration refused: the earlier one stays in force"):
                    await asyncio.sleep(0.01)
            assert (await bench.kubelet.admit("pod", GPU, 1)).admitted
            await bench.usable(16)


async def test_no_health_event_is_missed_while_the_configuration_changes(bench):
    async with bench.daemon(config_file=bench.configure(sliced(2)), rescan_seconds="60"):
        await bench.usable(16)
        for replicas, gpu in ((4, 0), (2, 1), (3, 2), (2, 3)):
            bench.configure(sliced(replicas))
            bench.source.asked.set()
            bench.state.recovery(gpu, 1)
            bench.state.xid(gpu, 95)
            await bench.usable((8 - gpu - 1) * replicas)


async def test_the_mig_strategy_can_change(bench):
    layout(bench, 0, "3g.40gb", "3g.40gb")
    async with bench.daemon(config_file=bench.configure("")):
        await bench.usable(7)
        bench.configure("flags: {migStrategy: mixed}")
        await bench.usable(2, "nvidia.com/mig-3g.40gb")
        await bench.usable(7)
