"""Claims in the whole daemon: three modes, one owner a GPU, and a change of owner that waits for who has it."""

import asyncio
import functools
import json

import grpc.aio
import pytest
from structlog.testing import capture_logs

import gpuplugin.kube.client
from gpuplugin.errors import PodResourcesUnavailable
from gpuplugin.pb import dra_v1_pb2 as v1
from gpuplugin.pb import dra_v1_pb2_grpc as rpc
from gpuplugin.pb import podresources_v1_pb2 as pods
from gpuplugin.pb import podresources_v1_pb2_grpc as pods_rpc
from tests.daemon.conftest import GPU, SOON
from tests.kube.standin import StandInApi, kubeconfig

DRIVER, NODE = "gpu.nvidia.com", "node-1"
SLICE = f"/apis/resource.k8s.io/v1/resourceslices/{NODE}-{DRIVER}-00"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims"


class PodResources(pods_rpc.PodResourcesListerServicer):
    """Kubelet's word of who has what; `devices` by pod from the device plugin, `claims` by pod.

    Beside what the stand-in `kubelet` has and gives away, where there is one. `counted`: devices of another plugin.
    """

    def __init__(self, kubelet=None):
        self.devices, self.claims, self.asked = {}, {}, 0
        self.kubelet, self.counted = kubelet, []

    async def List(self, request, context):  # noqa: N802 - gRPC names it
        self.asked += 1
        answer = pods.ListPodResourcesResponse()
        held = self.kubelet.held(GPU) if self.kubelet else {}
        for pod, ids in (self.devices | held).items():
            container = answer.pod_resources.add(name=pod, namespace="team").containers.add(name="main")
            container.devices.add(resource_name=GPU, device_ids=ids)
        for pod, devices in self.claims.items():
            container = answer.pod_resources.add(name=pod, namespace="team").containers.add(name="main")
            claim = container.dynamic_resources.add(claim_name=pod, claim_namespace="team")
            for device in devices:
                claim.claim_resources.add(driver_name=DRIVER, pool_name=NODE, device_name=device)
        return answer

    async def GetAllocatableResources(self, request, context):  # noqa: N802 - likewise
        answer = pods.AllocatableResourcesResponse()
        devices = self.kubelet.devices(GPU) if self.kubelet else ()
        answer.devices.add(resource_name=GPU, device_ids=[one.id for one in devices if one.healthy])
        answer.devices.add(resource_name="example.com/gpu", device_ids=self.counted)
        return answer


class Claims:
    def __init__(self, bench, api, lister):
        self.bench, self.api, self.lister = bench, api, lister
        self.settings = {"node_name": NODE, "kubeconfig": str(kubeconfig(bench.folder))}

    def daemon(self, gpus="all", **flags):
        return self.bench.daemon(**self.settings, dra_gpus=gpus, **flags)

    def uuid(self, index):
        return self.bench.state.snapshot.gpu(index).uuid

    def devices(self, tainted=None):
        """Names of published devices; those with a taint, those without, or all."""
        one = self.api.objects.get(SLICE)
        devices = one["spec"].get("devices", ()) if one else ()
        return {device["name"] for device in devices if tainted is None or bool(device.get("taints")) is tainted}

    def taints(self):
        devices = self.api.objects[SLICE]["spec"]["devices"]
        return {device["name"]: device["taints"][0]["value"] for device in devices if device.get("taints")}

    async def until(self, wanted, what):
        try:
            async with asyncio.timeout(SOON):
                while not wanted():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise TimeoutError(f"{what}; published: {self.api.objects.get(SLICE)}") from None

    async def published(self, count, tainted=0):
        await self.until(
            lambda: (len(self.devices(False)), len(self.devices(True))) == (count, tainted),
            f"{count} devices, {tainted} more with taints",
        )

    def put(self, name, *devices):
        results = [{"request": "gpus", "driver": DRIVER, "pool": NODE, "device": device} for device in devices]
        status = {"allocation": {"devices": {"results": results}}}
        status["reservedFor"] = [{"resource": "pods", "name": name, "uid": f"uid-{name}"}]
        return self.api.put(f"{CLAIMS}/{name}", {"metadata": {"name": name, "namespace": "team"}, "status": status})

    async def call(self, what, name, uid):
        folder = self.bench.folder / "plugins" / DRIVER
        await self.until(lambda: list(folder.glob("gpuplugin-dra-*.sock")), "a socket to call")
        (path,) = folder.glob("gpuplugin-dra-*.sock")
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            request = getattr(v1, f"Node{what}ResourcesRequest")(
                claims=[v1.Claim(namespace="team", name=name, uid=uid)]
            )
            stub = rpc.DRAPluginStub(channel)
            answer = await getattr(stub, f"Node{what}Resources")(request, timeout=SOON)
        return answer.claims[uid]

    async def prepare(self, name, *devices):
        """Put a claim and have it prepared, again and again while the daemon has just started, as kubelet would."""
        uid = self.put(name, *devices)["metadata"]["uid"]
        async with asyncio.timeout(SOON):
            while "not been looked at yet" in (answer := await self.call("Prepare", name, uid)).error:
                await asyncio.sleep(0.02)
        return uid, answer


