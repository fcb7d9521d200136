"""When labels are written, and all the times when they are not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from gpuplugin.config import Config, load
from gpuplugin.daemon import labels as module
from gpuplugin.daemon import upkeep
from gpuplugin.daemon.label_facts import facts, machine_model
from gpuplugin.daemon.label_file import LabelsInFile
from gpuplugin.daemon.labels import Labelling
from gpuplugin.errors import KubeForbidden
from gpuplugin.labels.build import labels
from gpuplugin.model.inventory import UnreadableGpu
from gpuplugin.serving.latest import Latest
from tests.daemon.conftest import SOON
from tests.labels.nodes import facts as node_facts
from tests.labels.nodes import gpu

READY = "gpuplugin.io/driver.ready"


class FakeOutlet:
    def __init__(self, **there: str) -> None:
        self.there, self.writes, self.reads, self.refusals = dict(there), [], 0, []

    async def read(self) -> dict[str, str]:
        self.reads += 1
        if self.refusals:
            raise self.refusals.pop()
        return dict(self.there)

    async def write(self, wanted) -> None:
        self.there = dict(wanted)
        self.writes.append(self.there)


def inventory(*gpus, unreadable=()):
    found = node_facts(*gpus).inventory
    return type(found)(**{name: getattr(found, name) for name in found.__slots__} | {"unreadable": unreadable})


@pytest.fixture
def labelling(tmp_path) -> Labelling:
    node = SimpleNamespace(looked=asyncio.Event(), trouble="", picture=Latest(None))
    return Labelling(Config(), node, tmp_path)


async def test_a_restart_writes_nothing(labelling, tmp_path):
    seen = inventory(gpu(0), gpu(1))
    outlet = FakeOutlet(**labels(facts(seen, Config(), tmp_path)))
    labelling.take(seen, Config())
    assert await labelling.look(outlet)
    assert outlet.writes == []


async def test_only_a_change_is_written_and_what_others_removed_comes_back(labelling):
    outlet = FakeOutlet()
    labelling.take(inventory(gpu(0)), Config())
    await labelling.look(outlet)
    await labelling.look(outlet)
    assert len(outlet.writes) == 1
    del outlet.there["nvidia.com/gpu.product"]
    await labelling.look(outlet)
    assert outlet.there["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    labelling.take(inventory(gpu(0), gpu(1)), Config())
    await labelling.look(outlet)
    assert outlet.there["nvidia.com/gpu.count"] == "2"
    assert len(outlet.writes) == 3


async def test_a_gpu_that_cannot_be_read_takes_no_label_away(labelling):
    outlet = FakeOutlet(**{"nvidia.com/mig-1g.10gb.count": "7"})
    bad = UnreadableGpu(1, None, "lost")
    labelling.take(inventory(gpu(0), unreadable=(bad,)), Config())
    await labelling.look(outlet)
    assert (outlet.there["nvidia.com/mig-1g.10gb.count"], outlet.there["nvidia.com/gpu.count"]) == ("7", "1")
    labelling.take(inventory(unreadable=(bad,)), Config())
    await labelling.look(outlet)
    assert outlet.there["nvidia.com/gpu.count"] == "1"
    assert len(outlet.writes) == 1
    labelling.take(inventory(), Config())
    await labelling.look(outlet)
    assert outlet.there == {}


async def test_a_late_driver_takes_no_label_away(labelling):
    outlet = FakeOutlet(a="1")
    assert not await labelling.look(outlet)
    assert outlet.writes == []


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(module, "DRIVER_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, "DRIVER_PATIENCE_SECONDS", 0.03)


async def until(condition) -> None:
    async with asyncio.timeout(SOON):
        while not condition():
            await asyncio.sleep(0.01)


async def following(labelling: Labelling, outlet: FakeOutlet):
    async def made(_stack):
        return outlet

    labelling._outlet = made
    return asyncio.create_task(labelling.run())


async def test_a_driver_that_stays_away_is_told_of_beside_what_was_known(labelling, impatient):
    outlet = FakeOutlet(a="1")
    labelling._node.trouble = "no driver"
    task = await following(labelling, outlet)
    await until(lambda: outlet.there == {"a": "1", READY: "false"})
    labelling._node.trouble = ""
    labelling._node.picture.set(SimpleNamespace(inventory=inventory(gpu(0)), config=Config()))
    await until(lambda: outlet.there.get(READY) == "true")
    assert "a" not in outlet.there
    labelling._node.trouble = "no driver"
    await until(lambda: outlet.there.get(READY) == "false")
    assert outlet.there["nvidia.com/gpu.count"] == "1"
    task.cancel()


async def test_a_machine_without_gpus_says_nothing_of_a_driver(labelling, impatient):
    outlet = FakeOutlet()
    labelling._node.trouble = "no driver"
    task = await following(labelling, outlet)
    await until(lambda: labelling._driver_away)
    await labelling.look(outlet)
    assert outlet.writes == []
    task.cancel()


async def test_once_means_until_written(labelling):
    labelling._config = load(None, {"GFD_ONESHOT": "true"}, {})
    outlet = FakeOutlet()
    labelling._node.looked.set()
    task = await following(labelling, outlet)
    labelling._node.picture.set(SimpleNamespace(inventory=inventory(gpu(0)), config=Config()))
    await asyncio.wait_for(task, SOON)
    assert len(outlet.writes) == 1


async def test_health_that_comes_and_goes_asks_nothing(labelling):
    outlet = FakeOutlet()
    labelling._node.looked.set()
    task = await following(labelling, outlet)
    seen = inventory(gpu(0))
    for _ in range(20):
        labelling._node.picture.set(SimpleNamespace(inventory=seen, config=Config()))
        await asyncio.sleep(0)
    await until(lambda: outlet.writes)
    reads = outlet.reads
    for _ in range(20):
        labelling._node.picture.set(SimpleNamespace(inventory=seen, config=Config()))
        await asyncio.sleep(0)
    assert (outlet.reads, len(outlet.writes)) == (reads, 1)
    task.cancel()


async def test_refusals_are_told_once_and_tried_again(monkeypatch):
    monkeypatch.setattr(upkeep, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(upkeep, "LONGEST_PAUSE_SECONDS", 0.002)
    failures = [KubeForbidden("patch", "nodes", "here", 403, "no")] * 3

    async def look() -> bool:
        if failures:
            raise failures.pop()
        return True

    with capture_logs() as logs:
        async with asyncio.timeout(SOON):
            await upkeep.keep_up("labels", look, asyncio.Event(), 900.0, once=True)
    assert [line["event"] for line in logs] == ["cannot be kept up: trying again", "can be kept up again"]
    assert "verbs ['patch']" in logs[0]["reason"]


def test_the_machine_is_named_by_the_hosts_file(tmp_path):
    name = tmp_path / "class/dmi/id/product_name"
    name.parent.mkdir(parents=True)
    name.write_text("PowerEdge XE9680\n")
    assert machine_model("/sys/class/dmi/id/product_name", tmp_path) == "PowerEdge XE9680"
    assert machine_model(str(name), tmp_path / "none") == "PowerEdge XE9680"
    assert machine_model("", tmp_path) is None
    assert machine_model("/sys/none", tmp_path) is None


async def test_a_feature_file_is_replaced_as_a_whole_and_leaves_nothing_beside(tmp_path):
    file = LabelsInFile(tmp_path / "gpus")
    assert await file.read() == {}
    wanted = {"nvidia.com/a": "1", "nvidia.com/b": ""}
    await file.write(wanted)
    assert (tmp_path / "gpus").read_text() == "nvidia.com/a=1\nnvidia.com/b=\n"
    assert await file.read() == wanted
    assert [path.name for path in tmp_path.iterdir()] == ["gpus"]
    assert (file.remove(), file.remove()) == (True, False)


async def test_the_daemon_keeps_a_feature_file_and_a_restart_leaves_it_alone(bench):
    file = bench.folder / "features"
    settings = {"labels_owner": "nfd-file", "output_file": str(file)}
    config = bench.configure("")
    async with bench.daemon(config_file=config, **settings):
        await until(file.exists)
        said = dict(line.split("=") for line in file.read_text().splitlines())
        assert (said["nvidia.com/gpu.count"], said["nvidia.com/gpu.mode"], said[READY]) == ("8", "compute", "true")
    inode = file.stat().st_ino
    async with bench.daemon(config_file=config, **settings):
        await bench.usable(8)
        bench.state.lose(3)
        await bench.usable(7)
        assert file.stat().st_ino == inode
        bench.configure("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}")
        await until(lambda: "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3-SHARED\n" in file.read_text())
    assert "nvidia.com/gpu.replicas=4\n" in file.read_text()


def test_gpus_that_are_left_out_or_for_a_screen_are_not_told_of(tmp_path):
    seen = inventory(gpu(0), gpu(1), gpu(2, "NVIDIA DGX Display"))
    found = facts(seen, load(None, {"GPUPLUGIN_DEVICES_EXCLUDE": "1"}, {}), tmp_path)
    assert [one.index for one in found.gpus] == [0]
    assert [offer.gpu.index for offer in found.offers] == [0]


def test_gpus_of_claims_are_told_of_and_never_called_shared(tmp_path):
    sharing = tmp_path / "c.yaml"
    sharing.write_text("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}")
    config = load(sharing, {"GPUPLUGIN_DRA_GPUS": "all", "NODE_NAME": "here"}, {})
    found = labels(facts(inventory(gpu(0)), config, tmp_path))
    assert (found["nvidia.com/gpu.count"], found["nvidia.com/gpu.replicas"]) == ("1", "1")
