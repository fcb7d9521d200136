from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplugin.discovery.nvml import NvLinkEnd
from gpuplugin.discovery.nvml_thread import NvmlThread
from gpuplugin.discovery.observe import MAX_WARNINGS, observe
from gpuplugin.discovery.sysfs import Sysfs
from gpuplugin.errors import GpuLost, NvmlError, NvmlUnavailable, ObserveError
from gpuplugin.model.ids import PciAddress
from gpuplugin.model.inventory import PciePath, UnreadableGpu

LOST = GpuLost("nvmlDeviceGetUUID", 15, "GPU is lost")
LOST_TEXT = "NVML: GPU is lost"
UNKNOWN = NvmlError("nvmlDeviceGetCount_v2", 999, "Unknown Error")
NO_DRIVER = NvmlUnavailable("nvmlInit_v2", 9, "Driver Not Loaded")


def make_sysfs(root: Path, gpus: int = 8) -> Sysfs:
    devices = root / "bus/pci/devices"
    devices.mkdir(parents=True)
    for n in range(gpus):
        folder = root / f"devices/pci0000:{n // 4:02x}/0000:{n // 4:02x}:01.0/0000:{0x10 + n:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{n // 4}\n")
        (devices / folder.name).symlink_to(folder)
    for node in range(2):
        folder = root / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{node * 4}-{node * 4 + 3}\n")
        (folder / "distance").write_text("10 21\n" if node == 0 else "21 10\n")
    return Sysfs(root)


@pytest.fixture
def sysfs(tmp_path):
    return make_sysfs(tmp_path / "sys")


@pytest.fixture
async def machine(fake_nvml):
    """An NVML of eight GPUs and its thread."""
    nvml = fake_nvml(8)
    async with NvmlThread(nvml, timeout_seconds=0.5) as thread:
        yield nvml, thread


async def test_nvml_and_sysfs_are_merged(machine, sysfs):
    nvml, thread = machine
    seen = await observe(thread, sysfs, None)
    assert seen.number == 1
    assert seen.driver == nvml.versions
    assert [gpu.index for gpu in seen.gpus] == list(range(8))
    gpu = seen.gpus[5]
    assert (gpu.uuid, gpu.pci, gpu.numa, gpu.fault) == (nvml.gpus[5].uuid, nvml.gpus[5].pci, 1, None)
    assert gpu.pcie == PciePath("pci0000:01", (PciAddress("0000:01:01.0"),))
    assert [(node.id, len(node.cpus)) for node in seen.numa_nodes] == [(0, 4), (1, 4)]
    assert (seen.unreadable, seen.nics, seen.warnings) == ((), (), ())


async def test_no_gpus_is_a_valid_inventory(fake_nvml, sysfs):
    async with NvmlThread(fake_nvml(0)) as thread:
        seen = await observe(thread, sysfs, None)
        assert (seen.gpus, seen.unreadable, seen.nvlinks.direct) == ((), (), ())
        assert await observe(thread, sysfs, seen) is seen


async def test_the_number_grows_with_each_difference_and_sameness_is_identity(machine, sysfs):
    nvml, thread = machine
    first = await observe(thread, sysfs, None)
    assert await observe(thread, sysfs, first) is first
    nvml.gpus[2] = replace(nvml.gpus[2], minor=77)
    second = await observe(thread, sysfs, first)
    assert (second.number, second.gpus[2].minor) == (2, 77)
    assert await observe(thread, sysfs, second) is second


