from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from gpuplugin.discovery.nvml_thread import MAX_THREADS, NvmlThread
from gpuplugin.errors import GpuLost, NvmlHung

BRIEF = 0.2


@pytest.fixture
async def thread():
    async with NvmlThread(nvml=None, timeout_seconds=BRIEF) as made:
        yield made


@pytest.fixture
async def patient():
    async with NvmlThread(nvml=None, timeout_seconds=30) as made:
        yield made


def alive() -> int:
    return sum(each.name == "nvml" for each in threading.enumerate())


async def hang(thread: NvmlThread, call, gpu) -> None:
    with pytest.raises(NvmlHung):
        await thread.call(call, gpu=gpu)


async def test_a_result_and_an_error_reach_their_caller(patient):
    assert await patient.call(divmod, 7, 2) == (3, 1)
    lost = GpuLost("nvmlDeviceGetUUID", 15, "GPU is lost")

    def fail() -> None:
        raise lost

    with pytest.raises(GpuLost) as raised:
        await patient.call(fail, gpu=0)
    assert raised.value is lost
    assert await patient.call(len, "abc") == 3


async def test_calls_are_made_one_at_a_time_in_the_order_asked_on_one_other_thread(patient):
    made: list[tuple[int, int]] = []
    await asyncio.gather(*(patient.call(lambda n: made.append((n, threading.get_ident())), n) for n in range(50)))
    assert [n for n, _ in made] == list(range(50))
    assert len({ident for _, ident in made}) == 1
    assert made[0][1] != threading.get_ident()


async def test_waiting_for_ones_turn_does_not_count_against_the_limit(until, gate):
    async with NvmlThread(nvml=None, timeout_seconds=0.5) as thread:
        gates = [gate(n) for n in range(4)]
        tasks = [asyncio.create_task(thread.call(each, gpu=n)) for n, each in enumerate(gates)]
        for each in gates:
            await until(each.inside.is_set)
            await asyncio.sleep(0.2)  # four of these are more than one limit
            each.open.set()
        assert await asyncio.gather(*tasks) == [0, 1, 2, 3]


async def test_a_hung_call_costs_its_gpu_alone_until_it_comes_back(thread, gate, until):
    stuck = gate()
    await hang(thread, stuck, gpu=3)
    assert thread.quarantined == {3}
    assert not thread.stuck
    assert await thread.call(len, "abc", gpu=4) == 3

    untouched = threading.Event()
    with pytest.raises(NvmlHung, match="no answer within"):
        await thread.call(untouched.set, gpu=3)
    assert not untouched.is_set()

    stuck.open.set()
    await until(lambda: not thread.quarantined)
    await thread.call(untouched.set, gpu=3)
    assert untouched.is_set()
    await until(lambda: alive() == 1)


async def test_the_error_of_a_call_refused_in_quarantine_is_that_of_the_call_that_hung(thread, gate):
    with pytest.raises(NvmlHung) as first:
        await thread.call(gate(), gpu="GPU-a")
    with pytest.raises(NvmlHung) as second:
        await thread.call(len, "abc", gpu="GPU-a")
    assert str(first.value) == str(second.value)


async def test_a_late_error_is_nobodys_and_lifts_the_quarantine(thread, gate, until):
    stuck = gate(error=GpuLost("nvmlDeviceGetUUID", 15, "GPU is lost"))
    await hang(thread, stuck, gpu=0)
    stuck.open.set()
    await until(lambda: not thread.quarantined)


async def test_the_same_call_about_nvml_as_a_whole_is_not_made_again_while_it_hangs(thread, gate):
    await hang(thread, gate(), gpu=None)
    await hang(thread, gate(), gpu=None)
    assert alive() == 1
    assert not thread.stuck
    assert await thread.call(len, "abc") == 3


async def test_two_hangs_with_nothing_coming_back_in_between_mean_that_nvml_is_stuck(thread, gate, until):
    first, second = gate(), gate()
    waiting = [
        asyncio.create_task(thread.call(first, gpu=0)),
        asyncio.create_task(thread.call(second, gpu=1)),
        asyncio.create_task(thread.call(len, "abc", gpu=2)),
        asyncio.create_task(thread.call(len, "abc")),
    ]
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer) for answer in answers] == [NvmlHung] * 4
    assert thread.stuck
    assert alive() == 2
    await hang(thread, len, gpu=5)

    second.open.set()
    await until(lambda: not thread.stuck)
    assert thread.quarantined == {0}
    assert await thread.call(len, "abc", gpu=1) == 3


