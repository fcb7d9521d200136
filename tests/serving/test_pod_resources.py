"""What kubelet says of its pods, taken apart; and that no answer is an error with the socket in it."""

from contextlib import asynccontextmanager

import grpc.aio
import pytest

from gpuplugin.errors import PodResourcesUnavailable
from gpuplugin.pb import podresources_v1_pb2 as api
from gpuplugin.pb import podresources_v1_pb2_grpc as rpc
from gpuplugin.serving.pod_resources import ClaimedDevice, PluginDevice, pod_resources, read


def answer():
    made = api.ListPodResourcesResponse()
    pod = made.pod_resources.add(name="train", namespace="team")
    for _ in range(2):  # kubelet tells a device once for each NUMA node, and a claim for each container
        container = pod.containers.add(name="main")
        container.devices.add(resource_name="nvidia.com/gpu", device_ids=["GPU-0", "GPU-1::2"])
        claim = container.dynamic_resources.add(claim_name="gpus", claim_namespace="team")
        device = claim.claim_resources.add(driver_name="gpu.nvidia.com", pool_name="node-1", device_name="gpu-3")
        device.cdi_devices.add(name="gpuplugin.io/gpu=GPU-3")
    made.pod_resources.add(name="idle", namespace="team").containers.add(name="main")
    return made


def test_devices_and_claims_are_told_once_each():
    found = read(answer())
    assert found.plugin_devices == (
        PluginDevice("team", "train", "nvidia.com/gpu", "GPU-0", "main"),
        PluginDevice("team", "train", "nvidia.com/gpu", "GPU-1::2", "main"),
    )
    claimed = ("team", "train", "gpus", "gpu.nvidia.com", "node-1", "gpu-3", "main", ("gpuplugin.io/gpu=GPU-3",))
    assert found.claimed == (ClaimedDevice(*claimed),)


def test_a_device_of_a_claim_has_what_was_given_for_it_and_not_for_those_before():
    made = api.ListPodResourcesResponse()
    container = made.pod_resources.add(name="train", namespace="team").containers.add(name="main")
    claim = container.dynamic_resources.add(claim_name="gpus", claim_namespace="team")
    names: list[str] = []
    for number in range(3):  # a kubelet of 1.37 tells them so, recorded in a test of metrics on a real one
        device = claim.claim_resources.add(driver_name="gpu.nvidia.com", device_name=f"gpu-{number}")
        names.append(f"gpuplugin.io/gpu=GPU-{number}")
        for name in names:
            device.cdi_devices.add(name=name)
    assert [one.cdi for one in read(made).claimed] == [(name,) for name in names]


@asynccontextmanager
async def lister(socket, said):
    class Lister(rpc.PodResourcesListerServicer):
        async def List(self, request, context):  # noqa: N802 - gRPC names it
            return said

    server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
    rpc.add_PodResourcesListerServicer_to_server(Lister(), server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


async def test_kubelet_is_asked_over_its_socket(tmp_path):
    async with lister(tmp_path / "kubelet.sock", answer()):
        assert await pod_resources(tmp_path / "kubelet.sock") == read(answer())


async def test_an_answer_of_more_than_four_megabytes_is_taken(tmp_path):
    long = answer()
    for number in range(500):
        pod = long.pod_resources.add(name=f"pod-{number}", namespace="x" * 10_000)
        pod.containers.add(name="main").devices.add(resource_name="nvidia.com/gpu", device_ids=[f"GPU-9::{number}"])
    assert long.ByteSize() > 4 << 20
    async with lister(tmp_path / "kubelet.sock", long):
        assert len((await pod_resources(tmp_path / "kubelet.sock")).plugin_devices) == 502


async def test_no_kubelet_is_an_error_that_names_the_socket(tmp_path):
    with pytest.raises(PodResourcesUnavailable, match=r"kubelet\.sock: UNAVAILABLE") as refused:
        await pod_resources(tmp_path / "kubelet.sock")
    assert refused.value.socket == tmp_path / "kubelet.sock"
