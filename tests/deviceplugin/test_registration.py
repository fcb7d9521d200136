"""Registered with kubelet, whatever kubelet, the folder or another process do."""

import asyncio
import socket

import pytest
from structlog.testing import capture_logs

from gpuplugin.deviceplugin.registration import Registered
from gpuplugin.deviceplugin.server import DevicePlugin, Offer
from gpuplugin.serving.socket import ListeningSocket
from gpuplugin.sim.kubelet import StandInKubelet
from tests.deviceplugin.conftest import DELIVERY, GPU, changed, resource, serving

SOON = 10  # seconds a loaded machine may take; never a claim about speed


def ours(folder):
    return list(folder.glob("gpuplugin-gpu-*.sock"))


async def watched(kubelet, count=8):
    await kubelet.until(
        lambda: kubelet.watches(GPU) and kubelet.allocatable(GPU) == count, SOON, f"{count} devices at kubelet"
    )


async def test_it_registers_serves_and_takes_its_socket_away(folder, plugin):
    async with StandInKubelet(folder) as kubelet:
        async with serving(folder, plugin) as served:
            await watched(kubelet)
            assert served.registered
            assert kubelet.resources() == (GPU,)
            assert len(ours(folder)) == 1
        await kubelet.until(lambda: not kubelet.watches(GPU), SOON, "the stream's end")
        assert [p.name for p in folder.iterdir()] == ["kubelet.sock"]


async def test_kubelet_that_comes_late_is_waited_for_and_said_once(folder, plugin):
    with capture_logs() as logs:
        async with serving(folder, plugin) as served:
            await asyncio.sleep(0.6)
            assert not served.registered
            async with StandInKubelet(folder) as kubelet:
                await watched(kubelet)
    assert [line["reason"] for line in logs if line["event"] == "not registered"] == [
        f"{folder}/kubelet.sock is not there: waiting for kubelet"
    ]


async def test_a_socket_that_does_not_accept_yet_is_tried_until_it_does(folder, plugin):
    async with StandInKubelet(folder, accept_after=1.0) as kubelet, serving(folder, plugin):
        await watched(kubelet)


async def test_a_restarted_kubelet_is_told_again_though_it_deleted_our_socket(folder, plugin):
    async with StandInKubelet(folder) as kubelet, serving(folder, plugin):
        await watched(kubelet)
        for _ in range(3):
            await kubelet.restart()
            await watched(kubelet)


async def test_our_socket_deleted_under_us_comes_back(folder, plugin):
    async with StandInKubelet(folder) as kubelet, serving(folder, plugin):
        await watched(kubelet)
        registered = len([call for call in kubelet.trace if call["call"] == "Register"])
        ours(folder)[0].unlink()
        await kubelet.until(
            lambda: len([call for call in kubelet.trace if call["call"] == "Register"]) > registered, SOON, "again"
        )
        await watched(kubelet)
        assert (await kubelet.admit("pod", GPU, 4)).admitted


async def test_the_folder_deleted_and_made_anew(folder, plugin):
    inner = folder / "device-plugins"
    inner.mkdir()
    async with serving(inner, plugin):
        async with StandInKubelet(inner) as kubelet:
            await watched(kubelet)
        for path in inner.iterdir():
            path.unlink()
        inner.rmdir()
        await asyncio.sleep(0.5)
        async with StandInKubelet(inner) as kubelet:
            await watched(kubelet)


async def test_a_kubelet_that_stops_watching_is_told_again(folder, plugin, monkeypatch):
    monkeypatch.setattr("gpuplugin.deviceplugin.registration.UNWATCHED_SECONDS", 0.3)
    async with StandInKubelet(folder) as kubelet, serving(folder, plugin):
        await watched(kubelet)
        await kubelet.drop_streams()
        await watched(kubelet)


async def test_a_refusal_is_told_with_kubelets_words_and_tried_again(folder, plugin):
    async with StandInKubelet(folder) as kubelet:
        kubelet.refuse = "the plugin API version is not supported"
        with capture_logs() as logs:
            async with serving(folder, plugin):
                await asyncio.sleep(1)
                kubelet.refuse = None
                await watched(kubelet)
    reasons = [line["reason"] for line in logs if line["event"] == "not registered"]
    assert len(reasons) == 1
    assert "the plugin API version is not supported" in reasons[0]


async def test_a_folder_that_is_not_there_is_said(folder, plugin):
    with capture_logs() as logs:
        async with serving(folder / "missing", plugin):
            await asyncio.sleep(0.3)
    assert logs[0]["reason"] == f"{folder}/missing is not there: is kubelet running, and is the folder mounted here?"