class TestNvLinks:
    async def test_ends_become_a_matrix(self, fake_nvml, read, sysfs):
        def to(*remotes: object) -> tuple[NvLinkEnd, ...]:
            return tuple(
                NvLinkEnd(n, to_switch=remote == "switch", pci=None if remote == "switch" else PciAddress(remote))
                for n, remote in enumerate(remotes)
            )

        gpus = [
            read(0, nvlinks=to("0000:11:00.0", "0000:11:00.0", "switch", "switch", "switch")),
            read(1, nvlinks=to("00000000:10:00.0", "0000:10:00.1", "0000:11:00.0", "0000:99:00.0", "switch")),
            read(2),
        ]
        async with NvmlThread(fake_nvml(gpus)) as thread:
            links = (await observe(thread, sysfs, None)).nvlinks
        assert links.direct == ((0, 2, 0), (2, 0, 0), (0, 0, 0))
        assert links.to_switch == (3, 1, 0)

    async def test_a_gpu_that_cannot_be_read_keeps_the_links_it_had(self, fake_nvml, read, sysfs):
        ring = [
            read(n, nvlinks=(NvLinkEnd(0, to_switch=False, pci=PciAddress(f"0000:{0x10 + (n + 1) % 3:02x}:00.0")),) * 2)
            for n in range(3)
        ]
        nvml = fake_nvml(ring)
        async with NvmlThread(nvml) as thread:
            first = await observe(thread, sysfs, None)
            nvml.faults["gpu", 1] = LOST
            second = await observe(thread, sysfs, first)
            assert second.nvlinks == first.nvlinks
            del nvml.gpus[2]
            third = await observe(thread, sysfs, second)
        assert third.nvlinks.direct == ((0, 2), (0, 0))
        assert third.gpus[1].fault == LOST_TEXT


class TestOneGpuFails:
    async def test_known_before_it_keeps_its_facts_and_says_why(self, machine, sysfs):
        nvml, thread = machine
        first = await observe(thread, sysfs, None)
        nvml.faults["gpu", 3] = LOST
        second = await observe(thread, sysfs, first)
        assert second.gpus[3] == replace(first.gpus[3], fault=LOST_TEXT)
        assert second.gpus[:3] + second.gpus[4:] == first.gpus[:3] + first.gpus[4:]
        assert second.unreadable == ()
        assert await observe(thread, sysfs, second) is second
        nvml.faults.clear()
        third = await observe(thread, sysfs, second)
        assert (third.number, third.gpus) == (3, first.gpus)

    async def test_never_read_it_is_unreadable_until_it_can_be_read(self, machine, sysfs):
        nvml, thread = machine
        nvml.faults["gpu", 3] = LOST
        first = await observe(thread, sysfs, None)
        assert [gpu.index for gpu in first.gpus] == [0, 1, 2, 4, 5, 6, 7]
        assert first.unreadable == (UnreadableGpu(3, nvml.gpus[3].pci, LOST_TEXT),)
        assert len(first.nvlinks.direct) == 7
        nvml.faults.clear()
        second = await observe(thread, sysfs, first)
        assert ([gpu.index for gpu in second.gpus], second.unreadable) == (list(range(8)), ())

    async def test_without_its_address_it_is_known_by_index(self, machine, sysfs):
        nvml, thread = machine
        first = await observe(thread, sysfs, None)
        nvml.faults |= {("gpu", 3): LOST, ("gpu_pci", 3): LOST}
        second = await observe(thread, sysfs, first)
        assert second.gpus[3] == replace(first.gpus[3], fault=LOST_TEXT)

    async def test_another_gpu_in_its_place_is_not_taken_for_it(self, machine, read, sysfs):
        nvml, thread = machine
        first = await observe(thread, sysfs, None)
        nvml.gpus[3] = read(3, pci=PciAddress("0000:77:00.0"))
        nvml.faults["gpu", 3] = LOST
        second = await observe(thread, sysfs, first)
        assert first.gpus[3].uuid not in {gpu.uuid for gpu in second.gpus}
        assert second.unreadable == (UnreadableGpu(3, PciAddress("0000:77:00.0"), LOST_TEXT),)

    async def test_its_address_finds_it_when_indices_have_moved(self, machine, sysfs):
        nvml, thread = machine
        first = await observe(thread, sysfs, None)
        del nvml.gpus[0]
        nvml.faults["gpu", 2] = LOST
        second = await observe(thread, sysfs, first)
        assert second.gpus[2] == replace(first.gpus[3], index=2, fault=LOST_TEXT)
        assert [gpu.uuid for gpu in second.gpus] == [gpu.uuid for gpu in first.gpus[1:]]

    async def test_an_index_that_now_is_another_gpus_is_no_proof(self, machine, sysfs):
        nvml, thread = machine
        first = await observe(thread, sysfs, None)
        nvml.gpus[2:4] = [nvml.gpus[3], nvml.gpus[2]]
        nvml.faults |= {("gpu", 3): LOST, ("gpu_pci", 3): LOST}
        second = await observe(thread, sysfs, first)
        assert second.gpus[2].uuid == first.gpus[3].uuid
        assert second.unreadable == (UnreadableGpu(3, None, LOST_TEXT),)

    async def test_even_an_error_nobody_thought_of_stays_with_its_gpu(self, machine, sysfs):
        nvml, thread = machine
        nvml.faults["gpu", 6] = TypeError("not in the contract")
        seen = await observe(thread, sysfs, None)
        assert len(seen.gpus) == 7
        assert seen.unreadable[0].reason == "could not be read: TypeError: not in the contract"

    async def test_a_hung_gpu_is_the_only_one_and_is_not_asked_again(self, machine, gate, until, sysfs):
        nvml, thread = machine
        first = await observe(thread, sysfs, None)
        stuck = gate()
        nvml.faults["gpu", 1] = stuck
        second = await observe(thread, sysfs, first)
        assert [gpu.fault for gpu in second.gpus] == [None, "NVML: no answer within 0.5 s (gpu)", *[None] * 6]
        assert thread.quarantined == {first.gpus[1].uuid}
        asked = nvml.calls.count(("gpu", 1))
        assert await observe(thread, sysfs, second) is second
        assert nvml.calls.count(("gpu", 1)) == asked
        stuck.open.set()
        await until(lambda: not thread.quarantined)
        nvml.faults.clear()
        assert (await observe(thread, sysfs, second)).gpus == first.gpus


