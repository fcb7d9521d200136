from __future__ import annotations

import asyncio
import threading

import pytest

from gpuplugin.discovery import events
from gpuplugin.discovery.events import XidWatch
from gpuplugin.discovery.nvml_thread import NvmlThread
from gpuplugin.errors import GpuLost, NvmlError, NvmlHung
from gpuplugin.model.health import XidEvent
from gpuplugin.model.ids import GpuUuid

GPU = GpuUuid("GPU-00000000")
LOST = GpuLost("nvmlEventSetWait_v2", 15, "GPU is lost")
UNKNOWN = NvmlError("nvmlEventSetCreate", 999, "Unknown Error")


class Heard:
    """What a watch told, in order."""

    def __init__(self) -> None:
        self.events: list[XidEvent] = []
        self.troubles: list[str | None] = []
        self.unwatched: list[dict[GpuUuid, str]] = []


@pytest.fixture
async def watched(fake_nvml):
    nvml, heard = fake_nvml(2), Heard()
    async with NvmlThread(nvml, timeout_seconds=0.1) as thread:
        watch = XidWatch(
            thread,
            heard.events.append,
            heard.troubles.append,
            heard.unwatched.append,
            slice_seconds=0.02,
            first_backoff_seconds=0.01,
        )
        watch.start()
        yield nvml, watch, heard
        await watch.stop()


async def test_nothing_is_waited_for_before_the_first_rearm(watched):
    nvml, _, _ = watched
    for _ in range(20):
        await asyncio.sleep(0)
    assert nvml.calls == []


async def test_events_arrive_in_order_and_only_once(watched, until):
    nvml, watch, heard = watched
    assert await watch.rearm() == {}
    told = [XidEvent(GPU, xid) for xid in (79, 31, 48)]
    for event in told:
        nvml.events.put(event)
    await until(lambda: len(heard.events) == 3)
    assert heard.events == told
    assert heard.troubles == []
    assert nvml.made("watch") == 1


async def test_waits_and_registering_are_on_their_own_threads(watched, until):
    nvml, watch, _ = watched
    threads: dict[str, str] = {}
    nvml.faults["watch"] = lambda: threads.setdefault("watch", threading.current_thread().name)
    nvml.faults["wait"] = lambda: threads.setdefault("wait", threading.current_thread().name)
    await watch.rearm()
    await until(lambda: len(threads) == 2)
    assert threads == {"watch": "nvml", "wait": "xid"}


async def test_failing_waits_are_told_once_and_registered_anew_until_they_work(watched, until):
    nvml, watch, heard = watched
    nvml.faults["wait"] = LOST
    await watch.rearm()
    await until(lambda: nvml.made("wait") >= 4)
    assert heard.troubles == ["nvmlEventSetWait_v2: GPU is lost (NVML code 15)"]
    assert watch.trouble == heard.troubles[0]
    assert nvml.made("watch") >= 3
    nvml.faults.clear()
    await until(lambda: watch.trouble is None)
    nvml.events.put(XidEvent(GPU, 79))
    await until(lambda: heard.events)
    assert heard.troubles[1:] == [None]


async def test_the_pause_doubles_up_to_its_limit_and_starts_over(watched, until, monkeypatch):
    nvml, watch, _ = watched
    monkeypatch.setattr(events, "MAX_BACKOFF_SECONDS", 0.05)
    pauses: list[float] = []
    real = watch._pause

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await real(0)

    monkeypatch.setattr(watch, "_pause", pause)
    nvml.faults["wait"] = LOST
    await watch.rearm()
    await until(lambda: len(pauses) >= 5)
    assert pauses[:5] == [0.01, 0.02, 0.04, 0.05, 0.05]
    nvml.faults.clear()
    await until(lambda: watch.trouble is None)
    pauses.clear()
    nvml.faults["wait"] = LOST
    await until(lambda: pauses)
    assert pauses[0] == 0.01


async def test_a_rearm_that_fails_raises_and_is_tried_again(watched, until):
    nvml, watch, heard = watched
    nvml.faults["watch"] = UNKNOWN
    with pytest.raises(NvmlError, match="Unknown Error"):
        await watch.rearm()
    await until(lambda: heard.troubles == ["nvmlEventSetCreate: Unknown Error (NVML code 999)"])
    assert nvml.made("wait") == 0
    nvml.faults.clear()
    await until(lambda: nvml.made("wait") > 0)
    await until(lambda: heard.troubles[1:] == [None])


async def test_a_rearm_that_works_ends_the_pause(fake_nvml, until):
    nvml, heard = fake_nvml(1), Heard()
    async with NvmlThread(nvml) as thread:
        watch = XidWatch(
            thread, heard.events.append, heard.troubles.append, heard.unwatched.append, first_backoff_seconds=30
        )
        watch.start()
        nvml.faults["watch"] = UNKNOWN
        with pytest.raises(NvmlError):
            await watch.rearm()
        await until(lambda: heard.troubles)
        nvml.faults.clear()
        await watch.rearm()
        nvml.events.put(XidEvent(GPU, 79))
        await until(lambda: heard.events)
        await watch.stop()


async def test_gpus_that_cannot_be_watched_are_told_when_that_changes(watched):
    nvml, watch, heard = watched
    for unwatchable in ({GPU: "Not Supported"}, {GPU: "Not Supported"}, {}, {}):
        nvml.unwatchable = unwatchable
        assert await watch.rearm() == unwatchable
    await asyncio.sleep(0)
    assert heard.unwatched == [{GPU: "Not Supported"}, {}]