@pytest.fixture
async def claims(bench, monkeypatch):
    api = StandInApi()
    api.put(f"/api/v1/nodes/{NODE}", {"metadata": {"name": NODE}})
    real = gpuplugin.kube.client.Kube
    monkeypatch.setattr(gpuplugin.kube.client, "Kube", functools.partial(real, transport=api))
    monkeypatch.setattr("gpuplugin.daemon.dra.ASK_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr("gpuplugin.daemon.dra.SETTLE_SECONDS", 0.05)
    for folder in ("plugins", "plugins_registry", "pods", "pod-resources"):
        (bench.folder / folder).mkdir()
    lister, server = PodResources(bench.kubelet), grpc.aio.server()
    pods_rpc.add_PodResourcesListerServicer_to_server(lister, server)
    server.add_insecure_port(f"unix:{bench.folder}/pod-resources/kubelet.sock")
    await server.start()
    yield Claims(bench, api, lister)
    await server.stop(None)


async def test_all_gpus_for_claims_and_none_for_the_device_plugin(claims):
    async with claims.daemon():
        await claims.published(8)
        uid, answer = await claims.prepare("train", "gpu-0", "gpu-1")
        assert answer.error == ""
        document = json.loads(claims.bench.cdi.read_text())
        known = {f"{document['kind']}={device['name']}" for device in document["devices"]}
        given = {name for device in answer.devices for name in device.cdi_device_ids}
        assert len(given) == 2
        assert given <= known
        await claims.until(
            lambda: len(claims.api.objects[f"{CLAIMS}/train"]["status"].get("devices", ())) == 2, "status.devices"
        )
        assert (await claims.call("Unprepare", "train", uid)).error == ""
        await claims.bench.usable(0)  # kubelet is told, rather than what a device plugin before us has told it
    assert claims.lister.asked <= 3


async def test_no_claims_means_no_request_and_no_socket(claims):
    async with claims.bench.daemon():
        await claims.bench.usable(8)
    assert claims.api.asked == []
    assert list((claims.bench.folder / "plugins").iterdir()) == []


async def test_kubelet_counts_no_gpu_any_more_once_all_are_for_claims(claims):
    """It would go on counting those of the device plugin before: minutes long, or for ever where it lost its memory."""
    async with claims.bench.daemon():
        await claims.bench.usable(8)
    assert claims.bench.kubelet.capacity(GPU) == 8
    async with claims.daemon():
        await claims.published(8)
        await claims.until(lambda: claims.bench.kubelet.capacity(GPU) == 0, "no GPU counted")


async def test_some_gpus_for_claims_the_rest_for_the_device_plugin(claims):
    async with claims.daemon([claims.uuid(0), claims.uuid(5)]):
        await claims.published(2)
        await claims.bench.usable(6)
        counted = {device.id for device in claims.bench.kubelet.devices(GPU)}
        assert not counted & {claims.uuid(0), claims.uuid(5)}
        assert "handed out by the device plugin" in (await claims.prepare("other", "gpu-1"))[1].error


async def test_gpu_that_a_pod_has_from_the_device_plugin_waits_for_its_end(claims):
    claims.lister.devices = {"old": [claims.uuid(2), f"{claims.uuid(3)}::1"]}
    async with claims.daemon():
        await claims.published(6, tainted=2)
        assert all("held-by-pod-team-old" in value for value in claims.taints().values())
        (name, *_) = sorted(claims.taints())
        assert "still held by pod team/old" in (await claims.prepare("eager", name))[1].error
        claims.lister.devices = {}
        await claims.published(8)
        assert (await claims.prepare("eager", name))[1].error == ""


async def test_nothing_is_given_before_kubelet_has_said_who_has_what(claims, monkeypatch):
    refused = asyncio.Event()

    async def silent(_socket):
        refused.set()
        raise PodResourcesUnavailable(_socket, "UNAVAILABLE")

    monkeypatch.setattr("gpuplugin.daemon.dra.pod_resources", silent)
    async with claims.daemon():
        await claims.published(0, tainted=8)
        await refused.wait()
        assert "kubelet has not said yet" in (await claims.prepare("eager", "gpu-1"))[1].error


async def test_gpu_that_a_claim_has_waits_for_its_end_before_the_device_plugin_has_it(claims):
    async with claims.daemon():
        await claims.published(8)
        uid, answer = await claims.prepare("train", "gpu-1")
        assert answer.error == ""
    claims.lister.claims = {"train": ["gpu-1"]}
    with capture_logs() as logs:
        async with claims.daemon(""):
            await claims.bench.usable(7)
            await claims.published(0)
            (told,) = [line for line in logs if line["event"] == "withdrawn"]
            assert "claim team/train" in told["reason"]
            assert (await claims.call("Unprepare", "train", uid)).error == ""
            await claims.bench.usable(8)


async def test_sick_gpu_is_tainted_until_it_has_recovered(claims):
    async with claims.daemon():
        await claims.published(8)
        claims.bench.state.lose(4)
        await claims.published(7, tainted=1)
        claims.bench.state.restore(4)
        await claims.published(8)


async def test_claims_without_an_api_server_are_served_once_it_is_there(claims):
    gone = claims.api.objects.pop(f"/api/v1/nodes/{NODE}")
    with capture_logs() as logs:
        async with claims.daemon():
            await claims.until(
                lambda: [line for line in logs if line["event"] == "ResourceSlices cannot be published yet"],
                "the reason",
            )
            claims.api.objects[f"/api/v1/nodes/{NODE}"] = gone
            await claims.published(8)


async def test_restart_writes_nothing(claims):
    async with claims.daemon():
        await claims.published(8)
    claims.api.asked.clear()
    async with claims.daemon():
        await claims.until(lambda: claims.api.watchers and claims.lister.asked > 2, "the next one at rest")
        assert (await claims.prepare("train", "gpu-0"))[1].error == ""
        assert [write for write in claims.api.writes if "slices" in write] == []


async def test_claim_that_is_gone_keeps_its_gpu_while_a_pod_that_came_to_share_it_may_run(claims):
    """Force-deleted, so that kubelet names it no more, and never in our records: kubelet prepares a claim once."""
    pods = claims.bench.folder / "pods"
    async with claims.daemon():
        await claims.published(8)
        assert (await claims.prepare("shared", "gpu-2"))[1].error == ""
        (pods / "uid-later").mkdir()
        claims.api.remove(f"{CLAIMS}/shared")
    async with claims.daemon():
        await claims.published(8)
        (pods / "uid-rival").mkdir()
        assert "still held by claim team/shared" in (await claims.prepare("rival", "gpu-2"))[1].error
        (pods / "uid-later").rmdir()
        assert (await claims.prepare("rival", "gpu-2"))[1].error == ""
