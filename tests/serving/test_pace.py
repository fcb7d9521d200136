"""Those who look regularly are woken together."""

import asyncio
from types import SimpleNamespace

import pytest

from gpuplugin.serving import pace


@pytest.mark.parametrize("seconds", [0.25, 0.5, 1.0, 5.0])
@pytest.mark.parametrize("now", [0.0, 0.1, 0.2499, 0.25, 0.9995, 1234.5, 1e6 + 0.01])
async def test_a_sleep_ends_at_a_multiple_and_is_never_longer_than_asked(monkeypatch, seconds, now):
    slept = []

    async def sleep(pause):
        slept.append(pause)

    monkeypatch.setattr(
        pace, "asyncio", SimpleNamespace(sleep=sleep, get_running_loop=lambda: SimpleNamespace(time=lambda: now))
    )
    await pace.next_beat(seconds)
    [pause] = slept
    assert 0 < pause <= seconds + 0.001
    woken = now + pause
    assert min(woken % seconds, seconds - woken % seconds) <= 1e-6


async def test_a_timer_that_fires_a_little_early_is_not_set_again_for_the_same_moment(monkeypatch):
    now, moments = 10.1, []

    async def sleep(pause):
        nonlocal now
        now += pause - 0.0005
        moments.append(round(now))

    monkeypatch.setattr(
        pace, "asyncio", SimpleNamespace(sleep=sleep, get_running_loop=lambda: SimpleNamespace(time=lambda: now))
    )
    for _ in range(4):
        await pace.next_beat(1.0)
    assert moments == [11, 12, 13, 14]


async def test_it_really_sleeps():
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.gather(*(pace.next_beat(0.02) for _ in range(5)))
    await pace.next_beat(0.02)
    assert loop.time() > began