async def test_hangs_apart_from_each_other_do_not_mean_that_nvml_is_stuck_until_threads_run_out(thread, gate, until):
    gates = [gate() for _ in range(MAX_THREADS)]
    for n, each in enumerate(gates):
        assert await thread.call(len, "abc", gpu=99) == 3
        assert not thread.stuck
        await hang(thread, each, gpu=n)
    assert thread.stuck
    assert alive() == MAX_THREADS
    await hang(thread, len, gpu=99)
    assert alive() == MAX_THREADS
    gates[2].open.set()
    await until(lambda: not thread.stuck)
    assert await thread.call(len, "abc", gpu=99) == 3
    assert thread.quarantined == {0, 1, 3}


async def test_a_caller_cancelled_while_waiting_is_skipped(patient, gate, until):
    busy = gate("done")
    running = asyncio.create_task(patient.call(busy, gpu=0))
    await until(busy.inside.is_set)
    never = threading.Event()
    waiting = asyncio.create_task(patient.call(never.set))
    last = asyncio.create_task(patient.call(len, "abc"))
    await asyncio.sleep(0)
    waiting.cancel()
    busy.open.set()
    assert await running == "done"
    assert await last == 3
    assert waiting.cancelled()
    assert not never.is_set()


async def test_a_caller_cancelled_during_its_call_leaves_the_thread_in_order(patient, gate, until):
    busy = gate()
    running = asyncio.create_task(patient.call(busy, gpu=0))
    await until(busy.inside.is_set)
    running.cancel()
    after = asyncio.create_task(patient.call(len, "abc", gpu=0))
    await asyncio.sleep(0)
    assert not after.done()
    busy.open.set()
    assert await after == 3


async def test_a_hang_is_noticed_though_its_caller_has_gone(thread, gate, until):
    busy = gate()
    running = asyncio.create_task(thread.call(busy, gpu=0))
    await until(busy.inside.is_set)
    running.cancel()
    await until(lambda: thread.quarantined == {0})
    assert await thread.call(len, "abc", gpu=1) == 3


async def test_closing_cancels_what_is_unanswered_and_waits_for_nothing(gate, until):
    thread = NvmlThread(nvml=None, timeout_seconds=30)
    busy = gate()
    running = asyncio.create_task(thread.call(busy, gpu=0))
    waiting = asyncio.create_task(thread.call(len, "abc"))
    await until(busy.inside.is_set)
    thread.close()
    await asyncio.wait({running, waiting})
    assert running.cancelled()
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="closed"):
        await thread.call(len, "abc")
    busy.open.set()
    await until(lambda: alive() == 0)


async def test_an_exception_that_a_future_refuses_still_reaches_the_caller(patient):
    with pytest.raises(RuntimeError, match="StopIteration"):
        await patient.call(next, iter(()))


def test_the_interpreter_exits_with_a_stuck_thread():
    program = """
import asyncio, threading
from gpuplugin.discovery.nvml_thread import NvmlThread
from gpuplugin.errors import NvmlHung
async def main():
    thread = NvmlThread(None, 0.01)
    try:
        await thread.call(threading.Event().wait, gpu=0)
    except NvmlHung:
        print("hung")
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True)
    assert (done.stdout, done.stderr) == ("hung\n", "")


async def test_calls_are_heard_of_with_what_they_raised_and_a_hung_one_when_it_is_given_up(gate, until):
    heard = []
    async with NvmlThread(None, BRIEF, lambda name, seconds, error: heard.append((name, seconds, error))) as thread:
        lost = GpuLost("nvmlDeviceGetUUID", 15, "GPU is lost")

        def fail() -> None:
            raise lost

        await thread.call(divmod, 7, 2)
        with pytest.raises(GpuLost):
            await thread.call(fail, gpu=0)
        stuck = gate()
        await hang(thread, stuck, gpu=1)
        assert [type(error) for _, _, error in heard] == [type(None), GpuLost, NvmlHung]
        assert [name for name, _, _ in heard][:2] == ["divmod", "fail"]
        assert heard[2][1] == BRIEF
        stuck.open.set()
        await until(lambda: not thread.quarantined)
        assert len(heard) == 3, "it was counted when it was given up"
