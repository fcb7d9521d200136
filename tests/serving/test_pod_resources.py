"""What kubelet says of its pods, taken apart; and that no answer is an error with the socket in it."""

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
        claim.claim_resources.add(driver_name="gpu.nvidia.com", pool_name="node-1", device_name="gpu-3")
    made.pod_resources.add(name="idle", namespace="team").containers.add(name="main")
    return made


def test_devices_and_claims_are_told_once_each():
    found = read(answer())
    assert found.plugin_devices == (
        PluginDevice("team", "train", "nvidia.com/gpu", "GPU-0"),
        PluginDevice("team", "train", "nvidia.com/gpu", "GPU-1::2"),
    )
    assert found.claimed == (ClaimedDevice("team", "train", "gpus", "gpu.nvidia.com", "node-1", "gpu-3"),)


async def test_kubelet_is_asked_over_its_socket(tmp_path):
    class Lister(rpc.PodResourcesListerServicer):
        async def List(self, request, context):  # noqa: N802 - gRPC names it
            return answer()

    server = grpc.aio.server()
    rpc.add_PodResourcesListerServicer_to_server(Lister(), server)
    server.add_insecure_port(f"unix:{tmp_path}/kubelet.sock")
    await server.start()
    assert await pod_resources(tmp_path / "kubelet.sock") == read(answer())
    await server.stop(None)


async def test_no_kubelet_is_an_error_that_names_the_socket(tmp_path):
    with pytest.raises(PodResourcesUnavailable, match=r"kubelet\.sock: UNAVAILABLE") as refused:
        await pod_resources(tmp_path / "kubelet.sock")
    assert refused.value.socket == tmp_path / "kubelet.sock"
