"""Two instances during an update, on a kubelet up to 1.36: it ends the later one's stream with the earlier one's."""

import asyncio

from gpuplugin.deviceplugin import registration
from gpuplugin.sim.kubelet import StandInKubelet
from tests.deviceplugin.conftest import GPU, serving
from tests.deviceplugin.test_registration import SOON, watched


async def test_an_instance_that_was_watched_does_not_wait_long_to_be_watched_again(folder, plugin, monkeypatch):
    monkeypatch.setattr("gpuplugin.deviceplugin.registration.UNWATCHED_SECONDS", 1000.0)
    async with StandInKubelet(folder) as kubelet, serving(folder, plugin) as served:
        await watched(kubelet)
        async with asyncio.timeout(SOON):
            while served._pause != registration.DROPPED_SECONDS:  # it has seen that it is watched
                await asyncio.sleep(0.01)
        await kubelet.drop_streams()
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 0, SOON, "no device")
        await watched(kubelet)
