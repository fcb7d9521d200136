"""What is kept of choices, to explain them later."""

from dataclasses import replace

import pytest

from gpuplugin.deviceplugin.server import CHOICES_KEPT, DevicePlugin, Offer
from gpuplugin.pb import deviceplugin_v1beta1_pb2 as api
from gpuplugin.plan.sharing import Kind, Share
from tests.deviceplugin.conftest import DELIVERY, GPU, resource

REPLICAS = 1000


@pytest.fixture
def sliced(tables):
    share = Share(Kind.TIME_SLICING, REPLICAS)
    devices = tuple(replace(device, share=share) for device in resource().devices)
    return DevicePlugin(Offer.of(replace(resource(), devices=devices), tables, DELIVERY))


def asked(available, size=1):
    wanted = api.ContainerPreferredAllocationRequest(available_deviceIDs=available, allocation_size=size)
    return api.PreferredAllocationRequest(container_requests=[wanted])


async def test_whole_gpus_that_were_free_are_named(plugin):
    await plugin.GetPreferredAllocation(asked(["GPU-6", "GPU-5", "GPU-1"], 2), None)
    [choice] = plugin.choices
    assert (choice.resource, choice.devices) == (GPU, ("GPU-5", "GPU-6"))
    assert choice.free == ("GPU-1", "GPU-5", "GPU-6")


async def test_of_slices_their_gpus_are_kept_each_once_and_only_the_last_choices(sliced):
    available = [f"GPU-{gpu}::{number}" for gpu in (2, 3) for number in range(REPLICAS)]
    for _ in range(CHOICES_KEPT + 1):
        await sliced.GetPreferredAllocation(asked(available), None)
    assert len(sliced.choices) == CHOICES_KEPT
    assert {choice.free for choice in sliced.choices} == {("GPU-2", "GPU-3")}
