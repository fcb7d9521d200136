"""The whole of discovery on the simulated machines: the real pynvml, its double below it, and a sysfs tree of files."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gpuplugin.discovery.events import XidWatch
from gpuplugin.discovery.nvml_real import RealNvml
from gpuplugin.discovery.nvml_thread import NvmlThread
from gpuplugin.discovery.observe import observe
from gpuplugin.discovery.sysfs import Sysfs
from gpuplugin.errors import NvmlUnavailable, ObserveError
from gpuplugin.model.health import XidEvent
from gpuplugin.model.inventory import Inventory
from gpuplugin.sim import machine
from gpuplugin.sim.host import SimulatedHost


class Look:
    """A simulated host and all that it takes to look at it."""

    def __init__(self, host: SimulatedHost, thread: NvmlThread) -> None:
        self.host, self.thread = host, thread
        self.sysfs = Sysfs(host.root / "sys")

    async def __call__(self, previous: Inventory | None = None) -> Inventory:
        return await observe(self.thread, self.sysfs, previous)


async def looks(name: str, folder, seconds: float) -> AsyncIterator[Look]:
    host = SimulatedHost(machine.load(name), folder)
    async with NvmlThread(RealNvml(library=host.library()), timeout_seconds=seconds) as thread:
        yield Look(host, thread)
        host.state.heal()
        await thread.call(thread.nvml.close)


@pytest.fixture(params=machine.names())
async def any_machine(request, tmp_path):
    async for look in looks(request.param, tmp_path / "host", 30):
        yield look


@pytest.fixture
async def hgx(tmp_path):
    async for look in looks("hgx-h100", tmp_path / "host", 30):
        yield look


@pytest.fixture
async def hasty(tmp_path):
    """The same, where a call has little time."""
    async for look in looks("hgx-h100", tmp_path / "host", 0.3):
        yield look


async def test_what_is_in_the_machine_is_found(any_machine):
    simulated = any_machine.host.machine
    seen = await any_machine()
    assert seen.warnings == ()
    assert seen.unreadable == ()
    assert [(gpu.uuid, gpu.pci, gpu.numa, gpu.pcie, gpu.minor, gpu.fault) for gpu in seen.gpus] == [
        (gpu.record.uuid, gpu.pci, gpu.numa, gpu.pcie, gpu.record.minor, None) for gpu in simulated.gpus
    ]
    assert seen.nics == tuple(nic.facts for nic in simulated.nics)
    assert seen.numa_nodes == simulated.numa_nodes
    assert await any_machine(seen) is seen


async def test_gpus_on_a_baseboard_have_slots_and_cards_have_none(any_machine):
    seen = await any_machine()
    slots = {"hgx-h100": [2, 4, 1, 3, 6, 8, 5, 7], "hgx-b200": [4, 2, 1, 3, 8, 6, 5, 7], "gb200-tray": [2, 1, 4, 3]}
    assert [gpu.slot for gpu in seen.gpus] == slots.get(any_machine.host.machine.name, [None] * len(seen.gpus))


async def test_links_come_in_pairs(any_machine):
    links = (await any_machine()).nvlinks
    for i, row in enumerate(links.direct):
        assert [row[j] for j in range(len(row))] == [links.direct[j][i] for j in range(len(row))]


async def test_every_pair_of_an_hgx_has_18_links(hgx):
    links = (await hgx()).nvlinks
    assert {links.between(i, j) for i in range(8) for j in range(8) if i != j} == {18}


async def test_a_lost_gpu_keeps_its_facts_and_comes_back(hgx):
    first = await hgx()
    hgx.host.state.lose(3)
    second = await hgx(first)
    assert [gpu.uuid for gpu in second.gpus] == [gpu.uuid for gpu in first.gpus]
    assert [gpu.index for gpu in second.gpus if gpu.fault] == [3]
    assert "GPU_IS_LOST" in (second.gpus[3].fault or "")
    assert second.nvlinks == first.nvlinks
    hgx.host.state.restore(3)
    assert (await hgx(second)).gpus == first.gpus


async def test_a_slot_stays_when_the_gpus_beside_it_are_gone(hgx):
    first = await hgx()
    for _ in range(7):
        hgx.host.unplug(0)
    second = await hgx(first)
    assert [(gpu.uuid, gpu.slot) for gpu in second.gpus] == [(first.gpus[7].uuid, 7)]


async def test_a_gpu_lost_from_the_start_is_unreadable(hgx):
    hgx.host.state.lose(0)
    seen = await hgx()
    assert [gpu.index for gpu in seen.gpus] == list(range(1, 8))
    assert [gpu.index for gpu in seen.unreadable] == [0]


async def test_a_gpu_unplugged_is_dropped_and_found_again(hgx):
    first = await hgx()
    gone = hgx.host.unplug(2)
    second = await hgx(first)
    assert [gpu.uuid for gpu in second.gpus] == [gpu.uuid for gpu in first.gpus if gpu.uuid != gone.record.uuid]
    assert second.warnings == ()
    hgx.host.plug(gone)
    third = await hgx(second)
    assert {gpu.uuid for gpu in third.gpus} == {gpu.uuid for gpu in first.gpus}


async def test_mig_devices_appear(hgx):
    first = await hgx()
    hgx.host.mig_mode(1, enabled=True)
    hgx.host.mig_create(1, "3g.40gb")
    second = await hgx(first)
    assert second.number == first.number + 1
    assert [device.profile for device in second.gpus[1].mig_devices] == ["3g.40gb"]
    assert second.gpus[0] == first.gpus[0]


@pytest.mark.parametrize("loaded", [False, "mismatch"])
async def test_a_driver_that_goes_and_comes_back(hgx, loaded):
    hgx.host.state.driver(loaded)
    with pytest.raises(NvmlUnavailable):
        await hgx()
    hgx.host.state.driver(loaded=True)
    assert len((await hgx()).gpus) == 8


async def test_an_error_of_nvml_as_a_whole_is_no_empty_machine(hgx):
    await hgx()
    hgx.host.state.fail("nvmlDeviceGetCount_v2", 999)
    with pytest.raises(ObserveError):
        await hgx()


async def test_a_hung_gpu_is_quarantined_alone(hasty, until):
    first = await hasty()
    hasty.host.state.hang("nvmlDeviceGetUUID", 5)
    second = await hasty(first)
    assert [gpu.index for gpu in second.gpus if gpu.fault] == [5]
    assert hasty.thread.quarantined == {first.gpus[5].uuid}
    hasty.host.state.heal()
    await until(lambda: not hasty.thread.quarantined)
    assert (await hasty(second)).gpus == first.gpus


async def test_xids_are_heard_and_after_rearming_those_of_new_gpus_too(hgx, until):
    seen = await hgx()
    gone = hgx.host.unplug(0)
    events: list[XidEvent] = []
    troubles: list[str | None] = []
    watch = XidWatch(hgx.thread, events.append, troubles.append, lambda _: None, slice_seconds=0.05)
    watch.start()
    assert await watch.rearm() == {}
    hgx.host.state.xid(2, 79)
    await until(lambda: events)
    assert events == [XidEvent(seen.gpus[3].uuid, 79)]
    hgx.host.plug(gone)
    assert await watch.rearm() == {}
    hgx.host.state.xid(0, 48, gi=1, ci=0)
    await until(lambda: len(events) > 1)
    assert (events[-1].xid, events[-1].gpu_instance, events[-1].compute_instance) == (48, 1, 0)
    assert troubles == []
    await watch.stop()


async def test_xids_are_heard_again_after_nvml_was_closed_and_opened(hgx, until):
    events: list[XidEvent] = []
    troubles: list[str | None] = []
    seen = await hgx()
    watch = XidWatch(hgx.thread, events.append, troubles.append, lambda _: None, slice_seconds=0.05)
    watch.start()
    await watch.rearm()
    await hgx.thread.call(hgx.thread.nvml.close)
    await until(lambda: troubles)
    assert await hgx(seen) is seen
    await watch.rearm()
    hgx.host.state.xid(1, 79)
    await until(lambda: events)
    await until(lambda: watch.trouble is None)
    assert events == [XidEvent(seen.gpus[1].uuid, 79)]
    await watch.stop()
