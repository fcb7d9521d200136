"""Metrics of the whole daemon: what a scrape shows of what happens to GPUs, pods and the library."""

import asyncio
import re
import urllib.error
import urllib.request
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from structlog.testing import capture_logs

from gpuplugin.daemon import beside, metrics
from gpuplugin.pb import podresources_v1_pb2 as api
from gpuplugin.pb import podresources_v1_pb2_grpc as rpc
from tests.daemon.conftest import GPU, SOON
from tests.metrics.test_exposition import read_labels

LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})? (\S+)")


class Scrapes:
    """What one daemon's port gives."""

    def __init__(self, logs):
        self._logs = logs

    async def text(self):
        async with asyncio.timeout(SOON):
            while not (served := [line for line in self._logs if line["event"] == "metrics are served"]):
                await asyncio.sleep(0.02)
        url = f"http://127.0.0.1:{served[-1]['port']}/metrics"
        return await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read().decode())

    async def values(self, name, **labels):
        """The values of a series with those labels, by all its labels."""
        try:
            found = map(LINE.fullmatch, (await self.text()).splitlines())
        except urllib.error.URLError:  # nothing looked at yet, or not served just now
            return []
        read = [(read_labels(line[2] or ""), float(line[3])) for line in found if line and line[1] == name]
        return [(have, value) for have, value in read if have.items() >= labels.items()]

    async def until(self, condition, what, name, **labels):
        """Wait until the samples are as wanted; gives them."""
        try:
            async with asyncio.timeout(SOON):
                while not condition(found := await self.values(name, **labels)):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise TimeoutError(f"{what}; the last were {found}") from None
        return found


@pytest.fixture
async def scraped(bench):
    """Gives a function: the daemon with metrics, and their port."""

    @asynccontextmanager
    async def run(**flags):
        with capture_logs() as logs:
            settings = {"metrics_enabled": "true", "metrics_address": "127.0.0.1:0", "metrics_interval_seconds": "0.2"}
            async with bench.daemon(node_name="node-1", **settings, **flags):
                scrapes = Scrapes(logs)
                scrapes.logs = logs
                yield scrapes

    return run


def uuid(bench, index):
    return bench.state.snapshot.gpu(index).uuid


@asynccontextmanager
async def kubelet_that_says(folder: Path, pods: list[api.PodResources]):
    """A pod resources API; change the list to change what it says."""

    class Lister(rpc.PodResourcesListerServicer):
        async def List(self, request, context):  # noqa: N802 - gRPC names it
            return api.ListPodResourcesResponse(pod_resources=pods)

    (folder / "pod-resources").mkdir()
    server = grpc.aio.server()
    rpc.add_PodResourcesListerServicer_to_server(Lister(), server)
    server.add_insecure_port(f"unix:{folder}/pod-resources/kubelet.sock")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


def pod(name, *devices, claims=()):
    made = api.PodResources(name=name, namespace="team")
    container = made.containers.add(name="main")
    if devices:
        container.devices.add(resource_name=GPU, device_ids=devices)
    for claim, device, gpu in claims:
        entry = container.dynamic_resources.add(claim_name=claim, claim_namespace="team")
        given = entry.claim_resources.add(driver_name="gpu.nvidia.com", pool_name="node-1", device_name=device)
        given.cdi_devices.add(name=f"gpuplugin.io/gpu={gpu}")
    return made


async def test_eight_gpus_are_measured_and_named(bench, scraped):
    async with scraped() as scrapes:
        await bench.usable(8)
        power = await scrapes.until(lambda found: len(found) == 8, "eight GPUs", "DCGM_FI_DEV_POWER_USAGE")
        assert {labels["gpu"]: value for labels, value in power} == {f"{n}": 70 + n for n in range(8)}
        assert {labels["Hostname"] for labels, _ in power} == {"node-1"}
        await scrapes.until(lambda found: len(found) == 8, "counters of the units", "DCGM_FI_PROF_SM_ACTIVE")
        assert await scrapes.values("gpuplugin_resource_devices", state="usable") == [
            ({"resource": GPU, "state": "usable"}, 8)
        ]
        [(_, seconds)] = await scrapes.values("gpuplugin_nvml_call_seconds_count", call="telemetry")
        assert seconds >= 8


