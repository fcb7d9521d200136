"""The stream of device health: at once, at each change, again before kubelet forgets."""

import asyncio

import grpc.aio
import pytest

from dra.health import LONGEST_MESSAGE, HealthCalls, PoolHealth, add_health_calls, message
from gpuplugin.model.health import HEALTHY, DeviceHealth, Level
from gpuplugin.pb import drahealth_v1_pb2 as v1
from gpuplugin.pb import drahealth_v1_pb2_grpc as v1_rpc
from gpuplugin.pb import drahealth_v1alpha1_pb2 as v1alpha1
from gpuplugin.pb import drahealth_v1alpha1_pb2_grpc as v1alpha1_rpc
from gpuplugin.serving.latest import Latest

SICK = DeviceHealth(Level.UNHEALTHY, "XID 79: fell off the bus")


def pool(**devices):
    return PoolHealth("node-1", {name.replace("_", "-"): health for name, health in devices.items()})


def read(answer):
    return {(d.device.pool_name, d.device.device_name): (d.health, d.message) for d in answer.devices}


def test_message_says_level_reason_and_for_how_long_it_holds():
    unknown = DeviceHealth(Level.UNKNOWN, "NVML is stuck")
    built = message(v1, pool(gpu_1=SICK, gpu_0=HEALTHY, gpu_2=unknown), 1700000000.9)
    assert [d.device.device_name for d in built.devices] == ["gpu-0", "gpu-1", "gpu-2"]
    assert read(built) == {
        ("node-1", "gpu-0"): (v1.HEALTHY, ""),
        ("node-1", "gpu-1"): (v1.UNHEALTHY, SICK.reason),
        ("node-1", "gpu-2"): (v1.UNKNOWN, "NVML is stuck"),
    }
    assert {(d.last_updated_time, d.health_check_timeout_seconds) for d in built.devices} == {(1700000000, 30)}


def test_long_reason_is_cut_to_what_kubelet_takes():
    built = message(v1, pool(gpu_0=DeviceHealth(Level.UNHEALTHY, "ö" * 2000)), 0)
    assert len(built.devices[0].message.encode()) == LONGEST_MESSAGE
    assert set(built.devices[0].message) == {"ö"}


async def test_the_same_is_said_again_and_nothing_before_anything_is_known():
    health = Latest(None)
    stream = HealthCalls(health, again=0.02).watch(v1)
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.1)
    assert not first.done()
    health.set(pool(gpu_0=HEALTHY))
    assert read(await first) == read(await anext(stream)) == {("node-1", "gpu-0"): (v1.HEALTHY, "")}
    await stream.aclose()
    assert health.followers == 0


@pytest.mark.parametrize(("messages", "rpc"), [(v1, v1_rpc), (v1alpha1, v1alpha1_rpc)], ids=["v1", "v1alpha1"])
async def test_streams_of_both_versions_see_a_gpu_fall_ill_and_recover(tmp_path, messages, rpc):
    health = Latest(pool(gpu_0=HEALTHY))
    server = grpc.aio.server()
    add_health_calls(server, health)
    server.add_insecure_port(f"unix:{tmp_path}/s")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/s") as channel, asyncio.timeout(20):
        stream = rpc.DRAResourceHealthStub(channel).NodeWatchResources(messages.NodeWatchResourcesRequest())
        levels = []
        for now in (HEALTHY, SICK, HEALTHY):
            health.set(pool(gpu_0=now))
            answer = await stream.read()
            while answer.devices[0].message != now.reason:
                answer = await stream.read()
            levels.append(answer.devices[0].health)
        stream.cancel()
    await server.stop(None)
    assert levels == [messages.HEALTHY, messages.UNHEALTHY, messages.HEALTHY]
