"""The whole daemon on a simulated machine: what kubelet sees of everything that can happen to GPUs and driver."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from gpuplugin.config import Config
from gpuplugin.daemon.node import Node
from gpuplugin.discovery.nvml_real import RealNvml
from gpuplugin.errors import NvmlError
from gpuplugin.model.ids import GpuUuid
from tests.daemon.conftest import GPU, SOON
from tests.plan.machine import gpu as gpu_of
from tests.plan.machine import inventory


def lines(logs, event):
    return [line for line in logs if line["event"] == event]


async def until(condition, what):
    try:
        async with asyncio.timeout(SOON):
            while not condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise TimeoutError(what) from None


def minors(bench):
    spec = json.loads(bench.cdi.read_text())
    return {device["name"] for device in spec["devices"]}


async def test_eight_gpus_are_offered_with_their_numa_nodes_and_a_document_that_names_them(bench):
    async with bench.daemon():
        await bench.usable(8)
        nodes = {device.id: set(device.nodes) for device in bench.kubelet.devices(GPU)}
        uuids = [gpu.uuid for gpu in bench.state.snapshot.gpus]
        assert nodes == {uuid: {index // 4} for index, uuid in enumerate(uuids)}
        assert minors(bench) == set(uuids)


async def test_pods_get_one_numa_node_and_one_island_or_kubelets_refusal(bench):
    async with bench.daemon():
        await bench.usable(8)
        first = await bench.kubelet.admit("tp4", GPU, 4)
        second = await bench.kubelet.admit("tp4-too", GPU, 4)
        assert (first.affinity, second.affinity) == ((0,), (1,))
        assert not set(first.ids) & set(second.ids)
        bench.kubelet.release("tp4")
        bench.kubelet.release("tp4-too")
        assert (await bench.kubelet.admit("five", GPU, 5)).reason == "TopologyAffinityError"


async def test_an_xid_takes_its_gpu_away_and_recovery_brings_it_back(bench):
    with capture_logs() as logs:
        async with bench.daemon():
            await bench.usable(8)
            bench.state.recovery(2, 1)
            bench.state.xid(2, 95)
            await bench.usable(7)
            await asyncio.sleep(0.5)
            assert bench.kubelet.allocatable(GPU) == 7, "the driver still wants a reset"
            bench.state.recovery(2, 0)
            await bench.usable(8)
    assert "XID 95" in lines(logs, "withdrawn")[0]["reason"]
    assert lines(logs, "recovered")[0]["gpus"] == [2]


async def test_an_applications_xid_changes_nothing(bench):
    with capture_logs() as logs:
        async with bench.daemon():
            await bench.usable(8)
            bench.state.xid(0, 31)
            await until(lambda: lines(logs, "XID left to the application"), "the XID in the log")
            assert bench.kubelet.allocatable(GPU) == 8


async def test_a_lost_gpu_is_found_without_an_xid_and_hides_no_other(bench):
    async with bench.daemon(health_disable="all"):
        await bench.usable(8)
        bench.state.lose(5)
        await bench.usable(7)
        assert len(bench.kubelet.devices(GPU)) == 8
        bench.state.restore(5)
        await bench.usable(8)


async def test_a_gpu_that_is_lost_at_the_start_is_told_of_and_the_others_are_offered(bench):
    bench.state.lose(5)
    with capture_logs() as logs:
        async with bench.daemon():
            await bench.usable(7)
            assert lines(logs, "GPU cannot be read")[0]["gpu"] == 5
            bench.state.restore(5)
            await bench.usable(8)


async def test_a_driver_that_comes_late_is_waited_for_and_said_once(bench):
    bench.state.driver(False)
    with capture_logs() as logs:
        async with bench.daemon():
            await until(lambda: lines(logs, "the GPUs cannot be looked at: trying again"), "the reason in the log")
            await asyncio.sleep(1)
            assert bench.kubelet.resources() == ()
            bench.state.driver(True)
            await bench.usable(8)
    assert len(lines(logs, "the GPUs cannot be looked at: trying again")) == 1


async def test_a_library_of_another_version_is_named_as_such(bench):
    bench.state.driver("mismatch")
    with capture_logs() as logs:
        async with bench.daemon():
            await until(lambda: lines(logs, "the GPUs cannot be looked at: trying again"), "the reason in the log")
    assert "version" in lines(logs, "the GPUs cannot be looked at: trying again")[0]["reason"]


async def test_a_driver_that_goes_leaves_health_unknown_and_the_list_whole(bench):
    async with bench.daemon(rescan_seconds="1"):
        await bench.usable(8)
        bench.state.driver(False)
        bench.state.fail("nvmlSystemGetDriverVersion", 1)
        await bench.usable(0)
        assert len(bench.kubelet.devices(GPU)) == 8
        bench.state.heal()
        bench.state.driver(True)
        await bench.usable(8)
        bench.state.xid(1, 79)
        await bench.usable(7)


async def test_a_gpu_whose_node_is_missing_is_refused_with_the_reason_and_heals(bench):
    node = next(path for path in (bench.machine.root / "dev").glob("nvidia[0-9]*"))
    node.unlink()
    with capture_logs() as logs:
        async with bench.daemon():
            await bench.usable(7)
            reason = lines(logs, "withdrawn")[0]["reason"]
            assert f"{node} is missing on the host" in reason
            node.touch()
            await bench.usable(8)


async def test_a_document_that_cannot_be_written_withdraws_all_and_heals(bench):
    bench.cdi.parent.write_text("a file where the folder should be")
    with capture_logs() as logs:
        async with bench.daemon():
            await bench.usable(0)
            assert str(bench.cdi.parent) in lines(logs, "withdrawn")[0]["reason"]
            bench.cdi.parent.unlink()
            await bench.usable(8)


async def test_a_document_deleted_or_broken_by_hand_is_written_again_with_the_next_look(bench):
    async with bench.daemon(rescan_seconds="1"):
        await bench.usable(8)
        good = bench.cdi.read_text()
        bench.cdi.unlink()
        await until(bench.cdi.exists, "the document is back")
        bench.cdi.write_text("{}")
        await until(lambda: bench.cdi.read_text() == good, "the document is mended")


async def test_a_hung_call_costs_one_gpu(bench):
    async with bench.daemon():
        await bench.usable(8)
        bench.state.hang("nvmlDeviceGetMemoryInfo", 3)
        bench.state.hang("nvmlDeviceGetMemoryInfo_v2", 3)
        bench.state.hang("nvmlDeviceGetFieldValues", 3)
        try:
            await bench.usable(7)
            assert (await bench.kubelet.admit("pod", GPU, 4)).admitted
        finally:
            bench.state.heal()
        await bench.usable(8)


async def test_a_gpu_unplugged_and_plugged_is_followed(bench):
    async with bench.daemon(rescan_seconds="1"):
        await bench.usable(8)
        gone = bench.machine.unplug(7)
        await until(lambda: len(bench.kubelet.devices(GPU)) == 7, "seven devices")
        bench.machine.plug(gone)
        await bench.usable(8)


def counted(monkeypatch, name):
    """Have each call of NVML by that name add to the list that is returned, once it has come back."""
    calls, call = [], getattr(RealNvml, name)

    def count(nvml, *arguments):
        try:
            return call(nvml, *arguments)
        finally:
            calls.append(name)

    monkeypatch.setattr(RealNvml, name, count)
    return calls


async def test_a_gpu_that_was_lost_when_events_were_registered_for_is_heard_once_it_is_back(bench, monkeypatch):
    registered, waits = counted(monkeypatch, "watch"), counted(monkeypatch, "wait")
    async with bench.daemon(rescan_seconds="1"):
        await bench.usable(8)
        bench.state.lose(3)
        await bench.usable(7)
        bench.machine.unplug(7)
        await until(lambda: len(registered) == 2, "all that are left are registered anew")
        await bench.usable(6)
        bench.state.restore(3)
        await bench.usable(7)
        began = len(waits)
        await until(lambda: len(waits) >= began + 2, "the wait that was under way with the earlier set has ended")
        bench.state.xid(3, 79)
        await bench.usable(6)


async def test_a_gpu_that_was_taken_out_while_it_was_probed_has_no_fault():
    async def not_found(*_, gpu):
        node.inventory = inventory(gpu_of(0))
        raise NvmlError("nvmlDeviceGetHandleByUUID", 6, f"{gpu} is not there")

    thread = SimpleNamespace(call=not_found, nvml=SimpleNamespace(probe=None))
    node = Node(Config(), thread, None, None, None, None)
    node.inventory = inventory(gpu_of(0), gpu_of(1))
    with capture_logs() as logs:
        await node._probe(GpuUuid("GPU-1"))
        assert not lines(logs, "fault")
        await node._probe(GpuUuid("GPU-0"))
        assert [line["device"] for line in lines(logs, "fault")] == ["GPU-0"]


async def test_kubelet_restarts_do_not_disturb_what_is_known(bench):
    async with bench.daemon():
        await bench.usable(8)
        bench.state.lose(0)
        await bench.usable(7)
        for _ in range(3):
            await bench.kubelet.restart()
            await bench.usable(7)


@pytest.mark.parametrize("moment", [0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8])
async def test_stopped_at_any_moment_it_ends_and_leaves_no_socket(bench, moment):
    async with bench.daemon():
        await asyncio.sleep(moment)
    assert list((bench.folder / "device-plugins").glob("gpuplugin-*")) == []


async def test_after_a_stop_the_next_daemon_finds_everything_in_order(bench):
    for _ in range(3):
        async with bench.daemon():
            await bench.usable(8)
            written = bench.cdi.stat().st_mtime_ns
        assert bench.cdi.stat().st_mtime_ns == written


async def test_a_hung_nvml_does_not_keep_the_daemon_from_ending(bench):
    async with bench.daemon():
        await bench.usable(8)
        bench.state.hang("nvmlShutdown")
        bench.state.hang("nvmlDeviceGetMemoryInfo")
        ending = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - ending < SOON
    bench.state.heal()