async def test_pods_are_told_by_one_series_a_device_and_one_allocation_a_container(bench, scraped, monkeypatch):
    monkeypatch.setattr(metrics, "PODS_SECONDS", 0.1)
    pods = [
        pod("alone", uuid(bench, 0)),
        pod("shares", f"{uuid(bench, 1)}::0"),
        pod("shares-too", f"{uuid(bench, 1)}::1", f"{uuid(bench, 1)}::2"),
        pod("claims", claims=[("gpus", "gpu-5", uuid(bench, 5))]),
        pod("elsewhere", "GPU-of-another-plugin"),
    ]
    async with kubelet_that_says(bench.folder, pods), scraped() as scrapes:
        await bench.usable(7)  # the one that pods still share, as it was offered before, is held back
        found = await scrapes.until(lambda found: len(found) == 4, "four allocations", "gpuplugin_allocation_info")
        assert {(labels["pod"], labels["gpu"], labels.get("dra_claim_name")) for labels, _ in found} == {
            *(("alone", "0", None), ("shares", "1", None), ("shares-too", "1", None), ("claims", "5", "gpus")),
        }
        power = {labels["gpu"]: labels for labels, _ in await scrapes.values("DCGM_FI_DEV_POWER_USAGE")}
        assert (power["0"]["pod"], power["0"]["namespace"], power["0"]["container"]) == ("alone", "team", "main")
        assert "pod" not in power["1"]
        assert (power["5"]["pod"], power["5"]["dra_claim_name"], power["5"]["dra_device_name"]) == (
            *("claims", "gpus", "gpu-5"),
        )
        free = await scrapes.values("gpuplugin_free_gpus")
        assert {labels["numa_node"]: value for labels, value in free} == {"0": 2, "1": 3}
        assert [value for _, value in await scrapes.values("gpuplugin_largest_aligned_request_gpus")] == [3]
        pods[:] = [pod("alone", uuid(bench, 7))]
        moved = await scrapes.until(lambda found: len(found) == 1, "one allocation", "gpuplugin_allocation_info")
        assert moved[0][0]["gpu"] == "7"


async def test_gpus_of_claims_have_health_and_a_count_of_their_own(bench, scraped, monkeypatch):
    monkeypatch.setattr(metrics, "PODS_SECONDS", 0.1)
    async with kubelet_that_says(bench.folder, []), scraped(dra_gpus=uuid(bench, 2)) as scrapes:
        await bench.usable(7)
        healthy = await scrapes.until(lambda found: len(found) == 8, "all GPUs", "gpuplugin_device_healthy")
        assert all(value == 1 for _, value in healthy)
        free = await scrapes.until(
            lambda found: len(found) == 2, "both owners", "gpuplugin_largest_aligned_request_gpus"
        )
        assert {labels["handed_out_by"]: value for labels, value in free} == {"device_plugin": 4, "claims": 1}


async def test_repeated_xids_are_seen_and_the_gpu_is_said_to_be_out_of_service(bench, scraped):
    async with scraped() as scrapes:
        await bench.usable(8)
        bench.state.recovery(3, 1)
        for _ in range(2):
            bench.state.xid(3, 95)
        counted = await scrapes.until(
            lambda found: found and found[0][1] >= 2, "two XIDs", "gpuplugin_xid_errors_total", UUID=uuid(bench, 3)
        )
        assert (counted[0][0]["xid"], counted[0][0]["gpu"]) == ("95", "3")
        assert (await scrapes.values("gpuplugin_xid_last_seen_timestamp_seconds", UUID=uuid(bench, 3)))[0][1] > 1e9
        [(_, last)] = await scrapes.until(
            lambda found: found[0][1] != 0, "the last code", "DCGM_FI_DEV_XID_ERRORS", gpu="3"
        )
        assert last == 95
        [(fault, _)] = await scrapes.until(lambda found: found, "its fault", "gpuplugin_device_fault_info")
        assert (fault["gpu"], fault["state"]) == ("3", "unhealthy")
        assert fault["reason"].startswith("XID 95")
        assert (await scrapes.values("gpuplugin_device_healthy", gpu="3"))[0][1] == 0


async def test_a_lost_gpu_has_no_numbers_and_the_others_have(bench, scraped):
    async with scraped() as scrapes:
        await scrapes.until(lambda found: len(found) == 8, "eight GPUs", "DCGM_FI_DEV_POWER_USAGE")
        bench.state.lose(6)
        seven = await scrapes.until(lambda found: len(found) == 7, "seven GPUs", "DCGM_FI_DEV_POWER_USAGE")
        assert "6" not in {labels["gpu"] for labels, _ in seven}
        assert (await scrapes.values("gpuplugin_gpus_measured", measured="no"))[0][1] == 1
        await scrapes.until(lambda found: found, "it is counted", "gpuplugin_nvml_errors_total", call="telemetry")
        bench.state.restore(6)
        await scrapes.until(lambda found: len(found) == 8, "eight GPUs again", "DCGM_FI_DEV_POWER_USAGE")


