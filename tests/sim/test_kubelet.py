"""The stand-in kubelet, from a plugin's side: a small plugin of known answers is registered with it."""

import asyncio
import contextlib
import json
import stat

import grpc
import grpc.aio
import pytest

from gpuplugin.pb import deviceplugin_v1beta1_pb2 as api
from gpuplugin.pb import deviceplugin_v1beta1_pb2_grpc as rpc
from gpuplugin.sim.kubelet import StandInKubelet
from gpuplugin.topology.affinity import Policy

GPU = "nvidia.com/gpu"
EIGHT = {f"g{i}": (True, i // 4) for i in range(8)}


class Plugin(rpc.DevicePluginServicer):
    """Answers a preference with the highest ids, so that it can be told from kubelet's own choice."""

    def __init__(self, folder, devices=EIGHT, *, preferred=True, name="plugin.sock"):
        self.path = folder / name
        self.devices, self.preferred = dict(devices), preferred
        self.change = asyncio.Event()
        self.refuse = ""
        self.may_allocate = asyncio.Event()
        self.may_allocate.set()
        self.server = None

    async def start(self):
        self.server = grpc.aio.server()
        rpc.add_DevicePluginServicer_to_server(self, self.server)
        self.server.add_insecure_port(f"unix:{self.path}")
        await self.server.start()

    async def stop(self):
        await self.server.stop(None)

    async def __aenter__(self):
        await self.start()
        return self

    async def __aexit__(self, *exception):
        await self.stop()

    def set(self, **health):
        for device, healthy in health.items():
            self.devices[device] = (healthy, self.devices[device][1])
        self.change.set()
        self.change = asyncio.Event()

    async def GetDevicePluginOptions(self, request, context):  # noqa: N802
        return api.DevicePluginOptions(get_preferred_allocation_available=self.preferred)

    async def ListAndWatch(self, request, context):  # noqa: N802
        while True:
            change = self.change
            response = api.ListAndWatchResponse()
            for device, (healthy, node) in self.devices.items():
                added = response.devices.add(ID=device, health="Healthy" if healthy else "Unhealthy")
                if node is not None:
                    added.topology.nodes.add(ID=node)
            yield response
            await change.wait()

    async def GetPreferredAllocation(self, request, context):  # noqa: N802
        response = api.PreferredAllocationResponse()
        for wanted in request.container_requests:
            must = list(wanted.must_include_deviceIDs)
            rest = sorted(set(wanted.available_deviceIDs) - set(must), reverse=True)
            response.container_responses.add(deviceIDs=must + rest[: wanted.allocation_size - len(must)])
        return response

    async def Allocate(self, request, context):  # noqa: N802
        await self.may_allocate.wait()
        if self.refuse:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refuse)
        response = api.AllocateResponse()
        for wanted in request.container_requests:
            response.container_responses.add(envs={"NVIDIA_VISIBLE_DEVICES": ",".join(wanted.devices_ids)})
        return response


async def register(folder, endpoint="plugin.sock", resource=GPU, version="v1beta1"):
    async with grpc.aio.insecure_channel(
        f"unix:{folder / 'kubelet.sock'}", options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        request = api.RegisterRequest(version=version, endpoint=endpoint, resource_name=resource)
        await rpc.RegistrationStub(channel).Register(request, timeout=5)


async def listed(kubelet, count, resource=GPU):
    await kubelet.until(lambda: kubelet.allocatable(resource) == count, 5, f"{count} of {resource}")


@pytest.fixture
async def kubelet(tmp_path):
    async with StandInKubelet(tmp_path, numa_nodes=(0, 1)) as kubelet:
        yield kubelet


@pytest.fixture
async def plugin(kubelet):
    async with Plugin(kubelet.folder) as plugin:
        await register(kubelet.folder)
        await listed(kubelet, 8)
        yield plugin


def calls(kubelet, *names):
    return [call for call in kubelet.trace if call["call"] in names]


async def test_registration_dials_back_and_follows_the_list(kubelet, plugin):
    assert [call["call"] for call in kubelet.trace] == ["Register", "GetDevicePluginOptions", "ListAndWatch"]
    assert kubelet.resources() == (GPU,)
    plugin.set(g3=False)
    await listed(kubelet, 7)
    assert kubelet.capacity(GPU) == 8
    assert calls(kubelet, "ListAndWatch")[-1]["unhealthy"] == ["g3"]


async def test_the_preference_is_asked_within_the_node_and_followed(kubelet, plugin):
    admission = await kubelet.admit("p", GPU, 2)
    assert admission.ids == ("g2", "g3")
    assert admission.affinity == (0,)
    assert admission.response.envs["NVIDIA_VISIBLE_DEVICES"] == "g2,g3"
    assert calls(kubelet, "GetPreferredAllocation", "Allocate") == [
        {
            "call": "GetPreferredAllocation",
            "resource": GPU,
            "available": ["g0", "g1", "g2", "g3"],
            "must_include": [],
            "size": 2,
            "answer": ["g2", "g3"],
        },
        {"call": "Allocate", "resource": GPU, "ids": ["g2", "g3"]},
    ]
    assert [json.loads(line) for line in kubelet.trace_lines().splitlines()] == kubelet.trace


async def test_no_preference_is_asked_when_the_node_has_just_enough(kubelet, plugin):
    assert (await kubelet.admit("p", GPU, 4)).ids == ("g0", "g1", "g2", "g3")
    assert calls(kubelet, "GetPreferredAllocation") == []


async def test_more_than_a_node_holds_is_refused_in_kubelets_words(kubelet, plugin):
    admission = await kubelet.admit("p", GPU, 5)
    assert not admission.admitted
    assert admission.refusal == "TopologyAffinityError: Resources cannot be allocated with Topology locality"
    assert kubelet.held(GPU) == {}


async def test_best_effort_spills_over_with_what_is_aligned_included(tmp_path):
    async with StandInKubelet(tmp_path, policy=Policy.BEST_EFFORT, numa_nodes=(0, 1, 2)) as kubelet:
        devices = {"a": (True, 0), "b": (True, 0), "x": (True, None), "y": (True, None)}
        async with Plugin(tmp_path, devices):
            await register(tmp_path)
            await listed(kubelet, 4)
            admission = await kubelet.admit("p", GPU, 3)
    assert admission.ids == ("a", "b", "y")
    (asked,) = calls(kubelet, "GetPreferredAllocation")
    assert (asked["available"], asked["must_include"], asked["size"]) == (["a", "b", "x", "y"], ["a", "b"], 3)


async def test_without_policy_a_preference_is_always_asked(tmp_path):
    async with StandInKubelet(tmp_path, policy=Policy.NONE) as kubelet, Plugin(tmp_path):
        await register(tmp_path)
        await listed(kubelet, 8)
        assert (await kubelet.admit("p", GPU, 8)).admitted
        assert len(calls(kubelet, "GetPreferredAllocation")) == 1


async def test_a_plugin_that_gives_no_advice_is_not_asked(kubelet):
    async with Plugin(kubelet.folder, preferred=False):
        await register(kubelet.folder)
        await listed(kubelet, 8)
        assert (await kubelet.admit("p", GPU, 2)).ids == ("g0", "g1")
    assert calls(kubelet, "GetPreferredAllocation") == []


async def test_too_few_devices_in_kubelets_words(tmp_path):
    async with StandInKubelet(tmp_path, policy=Policy.NONE) as kubelet, Plugin(tmp_path):
        await register(tmp_path)
        await listed(kubelet, 8)
        assert (await kubelet.admit("p", GPU, 6)).admitted
        assert (await kubelet.admit("q", GPU, 3)).refusal == (
            "UnexpectedAdmissionError: Allocate failed due to requested number of devices unavailable for "
            "nvidia.com/gpu. Requested: 3, Available: 2, which is unexpected"
        )
        kubelet.release("p")
        assert (await kubelet.admit("q", GPU, 3)).admitted
        assert (await kubelet.admit("r", "nvidia.com/other", 1)).refusal == (
            "OutOfnvidia.com/other: "
            "Node didn't have enough resource: nvidia.com/other, requested: 1, used: 0, capacity: 0"
        )


async def test_what_the_plugin_refuses_reaches_the_pod_and_holds_nothing(kubelet, plugin):
    plugin.refuse = "g3 cannot be used: XID 79"
    admission = await kubelet.admit("p", GPU, 1)
    assert admission.message == (
        "Allocate failed due to rpc error: code = FailedPrecondition desc = g3 cannot be used: XID 79, "
        "which is unexpected"
    )
    assert kubelet.held(GPU) == {}
    assert len(kubelet.free(GPU)) == 8


async def test_a_connection_that_ends_under_a_call_refuses_the_pod(kubelet, plugin):
    plugin.may_allocate.clear()
    admitting = asyncio.create_task(kubelet.admit("p", GPU, 4))
    await kubelet.until(lambda: bool(calls(kubelet, "Allocate")), 5, "the call")
    await kubelet.drop_streams(GPU)
    admission = await admitting
    plugin.may_allocate.set()
    assert admission.message == (
        "Allocate failed due to rpc error: code = Canceled desc = grpc: the client connection is closing, "
        "which is unexpected"
    )
    assert kubelet.held(GPU) == {}


async def test_an_admission_can_be_cancelled(kubelet, plugin):
    plugin.may_allocate.clear()
    admitting = asyncio.create_task(kubelet.admit("p", GPU, 4))
    await kubelet.until(lambda: bool(calls(kubelet, "Allocate")), 5, "the call")
    admitting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await admitting
    plugin.may_allocate.set()
    assert (await kubelet.admit("p", GPU, 4)).admitted


async def test_a_pod_is_admitted_once(kubelet, plugin):
    await kubelet.admit("p", GPU, 1)
    with pytest.raises(ValueError, match="already holds"):
        await kubelet.admit("p", GPU, 1)


async def test_the_end_of_the_stream_is_the_end_of_the_devices(kubelet, plugin):
    await kubelet.admit("p", GPU, 4)
    await plugin.stop()
    await listed(kubelet, 0)
    assert kubelet.capacity(GPU) == 8
    assert kubelet.held(GPU) == {"p": ("g0", "g1", "g2", "g3")}
    await plugin.start()
    await register(kubelet.folder)
    await listed(kubelet, 8)
    assert (await kubelet.admit("q", GPU, 4)).ids == ("g4", "g5", "g6", "g7")


async def test_a_restart_keeps_pods_and_forgets_plugins(kubelet, plugin):
    await kubelet.admit("p", GPU, 4)
    before = kubelet.socket.stat().st_ino, kubelet.socket.stat().st_ctime_ns
    await kubelet.restart()
    after = kubelet.socket.stat().st_ino, kubelet.socket.stat().st_ctime_ns
    assert before != after
    assert not plugin.path.exists(), "kubelet removes plugins' sockets when it starts"
    assert (kubelet.capacity(GPU), kubelet.held(GPU)) == (0, {"p": ("g0", "g1", "g2", "g3")})
    async with Plugin(kubelet.folder):
        await register(kubelet.folder)
        await listed(kubelet, 8)
        assert (await kubelet.admit("q", GPU, 4)).affinity == (1,)


async def test_start_removes_sockets_and_nothing_else(tmp_path):
    (tmp_path / "kubelet_internal_checkpoint").write_text("{}")
    async with Plugin(tmp_path) as left_over:
        async with StandInKubelet(tmp_path) as kubelet:
            assert not left_over.path.exists()
            assert (tmp_path / "kubelet_internal_checkpoint").exists()
            assert stat.S_ISSOCK(kubelet.socket.stat().st_mode)
        assert not kubelet.socket.exists()


async def test_dropped_streams_take_the_devices_until_registered_anew(kubelet, plugin):
    await kubelet.drop_streams(GPU)
    assert (kubelet.allocatable(GPU), kubelet.watches(GPU)) == (0, False)
    await register(kubelet.folder)
    await listed(kubelet, 8)


async def test_two_plugins_of_one_resource_hand_over(kubelet, plugin):
    async with Plugin(kubelet.folder, {"new": (True, 0)}, name="second.sock"):
        await register(kubelet.folder, "second.sock")
        await listed(kubelet, 1)
        await plugin.stop()
        await kubelet.until(lambda: len(calls(kubelet, "ListAndWatch")) == 2, 5, "the second list")
        assert (await kubelet.admit("p", GPU, 1)).ids == ("new",)


async def test_a_socket_that_is_followed_already_is_refused(kubelet, plugin):
    """And, as in kubelet 1.37, the stream that was there is then no longer missed when it ends."""
    with pytest.raises(grpc.aio.AioRpcError, match="device plugin already connected"):
        await register(kubelet.folder)
    await plugin.stop()
    await kubelet.until(lambda: not kubelet.watches(GPU), 5, "the end of the stream")
    assert kubelet.allocatable(GPU) == 8
    await plugin.start()
    with pytest.raises(grpc.aio.AioRpcError, match="device plugin already connected"):
        await register(kubelet.folder)
    await kubelet.restart()
    async with Plugin(kubelet.folder):
        await register(kubelet.folder)
        await listed(kubelet, 8)


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"version": "v1"}, "requested API version 'v1' is not supported"),
        ({"endpoint": "nobody.sock"}, "failed to dial device plugin"),
    ],
)
async def test_wrong_registrations_are_refused(kubelet, request_, text, monkeypatch):
    monkeypatch.setattr("gpuplugin.sim.dialled_plugin.DIAL_SECONDS", 0.2)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await register(kubelet.folder, **request_)
    assert text in refused.value.details()
    assert refused.value.code() is grpc.StatusCode.UNKNOWN
    assert "error" in kubelet.trace[-1]


async def test_registration_can_be_refused_with_a_text(kubelet):
    kubelet.refuse = "not today"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await register(kubelet.folder)
    assert refused.value.details() == "not today"
    assert kubelet.resources() == ()


async def test_a_late_kubelet_has_a_socket_that_refuses_and_then_accepts(tmp_path):
    async with StandInKubelet(tmp_path, accept_after=0.2) as kubelet, Plugin(tmp_path):
        inode = kubelet.socket.stat().st_ino
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await register(tmp_path)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        async with asyncio.timeout(5):
            while not kubelet.resources():
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await register(tmp_path)
                await asyncio.sleep(0.02)
        assert kubelet.socket.stat().st_ino == inode
        await listed(kubelet, 8)


async def test_what_does_not_come_is_named(kubelet):
    with pytest.raises(TimeoutError, match=r"a plugin: not within 0\.01 s"):
        await kubelet.until(lambda: bool(kubelet.resources()), 0.01, "a plugin")