async def test_a_gpu_that_is_not_counted_any_more_is_dropped(machine, sysfs):
    nvml, thread = machine
    first = await observe(thread, sysfs, None)
    gone = nvml.gpus.pop(4)
    second = await observe(thread, sysfs, first)
    assert len(second.gpus) == 7
    assert gone.uuid not in {gpu.uuid for gpu in second.gpus}


async def test_the_second_of_two_gpus_with_one_uuid_is_unreadable(machine, read, sysfs):
    nvml, thread = machine
    nvml.gpus[5] = read(5, uuid=nvml.gpus[2].uuid)
    seen = await observe(thread, sysfs, None)
    assert [gpu.index for gpu in seen.gpus] == [0, 1, 2, 3, 4, 6, 7]
    assert seen.unreadable[0].index == 5
    assert "has the UUID of GPU 2, GPU-00000002" in seen.unreadable[0].reason


class TestAsAWhole:
    @pytest.mark.parametrize("method", ["open", "driver", "gpu_count", "gpu"])
    async def test_without_a_driver_nvml_is_closed_for_a_fresh_start(self, machine, sysfs, method):
        nvml, thread = machine
        nvml.faults[method] = NO_DRIVER
        with pytest.raises(NvmlUnavailable) as raised:
            await observe(thread, sysfs, None)
        assert raised.value is NO_DRIVER
        assert nvml.calls[-1] == ("close", None)

    @pytest.mark.parametrize("method", ["open", "driver", "gpu_count"])
    async def test_an_error_is_not_an_empty_machine(self, machine, sysfs, method):
        nvml, thread = machine
        nvml.faults[method] = UNKNOWN
        with pytest.raises(ObserveError, match=r"NVML does not answer: nvmlDeviceGetCount_v2: Unknown Error"):
            await observe(thread, sysfs, None)

    async def test_a_stuck_nvml_is_not_eight_sick_gpus(self, machine, gate, sysfs):
        nvml, thread = machine
        first = await observe(thread, sysfs, None)
        nvml.faults["gpu"] = gate()
        with pytest.raises(ObserveError, match="nor for any other GPU"):
            await observe(thread, sysfs, first)
        assert thread.stuck
        with pytest.raises(ObserveError, match="NVML does not answer"):
            await observe(thread, sysfs, first)

    async def test_cancelling_a_look_leaves_the_thread_in_order(self, machine, gate, until, sysfs):
        nvml, thread = machine
        stuck = gate()
        nvml.faults["gpu", 0] = stuck
        look = asyncio.create_task(observe(thread, sysfs, None))
        await until(stuck.inside.is_set)
        look.cancel()
        await asyncio.wait({look})
        assert look.cancelled()
        stuck.open.set()
        nvml.faults.clear()
        assert len((await observe(thread, sysfs, None)).gpus) == 8


