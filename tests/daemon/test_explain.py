"""`gpuplugin explain` and `gpuplugin report`, as people run them, beside a daemon that is alive."""

import asyncio
import io
import json
import stat
import tarfile
from collections.abc import AsyncIterator

import pytest
import structlog

from gpuplugin.daemon import log_ring, logs
from tests.daemon.conftest import GPU, SOON, Bench
from tests.daemon.explained import RDMA, Lister, listing, own, run


@pytest.fixture
async def lister(bench) -> AsyncIterator[Lister]:
    async with listing(bench) as told:
        yield told


async def until_said(bench: Bench, text: str, *arguments: str) -> str:
    said = ""
    async with asyncio.timeout(SOON):
        while text not in said:
            _, said = await run(bench, *arguments)
    return said


async def test_a_gpu_is_asked_about_by_index_uuid_and_address(bench, lister):
    async with bench.daemon(paths_status=own(bench)):
        await bench.usable(8)
        assert stat.S_IMODE((bench.folder / "own" / "explain.sock").stat().st_mode) == 0o600
        gpu = bench.state.snapshot.gpu(3)
        status, said = await run(bench, "explain", "3")
        assert status == 0
        assert f"GPU 3 ({gpu.uuid}, " in said
        assert "offered, by the device plugin" in said
        assert "1 to be had; free" in said
        assert await run(bench, "explain", gpu.uuid) == (0, said)
        assert await run(bench, "explain", gpu.bus_id) == (0, said)
        bench.state.lose(3)
        said = await until_said(bench, "not offered", "explain", "3")
        assert "Why not\n" in said
        assert f"nvidia-smi --gpu-reset -i {gpu.uuid}" in said
        assert "none to be had" in said
        status, said = await run(bench, "explain", "9")
        assert status == 1
        assert "no GPU is called '9'; there are: 0 (GPU-" in said


async def test_a_pods_gpus_are_explained_with_what_else_was_free(bench, lister):
    async with bench.daemon(paths_status=own(bench)):
        await bench.usable(8)
        await bench.kubelet.admit("four", GPU, 4)
        lister.cpus["four"] = [4, 5, 6]
        status, said = await run(bench, "explain", "team/four")
        assert status == 0
        assert "has GPU 0-3, CPUs 4-6 for itself" in said
        assert "one NVLink island (NV18), NUMA 0" in said
        assert "free now: GPU 4-7" in said
        await bench.kubelet.admit("one", GPU, 1)
        _, said = await run(bench, "explain", "team/one")
        assert "kubelet left GPU 4-7 open" in said
        _, said = await run(bench, "explain", "4")
        assert "held by pod team/one (container main)" in said
        status, said = await run(bench, "explain", "team/none")
        assert status == 1
        assert "gpuplugin explain --gpus N --cpus M" in said


async def test_what_keeps_a_pod_out_is_named_and_who_has_it(bench, lister):
    async with bench.daemon(paths_status=own(bench)):
        await bench.usable(8)
        status, said = await run(bench, "explain", "--gpus", "4", "--cpus", "8", "--nics", "2")
        assert (status, said.partition(":")[0]) == (0, "admitted now")
        await bench.kubelet.admit("four", GPU, 4)
        await bench.kubelet.admit("one", GPU, 1)
        status, said = await run(bench, "explain", "--gpus", "4", "--cpus", "8")
        assert status == 1
        assert "not admitted now: TopologyAffinityError" in said
        assert "NUMA node 1: 3 of 4 nvidia.com/gpu free; pod team/one (container main) has GPU 4" in said
        assert "wait for pod team/" in said
        lister.nics["one"] = ["mlx5_2"]
        status, said = await run(bench, "explain", "--gpus", "1", "--nics", f"{RDMA}=2", "--json")
        answer = json.loads(said)
        assert status == 1
        assert answer["policy"] == "single-numa-node"
        assert {lack["resource"] for lack in answer["fit"]["in_the_way"]} == {GPU, RDMA}
        status, said = await run(bench, "explain", "--gpus", "5")
        assert "never on this node: no NUMA node has 5 nvidia.com/gpu, the most is 4" in said
        lister.pinning = False
        _, said = await run(bench, "explain", "--gpus", "1", "--cpus", "500")
        assert "CPUs are not pinned here" in said


