"""Each fault, brought about on a simulated machine, and what every surface of the whole daemon then says: cell by cell.

GPU 2 is handed out by the device plugin, GPU 6 by claims; both fall ill and recover.
"""

import asyncio
import functools
import urllib.error
import urllib.request
from dataclasses import dataclass
from http import HTTPStatus

import grpc.aio
import pytest
from structlog.testing import capture_logs

import gpuplugin.kube.client
from gpuplugin.daemon.cordon import Cordons
from gpuplugin.discovery import condition
from gpuplugin.discovery.nvml_thread import NvmlThread
from gpuplugin.pb import drahealth_v1_pb2 as v1
from gpuplugin.pb import drahealth_v1_pb2_grpc as v1_rpc
from gpuplugin.pb import podresources_v1_pb2_grpc as pods_rpc
from gpuplugin.plan.faults import FaultKind, Policy, Surface, Told, cells
from tests.daemon.conftest import SOON
from tests.daemon.test_dra import DRIVER, NODE, Claims, PodResources
from tests.daemon.test_node import lines, until
from tests.kube.standin import StandInApi, kubeconfig, refusal

PLUGIN, CLAIMED = 2, 6
EVENTS = "/api/v1/namespaces/default/events/"
RECOVERY_FIELD = "nvmlDeviceGetFieldValues"
ONLY_PROBES = "nvmlDeviceGetCurrentClocksEventReasons"


@dataclass(frozen=True)
class Case:
    """break_: does it to one GPU · mend: undoes it for all · text: what is said."""

    kind: FaultKind
    policy: Policy
    text: str
    break_: object
    mend: object


def field(number):
    return (
        lambda bench, gpu: bench.state.field(gpu, number, 1),
        lambda bench: [bench.state.field(gpu, number, None) for gpu in (PLUGIN, CLAIMED)],
    )


def wish(action):
    return (
        lambda bench, gpu: bench.state.recovery(gpu, action),
        lambda bench: [bench.state.recovery(gpu, 0) for gpu in (PLUGIN, CLAIMED)],
    )


def clocks(bits):
    return (
        lambda bench, gpu: bench.state.clocks(gpu, bits),
        lambda bench: [bench.state.clocks(gpu, 0) for gpu in (PLUGIN, CLAIMED)],
    )


def failing(call):
    return (lambda bench, gpu: bench.state.fail(call, 999, gpu), lambda bench: bench.state.heal())


def cordons(bench):
    return Cordons(bench.folder / "state")


def uuid(bench, index):
    return bench.state.snapshot.gpu(index).uuid