class TestSysfsFails:
    async def test_all_of_it(self, machine, tmp_path):
        _, thread = machine
        seen = await observe(thread, Sysfs(tmp_path / "nothing"), None)
        assert len(seen.gpus) == 8
        assert {(gpu.numa, gpu.pcie) for gpu in seen.gpus} == {(None, None)}
        assert seen.warnings == (f"{tmp_path}/nothing/bus/pci/devices: no such folder; is this the host's /sys?",)

    async def test_what_cannot_be_listed_now_is_as_it_was(self, machine, sysfs):
        _, thread = machine
        nic = sysfs.root / "class/infiniband/mlx5_0"
        nic.mkdir(parents=True)
        (nic / "device").symlink_to(sysfs.root / "devices/pci0000:00/0000:00:01.0/0000:10:00.0")
        first = await observe(thread, sysfs, None)
        assert len(first.nics) == 1
        for folder in ("class/infiniband", "devices/system/node"):
            (sysfs.root / folder).rename(sysfs.root / "away" if folder.startswith("class") else sysfs.root / "gone")
            (sysfs.root / folder).write_text("")
        second = await observe(thread, sysfs, first)
        assert (second.nics, second.numa_nodes) == (first.nics, first.numa_nodes)
        assert [text.rpartition("/")[2] for text in second.warnings if "Not a dir" in text] == [
            "infiniband: Not a directory",
            "node: Not a directory",
        ]

    async def test_nics_that_hang_do_not_hold_up_the_look_nor_pile_up_threads(self, machine, sysfs, monkeypatch, gate):
        _, thread = machine
        stuck = gate(())
        monkeypatch.setattr(Sysfs, "_all_nics", stuck)
        first = await observe(thread, sysfs, None)
        assert (len(first.gpus), first.warnings) == (8, ("the RDMA NICs did not answer within 0.5 s",))
        second = await observe(thread, sysfs, first)
        assert "an earlier look at the NICs has not come back" in second.warnings[0]

    async def test_warnings_have_an_end(self, fake_nvml, tmp_path):
        async with NvmlThread(fake_nvml(MAX_WARNINGS + 9)) as thread:
            seen = await observe(thread, make_sysfs(tmp_path / "sys", 0), None)
        assert len(seen.warnings) == MAX_WARNINGS + 1
        assert seen.warnings[-1] == "and 9 more"


FAULTS = st.sampled_from([None, LOST, UNKNOWN, ValueError("garbage")])


@settings(max_examples=40, deadline=None)
@given(looks=st.lists(st.tuples(*[st.tuples(FAULTS, FAULTS)] * 4), min_size=1, max_size=4))
def test_whatever_fails_never_hides_a_gpu_nor_changes_the_order(fake_nvml, read, looks, tmp_path_factory):
    sysfs = make_sysfs(tmp_path_factory.mktemp("machine") / "sys", 4)

    async def run() -> None:
        nvml = fake_nvml([read(n, nvlinks=(NvLinkEnd(0, to_switch=True, pci=None),) * n) for n in range(4)])
        seen_once: set[int] = set()
        previous = None
        async with NvmlThread(nvml) as thread:
            for faults in looks:
                nvml.faults = {("gpu", n): fault for n, (fault, _) in enumerate(faults)}
                nvml.faults |= {("gpu_pci", n): fault for n, (_, fault) in enumerate(faults)}
                seen = await observe(thread, sysfs, previous)
                well = {n for n, (fault, _) in enumerate(faults) if fault is None}
                seen_once |= well
                assert [gpu.index for gpu in seen.gpus] == sorted(seen_once)
                assert [gpu.index for gpu in seen.unreadable] == sorted(set(range(4)) - seen_once)
                assert {gpu.index for gpu in seen.gpus if gpu.fault is None} == well
                assert [gpu.uuid for gpu in seen.gpus] == [nvml.gpus[n].uuid for n in sorted(seen_once)]
                assert seen.nvlinks.to_switch == tuple(sorted(seen_once))
                assert previous is None or (seen is previous) == (seen.number == previous.number)
                assert await observe(thread, sysfs, seen) is seen
                previous = seen

    asyncio.run(run())