async def test_a_pod_can_be_asked_about_as_kubectl_prints_it(bench, lister):
    def container(name: str, gpus: int) -> dict[str, object]:
        return {"name": name, "resources": {"limits": {GPU: str(gpus), "cpu": "2", "memory": "1Gi"}}}

    pod = {"kind": "Pod", "spec": {"containers": [container("a", 3), container("b", 3), container("c", 2)]}}
    async with bench.daemon(paths_status=own(bench)):
        await bench.usable(8)
        status, said = await run(bench, "explain", "--file", "-", given=json.dumps(pod))
        assert status == 1
        assert "TopologyAffinityError for container c: 2 nvidia.com/gpu, 2 cpu" in said
        assert "its own container" in said


async def test_without_kubelets_word_nothing_is_made_up(bench):
    async with bench.daemon(paths_status=own(bench)):
        await bench.usable(8)
        _, said = await run(bench, "explain", "3")
        assert "who holds it is not known" in said
        for question in (("--gpus", "1", "--policy", "restricted"), ("team/four",)):
            status, said = await run(bench, "explain", *question)
            assert status == 1
            assert "and it does not say" in said


async def test_without_a_daemon_it_is_said_where_to_ask(bench):
    status, said = await run(bench, "explain", "3")
    assert status == 1
    assert "the daemon does not answer at" in said
    assert (await run(bench, "explain"))[0] == 1
    assert "say one thing" in (await run(bench, "explain", "3", "--gpus", "1"))[1]


SECRETS = (
    "hunter2hunter2",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJib2IifQ.c2lnbmF0dXJl",
    "c3VwZXJzZWNyZXQ=",
    "MIIEvQIBADANBg",
)


async def test_a_report_has_what_is_needed_and_no_secret(bench, monkeypatch):
    word, token, basic, key = SECRETS
    monkeypatch.setenv("PASSWORD", word)
    cdi = bench.folder / "cdi"
    cdi.mkdir()
    (cdi / "vendor.json").write_text(json.dumps({"containerEdits": {"env": [f"X={word}"]}}))
    (bench.folder / "users").write_text(f"bob:{word}\n")
    excluded = f"devices:\n  exclude: ['https://bob:{word}@registry', 'token={token}', 'Basic {basic}']\n"
    file = bench.configure(excluded.replace("token=", "Bearer "))
    archive = bench.folder / "report.tar.gz"
    async with bench.daemon(paths_status=own(bench), config_file=file):
        await bench.usable(8)
        pem = f"-----BEGIN PRIVATE KEY-----\\n{key}\\n-----END PRIVATE KEY-----"
        bench.configure(f'{excluded.rstrip()[:-1]}, "{pem}"]\n')
        bench.state.lose(3)
        await bench.usable(7)
        log_ring.keep(None, "warning", {"event": "withdrawn", "reason": f"password={word}", "api_token": token})
        status, said = await run(bench, "report", "--output", str(archive))
        assert status == 0, said
        assert "look through them before" in said
        status, said = await run(bench, "report", "--json")
        assert status == 0
        assert (await run(bench, "report", "--output", str(archive)))[0] == 1  # what is there is not overwritten
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    with tarfile.open(archive) as opened:
        files = {
            member.name.partition("/")[2]: opened.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in opened
        }
    assert files.keys() == json.loads(said).keys()
    everything = "".join(files.values())
    assert [secret for secret in SECRETS if secret in everything or secret in said] == []
    assert "[redacted]" in everything
    assert json.loads(files["inventory.json"])["driver"]["version"] == bench.state.snapshot.driver.version
    assert "# file " in files["config.yaml"] or "config.yaml" in files["config.yaml"]
    assert any(json.loads(line)["event"] == "withdrawn" for line in files["log.jsonl"].splitlines())
    assert '"lost"' in files["health.json"]
    assert "vendor.json" in files["cdi/files.txt"]
    assert "cdi/gpuplugin.io-gpu.json" in files
    assert {"gpuplugin", "python", "kernel", "grpcio"} <= json.loads(files["versions.json"]).keys()


def test_the_newest_lines_of_the_log_are_kept():
    before = structlog.get_config()
    try:
        logs.configure("info", "json", io.StringIO())
        log = structlog.get_logger()
        for number in range(log_ring.LINES + 1):
            log.info("line", number=number)
        log.debug("not written, so not kept")
    finally:
        structlog.configure(**before)
    assert len(log_ring.recent) == log_ring.LINES
    newest = log_ring.recent[-1]
    assert (newest["event"], newest["number"], newest["level"]) == ("line", log_ring.LINES, "info")
    assert "timestamp" in newest


async def test_without_a_daemon_a_report_says_so(bench):
    status, said = await run(bench, "report", "--json")
    assert status == 0
    assert "the daemon does not answer" in json.loads(said)["no-daemon.txt"]