async def test_a_wait_that_hangs_is_told_and_never_doubled(watched, gate, until):
    nvml, watch, heard = watched
    stuck = gate()
    nvml.faults["wait"] = stuck
    await watch.rearm()
    await until(lambda: heard.troubles)
    assert heard.troubles == ["wait: no answer within 0.12 s (NVML code -1)"]
    await watch.rearm()
    await watch.rearm()
    assert (nvml.made("wait"), nvml.made("watch")) == (1, 3)
    nvml.faults.clear()
    nvml.events.put(XidEvent(GPU, 79))
    stuck.open.set()
    await until(lambda: heard.events)
    assert heard.troubles[1:] == [None]


async def test_a_hung_registration_is_not_made_again_before_it_comes_back(watched, gate, until):
    nvml, watch, heard = watched
    stuck = gate()
    nvml.faults["watch"] = stuck
    with pytest.raises(NvmlHung):
        await watch.rearm()
    await until(lambda: heard.troubles)
    assert nvml.made("watch") == 1
    nvml.faults.clear()
    stuck.open.set()
    await until(lambda: watch.trouble is None)


async def test_an_error_nobody_thought_of_does_not_end_the_watch(watched, until):
    nvml, watch, heard = watched
    nvml.faults["wait"] = TypeError("not in the contract")
    await watch.rearm()
    await until(lambda: heard.troubles == ["TypeError: not in the contract"])
    nvml.faults.clear()
    await until(lambda: watch.trouble is None)


async def test_a_wait_that_does_not_wait_is_no_busy_loop(watched, until, monkeypatch):
    nvml, watch, heard = watched
    pauses: list[float] = []
    go_on = asyncio.Event()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await go_on.wait()

    monkeypatch.setattr(watch, "_pause", pause)
    monkeypatch.setattr(nvml, "wait", lambda seconds: None)
    await watch.rearm()
    await until(lambda: pauses)
    assert 0 < pauses[0] <= 0.02
    assert heard.troubles == []


async def test_what_a_callback_raises_does_not_end_the_watch(fake_nvml, until):
    nvml, heard, raised = fake_nvml(1), Heard(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context["exception"]))

    def on_event(event: XidEvent) -> None:
        heard.events.append(event)
        raise ValueError("in the callback")

    async with NvmlThread(nvml) as thread:
        watch = XidWatch(thread, on_event, heard.troubles.append, heard.unwatched.append, slice_seconds=0.02)
        watch.start()
        await watch.rearm()
        for xid in (79, 31):
            nvml.events.put(XidEvent(GPU, xid))
        await until(lambda: len(heard.events) == 2)
        await watch.stop()
    assert [str(error) for error in raised] == ["in the callback"] * 2


@pytest.mark.parametrize("when", ["before start", "before rearm", "waiting", "pausing"])
async def test_stopping(fake_nvml, until, when):
    nvml, heard = fake_nvml(1), Heard()
    async with NvmlThread(nvml) as thread:
        watch = XidWatch(thread, heard.events.append, heard.troubles.append, heard.unwatched.append, slice_seconds=0.02)
        if when != "before start":
            watch.start()
            watch.start()
        if when == "pausing":
            nvml.faults["wait"] = LOST
        if when in ("waiting", "pausing"):
            await watch.rearm()
            await until(lambda: heard.troubles if when == "pausing" else nvml.made("wait"))
        await watch.stop()
        await watch.stop()


async def test_stopping_does_not_wait_for_a_wait_that_blocks(fake_nvml, until, gate):
    nvml, heard = fake_nvml(1), Heard()
    stuck = gate(error=LOST)
    nvml.faults["wait"] = stuck
    async with NvmlThread(nvml) as thread:
        watch = XidWatch(thread, heard.events.append, heard.troubles.append, heard.unwatched.append, slice_seconds=30)
        watch.start()
        await watch.rearm()
        await until(stuck.inside.is_set)
        await watch.stop()
        assert not stuck.open.is_set()
        assert any(thread.name == "xid" for thread in threading.enumerate())


async def test_a_hung_wait_is_waited_for_and_no_further_set_is_made_meanwhile(watched, gate, until, monkeypatch):
    nvml, watch, _ = watched
    pauses: list[float] = []
    real = watch._pause

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await real(0)

    monkeypatch.setattr(watch, "_pause", pause)
    nvml.faults["wait"] = gate()
    await watch.rearm()
    await until(lambda: len(pauses) == 3)
    assert (nvml.made("watch"), nvml.made("wait")) == (1, 1)


async def test_a_hung_wait_that_comes_back_ends_the_pause(fake_nvml, gate, until):
    nvml, heard = fake_nvml(1), Heard()
    stuck = gate()
    nvml.faults["wait"] = stuck
    async with NvmlThread(nvml, timeout_seconds=0.1) as thread:
        watch = XidWatch(
            thread,
            heard.events.append,
            heard.troubles.append,
            heard.unwatched.append,
            slice_seconds=0.02,
            first_backoff_seconds=30,
        )
        watch.start()
        await watch.rearm()
        await until(lambda: heard.troubles)
        stuck.open.set()
        await until(lambda: heard.troubles[1:] == [None])
        await watch.stop()


async def test_a_rearm_that_fails_while_an_older_set_works_is_tried_again(watched, until):
    nvml, watch, _ = watched
    await watch.rearm()
    nvml.faults["watch"] = UNKNOWN
    with pytest.raises(NvmlError):
        await watch.rearm()
    nvml.faults.clear()
    failed = nvml.made("watch")
    await until(lambda: nvml.made("watch") > failed)
    await until(lambda: watch.trouble is None)