async def test_a_path_too_long_for_a_socket_is_said(folder, plugin):
    deep = folder / ("x" * 100)
    deep.mkdir()
    with capture_logs() as logs:
        async with serving(deep, plugin):
            await asyncio.sleep(0.3)
    assert "is longer than the 107 bytes of a socket's path" in logs[0]["reason"]


async def test_a_folder_that_may_not_be_written_is_said(folder, plugin, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    with capture_logs() as logs:
        async with serving(folder, plugin):
            await asyncio.sleep(0.3)
    assert "is not writable for user" in logs[0]["reason"]


async def test_two_instances_serve_side_by_side_and_the_newer_is_asked(folder, plugin, tables):
    newer_plugin = DevicePlugin(Offer.of(resource(unhealthy=[7]), tables, DELIVERY))
    async with StandInKubelet(folder) as kubelet, serving(folder, plugin):
        await watched(kubelet)
        async with serving(folder, newer_plugin):
            await watched(kubelet, 7)
            assert plugin.offers.followers == 1
        changed(plugin, unhealthy=[0, 1])
        await watched(kubelet, 6)


async def test_an_instance_that_kubelet_left_for_a_newer_one_does_not_fight_for_it(folder, plugin, tables, monkeypatch):
    monkeypatch.setattr("gpuplugin.deviceplugin.registration.UNWATCHED_SECONDS", 0.3)
    newer_plugin = DevicePlugin(Offer.of(resource(), tables, DELIVERY))
    async with StandInKubelet(folder) as kubelet, serving(folder, plugin):
        await watched(kubelet)
        async with serving(folder, newer_plugin):
            await kubelet.until(lambda: newer_plugin.offers.followers, SOON, "the newer is watched")
            with capture_logs() as logs:
                await kubelet.drop_streams()
                await kubelet.until(lambda: newer_plugin.offers.followers, SOON, "the newer is watched again")
                await asyncio.sleep(0.7)
            assert plugin.offers.followers == 0
            assert "a later instance serves" in "".join(str(line.get("reason")) for line in logs)
        await kubelet.until(lambda: plugin.offers.followers, SOON, "the older is watched once the newer has gone")


async def test_sockets_of_killed_instances_are_cleared_up_and_others_are_left(folder, plugin):
    names = ["gpuplugin-gpu-1.sock", "gpuplugin-mig-1.sock", "nvidia-gpu.sock"]
    for name in names:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(folder / name))
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(folder / "gpuplugin-gpu-2.sock"))
        alive.listen()
        served = ListeningSocket(folder, "gpu", lambda _: None)
        await served.open()
        left = sorted(path.name for path in folder.iterdir())
        assert left == sorted(["gpuplugin-gpu-2.sock", "nvidia-gpu.sock", served.path.name])
        await served.close()


async def test_every_stream_sees_every_change(folder, plugin):
    async with StandInKubelet(folder) as kubelet, serving(folder, plugin):
        await watched(kubelet)
        for unhealthy, left in (([3], 7), ([3, 4], 6), ([], 8)):
            changed(plugin, unhealthy=unhealthy)
            await watched(kubelet, left)
            assert plugin.offers.followers == 1


@pytest.mark.parametrize("moment", [0.0, 0.01, 0.05, 0.3, 0.6])
async def test_ended_at_any_moment_it_leaves_no_socket(folder, plugin, moment):
    async with StandInKubelet(folder):
        task = asyncio.create_task(Registered(folder / "kubelet.sock", GPU, plugin).run())
        await asyncio.sleep(moment)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert [path.name for path in folder.iterdir() if not path.name.startswith(".kubelet")] == ["kubelet.sock"]


async def test_the_socket_of_a_resource_with_a_longer_name_is_no_newer_instance(folder):
    """Hexadecimal digits end in f, so a name that goes on with a letter after it would always count as newer."""
    sockets = [ListeningSocket(folder, label, lambda _: None) for label in ("gpu", "gpu-part", "gpu-fade")]
    for one in sockets:
        await one.open()
    later = ListeningSocket(folder, "gpu", lambda _: None)
    try:
        assert [one.newer() for one in sockets] == [None, None, None]
        await later.open()
        assert [one.newer() for one in sockets] == [later.path, None, None]
    finally:
        for one in (*sockets, later):
            await one.close()


def test_long_names_that_begin_alike_have_sockets_of_their_own(folder):
    labels = [f"mig-1g.10gb-of-the-first-floor-{end}" for end in ("a", "b")]
    first, second = (ListeningSocket(folder, label, lambda _: None).path.name for label in labels)
    assert first != second
    assert len(first) == len(second) <= 41
