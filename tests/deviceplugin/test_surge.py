"""Two instances during an update, on a kubelet up to 1.36: it ends the later one's stream with the earlier one's."""

from gpuplugin.sim.kubelet import StandInKubelet
from tests.deviceplugin.conftest import GPU, serving
from tests.deviceplugin.test_registration import SOON, watched


async def test_an_instance_that_was_watched_does_not_wait_long_to_be_watched_again(folder, plugin, monkeypatch):
    monkeypatch.setattr("gpuplugin.deviceplugin.registration.UNWATCHED_SECONDS", 1000.0)
    async with StandInKubelet(folder) as kubelet, serving(folder, plugin):
        await watched(kubelet)
        await kubelet.drop_streams()
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 0, SOON, "no device")
        await watched(kubelet)