CASES = [
    Case(
        FaultKind.XID,
        Policy.RESET,
        "XID 95: uncontained ECC error; reset the GPU",
        lambda bench, gpu: bench.state.xid(gpu, 95),
        lambda bench: None,
    ),
    Case(
        FaultKind.LOST,
        Policy.RESET,
        "NVML: GPU_IS_LOST: the GPU has fallen off the bus; reset it, or restart the machine",
        lambda bench, gpu: bench.state.lose(gpu),
        lambda bench: [bench.state.restore(gpu) for gpu in (PLUGIN, CLAIMED)],
    ),
    Case(
        FaultKind.HUNG,
        Policy.REBOOT,
        "NVML: no answer within 1 s (probe)",
        lambda bench, gpu: bench.state.hang(ONLY_PROBES, gpu),
        lambda bench: bench.state.heal(),
    ),
    Case(FaultKind.SILENT, Policy.UNHEALTHY, f"NVML: UNKNOWN ({RECOVERY_FIELD})", *failing(RECOVERY_FIELD)),
    Case(FaultKind.UNREADABLE, Policy.UNHEALTHY, "NVML: UNKNOWN (nvmlDeviceGetName)", *failing("nvmlDeviceGetName")),
    Case(FaultKind.RESET_WANTED, Policy.RESET, "the driver asks for: gpu reset", *wish(1)),
    Case(FaultKind.REBOOT_WANTED, Policy.REBOOT, "the driver asks for: node reboot", *wish(2)),
    Case(FaultKind.ACTION_WANTED, Policy.UNHEALTHY, "the driver asks for: drain p2p", *wish(3)),
    Case(
        FaultKind.ECC_UNCORRECTABLE,
        Policy.WARN,
        "uncorrectable memory errors (ECC) since the last reset",
        *field(condition.ECC_UNCORRECTABLE),
    ),
    Case(
        FaultKind.ROW_REMAP_PENDING,
        Policy.WARN,
        "memory rows are to be replaced: reset the GPU when it is free",
        *field(condition.ROWS_PENDING),
    ),
    Case(
        FaultKind.ROW_REMAP_FAILED,
        Policy.RESET,
        "a bad memory row could not be replaced: reset the GPU, and exchange it if it stays",
        *field(condition.ROWS_FAILED),
    ),
    Case(
        FaultKind.NVLINK,
        Policy.WARN,
        "NVLinks are down: 5",
        lambda bench, gpu: bench.state.link(gpu, 5, active=False),
        lambda bench: [bench.state.link(gpu, 5, active=True) for gpu in (PLUGIN, CLAIMED)],
    ),
    Case(
        FaultKind.FABRIC,
        Policy.UNHEALTHY,
        "the NVLink fabric has not been joined yet: is the fabric manager running?",
        lambda bench, gpu: bench.state.fabric(gpu, 2),
        lambda bench: [bench.state.fabric(gpu, 3) for gpu in (PLUGIN, CLAIMED)],
    ),
    Case(FaultKind.THERMAL, Policy.WARN, "clocks are lowered because of heat", *clocks(0x40)),
    Case(FaultKind.POWER_BRAKE, Policy.WARN, "clocks are lowered by the machine's power brake", *clocks(0x80)),
    Case(
        FaultKind.CORDONED,
        Policy.UNHEALTHY,
        "cordoned: coolant leak",
        lambda bench, gpu: cordons(bench).put(uuid(bench, gpu), "coolant leak"),
        lambda bench: [cordons(bench).take_away(uuid(bench, gpu)) for gpu in (PLUGIN, CLAIMED)],
    ),
]


class Surfaces:
    """Everything that the daemon says, and where."""

    def __init__(self, claims, logs):
        self.claims, self.bench, self.api, self.logs = claims, claims.bench, claims.api, logs

    def daemon(self, **flags):
        return self.claims.daemon(
            gpus=uuid(self.bench, CLAIMED),
            events_enabled="true",
            node_health_condition="true",
            metrics_enabled="true",
            metrics_address="127.0.0.1:0",
            metrics_interval_seconds="0.2",
            rescan_seconds="1",
            **flags,
        )

    async def well(self):
        await self.bench.usable(7)
        await self.claims.published(1)
        await until(lambda: self.condition()["reason"] == "AllGpusHealthy", "a condition that says all is well")
        await until(lambda: lines(self.logs, "metrics are served"), "metrics")

    def condition(self):
        found = self.api.objects[f"/api/v1/nodes/{NODE}"].get("status", {}).get("conditions", [{"reason": ""}])
        return found[0]

    def events(self):
        """(type, reason, message) of each, in the order they were written."""
        found = [one for path, one in self.api.objects.items() if path.startswith(EVENTS)]
        return [(one["type"], one["reason"], one["message"]) for one in found]

    async def metric(self):
        """(GPU, fault, policy) of each fault that is shown; None before the first collection."""
        port = lines(self.logs, "metrics are served")[-1]["port"]
        url = f"http://127.0.0.1:{port}/metrics"
        try:
            text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read().decode())
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            return None
        shown = [line for line in text.splitlines() if line.startswith("gpuplugin_gpu_fault_info{")]
        read = [dict(pair.split("=", 1) for pair in line.split("{")[1].split("}")[0].split(",")) for line in shown]
        return {tuple(labels.get(name, "").strip('"') for name in ("gpu", "fault", "policy")) for labels in read}

    async def stream(self):
        """(health, message) of the device of claims, as kubelet hears it."""
        (path,) = (self.bench.folder / "plugins" / DRIVER).glob("gpuplugin-dra-*.sock")
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            call = v1_rpc.DRAResourceHealthStub(channel).NodeWatchResources(v1.NodeWatchResourcesRequest())
            answer = await asyncio.wait_for(call.read(), SOON)
            call.cancel()
        told = {one.device.device_name: (one.health, one.message) for one in answer.devices}
        (name,) = self.claims.devices()
        return told[name]