async def test_a_scrape_never_waits_for_nvml(bench, scraped):
    async with scraped() as scrapes:
        await scrapes.until(lambda found: len(found) == 8, "eight GPUs", "DCGM_FI_DEV_POWER_USAGE")
        bench.state.hang("nvmlDeviceGetPowerUsage", 2)
        for _ in range(5):
            assert len(await scrapes.values("DCGM_FI_DEV_POWER_USAGE")) == 8
        bench.state.heal()


async def test_a_custom_list_is_followed(bench, scraped, tmp_path):
    path = tmp_path / "custom.csv"
    path.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, how warm\nDCGM_FI_DEV_FAN_SPEED, gauge, wind\n")
    async with scraped(metrics_collectors=str(path)) as scrapes:
        await scrapes.until(lambda found: len(found) == 8, "eight GPUs", "DCGM_FI_DEV_GPU_TEMP")
        text = await scrapes.text()
        assert "# HELP DCGM_FI_DEV_GPU_TEMP how warm\n" in text
        assert set(re.findall(r"^DCGM_FI_\w+", text, re.MULTILINE)) == {"DCGM_FI_DEV_GPU_TEMP"}
        assert "gpuplugin_device_healthy" in text
        [told] = [line for line in scrapes.logs if line["event"].startswith("the list of metrics")]
        assert told["series"] == ("DCGM_FI_DEV_FAN_SPEED",)


async def test_a_list_that_makes_no_sense_is_said_and_all_is_shown(bench, scraped, tmp_path):
    path = tmp_path / "custom.csv"
    path.write_text("DCGM_FI_DEV_GPU_TEMP\n")
    async with scraped(metrics_collectors=str(path)) as scrapes:
        await scrapes.until(lambda found: len(found) == 8, "eight GPUs", "DCGM_FI_DEV_SM_CLOCK")
        [told] = [line for line in scrapes.logs if line["event"].startswith("the list of metrics")]
        assert (told["log_level"], "line 1" in told["reason"]) == ("error", True)


async def test_admission_is_counted_and_timed(bench, scraped):
    async with scraped() as scrapes:
        await bench.usable(8)
        await scrapes.until(lambda found: len(found) == 8, "metrics are served", "gpuplugin_device_healthy")
        [(_, before)] = await scrapes.values("gpuplugin_allocations_total", resource=GPU) or [({}, 0)]
        await bench.kubelet.admit("two", GPU, 2)
        await scrapes.until(
            lambda found: found and found[0][1] == before + 1,
            "it is counted",
            "gpuplugin_allocations_total",
            resource=GPU,
        )
        calls = {labels["call"] for labels, _ in await scrapes.values("gpuplugin_admission_seconds_count")}
        assert calls >= {"Allocate", "GetPreferredAllocation"}


async def test_without_kubelets_word_on_pods_that_is_said(bench, scraped):
    async with scraped() as scrapes:
        await scrapes.until(lambda found: found == [({}, 0)], "no word", "gpuplugin_pod_resources_up")
        assert not await scrapes.values("gpuplugin_free_gpus"), "what is free is not known then"


async def test_only_users_that_are_named_get_them(bench, scraped, tmp_path):
    users = tmp_path / "users"
    users.write_text("prometheus:secret\n")
    async with scraped(metrics_users=str(users)) as scrapes:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            await scrapes.text()


async def test_a_fault_in_metrics_ends_neither_them_nor_the_daemon(bench, scraped, monkeypatch):
    monkeypatch.setattr(beside, "FIRST_PAUSE_SECONDS", 0.1)
    real, failures = metrics.attribution.health, iter([True])

    def breaks_once(*arguments):
        if next(failures, False):
            raise ZeroDivisionError
        return real(*arguments)

    monkeypatch.setattr(metrics.attribution, "health", breaks_once)
    async with scraped() as scrapes:
        await bench.usable(8)
        await scrapes.until(lambda found: len(found) == 8, "eight GPUs after all", "DCGM_FI_DEV_POWER_USAGE")
        [line] = [line for line in scrapes.logs if line["event"].startswith("a part has failed")]
        assert line["part"] == "metrics"
        assert bench.kubelet.allocatable(GPU) == 8
