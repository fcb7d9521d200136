"""What runs beside the handing out of GPUs does not end it, whatever goes wrong in there."""

import asyncio

import pytest
from structlog.testing import capture_logs

from gpuplugin.daemon import beside
from gpuplugin.daemon.beside import keep_running
from tests.daemon.conftest import SOON
from tests.daemon.test_node import lines, until


async def test_a_part_that_fails_begins_again_until_it_ends_by_itself(monkeypatch):
    monkeypatch.setattr(beside, "FIRST_PAUSE_SECONDS", 0.001)
    outcomes = iter([ValueError("one"), ExceptionGroup("two", [KeyError(2)]), None])

    async def part():
        if (error := next(outcomes)) is not None:
            raise error

    with capture_logs() as logs:
        async with asyncio.timeout(SOON):
            await keep_running("a part", part)
    assert next(outcomes, "over") == "over"
    told = lines(logs, "a part has failed: starting it again")
    assert [(line["part"], line["log_level"], line["exc_info"]) for line in told] == [("a part", "error", True)] * 2


async def test_a_part_that_is_cancelled_ends():
    began = asyncio.Event()

    async def part():
        began.set()
        await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(keep_running("a part", part))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("part", "place", "flags"),
    [
        ("keep labels", "gpuplugin.daemon.labels.connect", {"labels_owner": "node"}),
        ("keep the topology object", "gpuplugin.daemon.topology_object.connect", {"labels_topology_object": "true"}),
        ("keep the Node's condition", "gpuplugin.daemon.condition.connect", {"node_health_condition": "true"}),
        ("write Events", "gpuplugin.daemon.events_out.connect", {"events_enabled": "true"}),
        ("lift the startup taint", "gpuplugin.daemon.taint.lift", {"node_startup_taint": "not-ready"}),
        ("tell kubelet's settings", "gpuplugin.daemon.kubelet_hints.keep_telling", {}),
        ("tell features", "gpuplugin.daemon.service.features", {}),
    ],
)
async def test_gpus_are_handed_out_whatever_goes_wrong_in(bench, monkeypatch, part, place, flags):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(place, broken)
    with capture_logs() as logs:
        async with bench.daemon(node_name="here", **flags):
            await bench.usable(8)
            await until(lambda: lines(logs, "a part has failed: starting it again"), "the fault in the log")
            bench.state.xid(2, 79)
            await bench.usable(7)
    assert {line["part"] for line in lines(logs, "a part has failed: starting it again")} == {part}