async def eventually(ask, wanted, what):
    try:
        async with asyncio.timeout(SOON):
            while (found := await ask()) != wanted:
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise TimeoutError(f"{what}: {found!r}, not {wanted!r}") from None


@pytest.fixture
async def surfaces(bench, monkeypatch):
    api = StandInApi()
    api.put(f"/api/v1/nodes/{NODE}", {"metadata": {"name": NODE}})
    real = gpuplugin.kube.client.Kube
    monkeypatch.setattr(gpuplugin.kube.client, "Kube", functools.partial(real, transport=api))
    monkeypatch.setattr("gpuplugin.daemon.condition.SETTLE_SECONDS", 0.05)
    monkeypatch.setattr("gpuplugin.daemon.cordon.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("gpuplugin.daemon.service.NvmlThread", functools.partial(NvmlThread, timeout_seconds=1.0))
    for folder in ("plugins", "plugins_registry", "pods", "pod-resources"):
        (bench.folder / folder).mkdir()
    claims = Claims(bench, api, PodResources())
    claims.settings = {"node_name": NODE, "kubeconfig": str(kubeconfig(bench.folder))}
    lister, server = claims.lister, grpc.aio.server()
    pods_rpc.add_PodResourcesListerServicer_to_server(lister, server)
    server.add_insecure_port(f"unix:{bench.folder}/pod-resources/kubelet.sock")
    await server.start()
    with capture_logs() as logs:
        yield Surfaces(claims, logs)
    await server.stop(None)


@pytest.mark.parametrize("case", CASES, ids=[case.kind.value for case in CASES])
async def test_every_surface_tells_of_it_and_of_its_end(surfaces, case):
    bench, api = surfaces.bench, surfaces.api
    told = cells(Told(case.kind, case.policy, None, case.text, 0.0))
    wish = {Policy.RESET: " (a reset is wanted)", Policy.REBOOT: " (a reboot is wanted)"}.get(case.policy, "")
    messages = {f"GPU {gpu}: {case.text}{wish}" for gpu in (PLUGIN, CLAIMED)}
    quiet = "12" if case.kind is FaultKind.XID else "0.3"  # an XID ends by itself, and not before all have been asked
    async with surfaces.daemon(health_quiet_seconds=quiet):
        await surfaces.well()
        for gpu in (PLUGIN, CLAIMED):
            case.break_(bench, gpu)

        await until(
            lambda: all(message in surfaces.condition()["message"] for message in messages), "both in the condition"
        )
        assert surfaces.condition()["reason"] == told[Surface.CONDITION]
        assert surfaces.condition()["status"] == ("False" if case.policy.withdraws else "True")

        await bench.usable(6 if case.policy.withdraws else 7)
        assert (Surface.DEVICE_PLUGIN in told) is case.policy.withdraws

        await surfaces.claims.published(*((0, 1) if case.policy.withdraws else (1, 0)))
        if case.policy.withdraws:
            (device,) = (
                one for path, one in api.objects.items() if "resourceslices" in path for one in one["spec"]["devices"]
            )
            assert {f"{taint['key']}={taint['value']}" for taint in device["taints"]} == {told[Surface.TAINT]}

        level = v1.UNHEALTHY if case.policy.withdraws else v1.HEALTHY
        await eventually(surfaces.stream, (level, told[Surface.STREAM]), "the stream")

        await until(lambda: len(surfaces.events()) == 2, "an Event each")
        kind, reason = told[Surface.EVENT].split()
        assert set(surfaces.events()) == {(kind, reason, message) for message in messages}

        shown = {(f"{gpu}", told[Surface.METRIC], case.policy.value) for gpu in (PLUGIN, CLAIMED)}
        await eventually(surfaces.metric, shown, "metrics")

        said = lines(surfaces.logs, told[Surface.LOG])
        assert {(line["gpu"], line["reason"]) for line in said} == {(PLUGIN, case.text), (CLAIMED, case.text)}
        assert len(said) == 2, "one reason, one line"
        withdrawn = lines(surfaces.logs, "withdrawn")
        assert [line["reason"] for line in withdrawn] == ([case.text] if case.policy.withdraws else [])
        assert not lines(surfaces.logs, "still withdrawn")

        case.mend(bench)
        await surfaces.well()
        await eventually(surfaces.stream, (v1.HEALTHY, ""), "the stream at the end")
        ended = {("Normal", "GpuFaultEnded", f"ended: {message}") for message in messages}
        await until(lambda: ended <= set(surfaces.events()), "Events of the end")
        await eventually(surfaces.metric, set(), "metrics at the end")
        assert {line["fault"] for line in lines(surfaces.logs, "fault ended")} == {case.kind.value}


def test_every_kind_that_a_gpu_can_have_is_tried():
    assert {case.kind for case in CASES} == set(FaultKind) - {FaultKind.NVML}


async def test_when_nvml_as_a_whole_is_gone_nothing_is_known_anywhere(surfaces):
    bench = surfaces.bench
    async with surfaces.daemon():
        await surfaces.well()
        bench.state.driver(False)
        bench.state.fail("nvmlSystemGetDriverVersion", 1)
        await bench.usable(0)
        await until(lambda: surfaces.condition()["status"] == "Unknown", "an unknown condition")
        assert surfaces.condition()["reason"] == "NvmlUnknown"
        await surfaces.claims.published(0, 1)
        await until(surfaces.events, "an Event")
        assert surfaces.events()[0][:2] == ("Warning", "NvmlUnknown")
        assert (await surfaces.stream())[0] == v1.UNKNOWN
        await eventually(surfaces.metric, {("", "nvml", "unhealthy")}, "metrics")
        said = [line["reason"] for line in lines(surfaces.logs, "the GPUs cannot be looked at: trying again")]
        assert sorted(said) == sorted(set(said)), "each reason once, also where look and probe have one each"
        bench.state.heal()
        bench.state.driver(True)
        await surfaces.well()


async def test_a_gpu_that_falls_off_the_bus_is_withdrawn_once_each_reason_said_once(surfaces):
    bench = surfaces.bench
    async with surfaces.daemon():
        await surfaces.well()
        bench.state.lose(PLUGIN)
        bench.state.xid(PLUGIN, 79)
        await until(lambda: "GPU_IS_LOST" in surfaces.condition()["message"], "the loss")
        await until(lambda: "XID 79" in surfaces.condition()["message"], "the XID")
        bench.state.restore(PLUGIN)
        await surfaces.well()
    assert len(lines(surfaces.logs, "withdrawn")) == 1
    assert len(lines(surfaces.logs, "fault")) == 1
    assert len(lines(surfaces.logs, "XID")) == 1
    assert len(lines(surfaces.logs, "recovered")) == 1


async def test_policies_are_followed(surfaces):
    bench = surfaces.bench
    path = bench.configure("health: {policies: {thermal: unhealthy, powerBrake: ignore, nvlink: reset}}")
    async with surfaces.daemon(config_file=path):
        await surfaces.well()
        bench.state.clocks(PLUGIN, 0x40)
        await bench.usable(6)
        bench.state.clocks(PLUGIN, 0)
        bench.state.clocks(CLAIMED, 0x80)
        await surfaces.well()
        bench.state.link(CLAIMED, 3, active=False)
        await until(lambda: "a reset is wanted" in surfaces.condition()["message"], "the wish for a reset")
        assert "power brake" not in surfaces.condition()["message"]


async def test_nothing_is_written_while_nothing_happens_and_refusals_are_said_once(surfaces):
    async with surfaces.daemon():
        await surfaces.well()
        before = list(surfaces.api.writes)
        await asyncio.sleep(2)
        assert surfaces.api.writes == before
        surfaces.api.fail(lambda: refusal(403, "Forbidden"), times=10**6)
        surfaces.bench.state.lose(PLUGIN)
        surfaces.bench.state.lose(3)
        await surfaces.bench.usable(5)
        await until(lambda: lines(surfaces.logs, "an Event cannot be written"), "the refusal")
    assert len(lines(surfaces.logs, "an Event cannot be written")) == 1
