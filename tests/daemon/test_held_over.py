"""A GPU that a pod has is given to nobody else because it is called otherwise by now."""

import asyncio
import json
from contextlib import asynccontextmanager

import grpc.aio
import pytest
from structlog.testing import capture_logs

from gpuplugin.daemon import held_over
from gpuplugin.pb import podresources_v1_pb2 as api
from gpuplugin.pb import podresources_v1_pb2_grpc as rpc
from tests.daemon.conftest import GPU
from tests.daemon.test_node import lines, until
from tests.daemon.test_sharing import sliced

H100 = "nvidia.com/h100"
RENAMED = "resources: {gpus: [{pattern: '*', name: nvidia.com/h100}]}\n"


class Lister(rpc.PodResourcesListerServicer):
    """Says what the stand-in kubelet's pods have; not before `answers` is set."""

    def __init__(self, kubelet):
        self.kubelet, self.answers, self.asked, self.forgets = kubelet, asyncio.Event(), 0, False
        self.answers.set()

    async def List(self, request, context):  # noqa: N802 - gRPC names it
        self.asked += 1
        await self.answers.wait()
        answer = api.ListPodResourcesResponse()
        if self.forgets:
            self.forgets = False
            return answer
        for resource in (GPU, H100):
            for pod, ids in self.kubelet.held(resource).items():
                container = answer.pod_resources.add(name=pod, namespace="team").containers.add(name="main")
                container.devices.add(resource_name=resource, device_ids=ids)
        return answer


@asynccontextmanager
async def pod_resources(bench):
    lister, server = Lister(bench.kubelet), grpc.aio.server()
    (bench.folder / "pod-resources").mkdir()
    rpc.add_PodResourcesListerServicer_to_server(lister, server)
    server.add_insecure_port(f"unix:{bench.folder}/pod-resources/kubelet.sock")
    await server.start()
    try:
        yield lister
    finally:
        await server.stop(None)


@pytest.fixture(autouse=True)
def logs(monkeypatch):
    monkeypatch.setattr(held_over, "ASK_SECONDS", 0.1)
    with capture_logs() as logs:
        yield logs
    assert not lines(logs, "a part has failed: starting it again")


async def test_a_gpu_that_is_renamed_is_given_again_once_its_pod_has_ended(bench):
    async with pod_resources(bench), bench.daemon(config_file=bench.configure(""), rescan_seconds="1"):
        await bench.usable(8)
        had = await bench.kubelet.admit("first", GPU, 2)
        bench.configure(RENAMED)
        await bench.usable(6, H100)
        others = await bench.kubelet.admit("second", H100, 4)
        assert others.admitted
        assert not set(had.ids) & set(others.ids)
        bench.kubelet.release("first")
        await bench.usable(8, H100)


async def test_a_gpu_of_one_pods_own_is_not_sliced_and_slices_are_not_given_whole_while_pods_have_them(bench):
    async with pod_resources(bench), bench.daemon(config_file=bench.configure(""), rescan_seconds="1"):
        await bench.usable(8)
        assert (await bench.kubelet.admit("alone", GPU, 1)).admitted
        bench.configure(sliced(4))
        await bench.usable(28)
        assert (await bench.kubelet.admit("shares", GPU, 1)).admitted
        bench.kubelet.release("alone")
        await bench.usable(32)
        bench.configure(sliced(2))
        await bench.usable(16)
        bench.configure("")
        await bench.usable(7)
        bench.kubelet.release("shares")
        await bench.usable(8)


async def test_the_next_daemon_asks_who_has_what_the_one_before_offered(bench):
    async with pod_resources(bench):
        async with bench.daemon():
            await bench.usable(8)
            assert (await bench.kubelet.admit("first", GPU, 3)).admitted
        async with bench.daemon(config_file=bench.configure(RENAMED)):
            await bench.usable(5, H100)


async def test_nothing_that_was_renamed_is_given_before_kubelet_has_answered(bench, logs, monkeypatch):
    monkeypatch.setattr(held_over, "OVERLAP_SECONDS", 0)
    async with pod_resources(bench) as lister, bench.daemon(config_file=bench.configure(""), rescan_seconds="1"):
        await bench.usable(8)
        await until(lambda: lister.asked, "a first question")
        await asyncio.sleep(0.5)
        assert lister.asked == 1, "nothing has changed since"
        lister.answers.clear()
        bench.configure(RENAMED)
        await until(lambda: lister.asked == 2, "a second question")
        await bench.usable(0, H100)
        lister.answers.set()
        await bench.usable(8, H100)
    assert [line["usable"] for line in lines(logs, "offering") if line["resource"] == H100] == [0, 8]


async def test_kubelet_is_not_asked_while_the_device_plugin_has_no_gpu(bench):
    leave_out = [gpu.uuid for gpu in bench.state.snapshot.gpus]
    file = bench.configure(f"devices: {{exclude: {json.dumps(leave_out)}}}")
    async with pod_resources(bench) as lister, bench.daemon(config_file=file, rescan_seconds="1"):
        await until(bench.cdi.exists, "a first look")
        await asyncio.sleep(0.5)
        assert lister.asked == 0
        bench.configure("")
        await bench.usable(8)
        await until(lambda: lister.asked, "a question")


async def test_one_answer_of_a_kubelet_that_has_just_started_and_knows_no_pods_frees_nothing(bench, logs):
    async with pod_resources(bench) as lister, bench.daemon(config_file=bench.configure(""), rescan_seconds="1"):
        await bench.usable(8)
        assert (await bench.kubelet.admit("first", GPU, 1)).admitted
        bench.configure(RENAMED)
        await bench.usable(7, H100)
        lister.answers.clear()
        asked = lister.asked
        await until(lambda: lister.asked == asked + 1, "a question")
        lister.forgets = True
        lister.answers.set()
        await until(lambda: lister.asked > asked + 3, "the answers after that one")
        assert bench.kubelet.allocatable(H100) == 7
        bench.kubelet.release("first")
        await bench.usable(8, H100)
    assert [line["usable"] for line in lines(logs, "offering") if line["resource"] == H100] == [0, 7, 8]


async def test_where_kubelet_cannot_be_asked_that_is_said_and_nothing_is_held_back(bench, logs):
    async with bench.daemon(config_file=bench.configure(""), rescan_seconds="1"):
        await bench.usable(8)
        bench.configure(RENAMED)
        await bench.usable(8, H100)
        await until(lambda: lines(logs, "it is not known who has GPUs as they were offered before"), "the reason")
    assert [line["usable"] for line in lines(logs, "offering") if line["resource"] == H100] == [8]
