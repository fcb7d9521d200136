"""What `gpuplugin explain` looks at beside kubelet's API: state files, the Node, a pod's object, own refusals."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpuplugin.serving import refusals
from gpuplugin.sim.dialled_plugin import Refused
from tests.daemon.conftest import GPU, Bench
from tests.daemon.explained import GI, Lister, api_server, listing, own, run

HUGE = "hugepages-2Mi"
NODE = "/api/v1/nodes/node-1"


@pytest.fixture
async def lister(bench) -> AsyncIterator[Lister]:
    async with listing(bench) as told:
        yield told


@pytest.fixture(autouse=True)
def _nothing_refused() -> None:
    refusals._recent.clear()


def node(**spec: Any) -> dict[str, Any]:
    status = {
        "allocatable": {GPU: "8", "cpu": "95", "memory": "2Ti", HUGE: "16Gi"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"metadata": {"name": "node-1", "labels": {"zone": "a"}}, "spec": spec, "status": status}


def pod(gpus: int, *, name: str = "x", status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    limits = {GPU: str(gpus), "cpu": "2", "memory": "16Gi", HUGE: "4Gi"}
    containers = [{"name": "main", "resources": {"limits": limits}}]
    meta = {"name": name, "namespace": "team"}
    return {"kind": "Pod", "metadata": meta, "spec": {"containers": containers, **spec}, "status": status or {}}


def write_states(bench: Bench, cpus: dict[str, dict[str, str]], memory: dict[str, list[dict[str, Any]]]) -> None:
    """As kubelet writes them. cpus: by UID and container · memory: blocks of container main, by UID."""
    own_cpus = {cpu for entry in cpus.values() for text in entry.values() for cpu in map(int, text.split(","))}
    shared = ",".join(str(cpu) for cpu in range(96) if cpu not in own_cpus)
    state: dict[str, Any] = {"policyName": "static", "defaultCpuSet": shared, "entries": cpus}
    (bench.folder / "cpu_manager_state").write_text(json.dumps(state))
    free = {number: {"memory": 100 * GI, HUGE: 8 * GI} for number in range(2)}
    for blocks in memory.values():
        for block in blocks:
            free[block["numaAffinity"][0]][block["type"]] -= block["size"]
    whole = {"memory": 100 * GI, HUGE: 8 * GI}
    nodes = {
        str(number): {
            "numberOfAssignments": 0 if left == whole else 1,
            "memoryMap": {name: {"allocatable": whole[name], "free": count} for name, count in left.items()},
            "cells": [number],
        }
        for number, left in free.items()
    }
    state = {"policyName": "Static", "machineState": nodes, "entries": {uid: {"main": b} for uid, b in memory.items()}}
    (bench.folder / "memory_manager_state").write_text(json.dumps(state))


def block(kind: str, number: int, size: int) -> dict[str, Any]:
    return {"numaAffinity": [number], "type": kind, "size": size}


async def test_memory_and_huge_pages_in_the_way_are_named_with_who_has_them(bench, lister):
    lister.of_nodes = {"memory": 100 * GI, HUGE: 8 * GI}
    lister.memory = {"a": {("memory", 0): 90 * GI, (HUGE, 0): 6 * GI}, "b": {("memory", 1): 10 * GI, (HUGE, 1): 5 * GI}}
    asked = ("explain", "--gpus", "1", "--cpus", "2", "--memory", "16Gi", "--hugepages", "2Mi=4Gi")
    async with bench.daemon(paths_status=own(bench)):
        await bench.usable(8)
        status, said = await run(bench, *asked)
        assert status == 1
        assert "not admitted now: UnexpectedAdmissionError" in said  # no hint at all refuses nothing; giving it does
        assert "NUMA node 1: 3Gi of 4Gi hugepages-2Mi free; pod team/b (container main) has 5Gi hugepages-2Mi" in said
        assert "memory_manager_state is not seen" in said
        own_a = [block("memory", 0, 90 * GI), block(HUGE, 0, 6 * GI)]
        own_b = [block("memory", 1, 10 * GI), block(HUGE, 1, 5 * GI)]
        write_states(bench, {}, {"uid-a": own_a, "uid-b": own_b, "uid-ended": [block(HUGE, 1, GI)]})
        status, said = await run(bench, *asked)
        assert status == 1
        assert "3Gi of 4Gi hugepages-2Mi free; pod team/b" in said
        assert "memory of a pod that kubelet no longer lists (UID uid-ended)" in said
        assert "from: kubelet's pod-resources API, cpu_manager_state, memory_manager_state" in said
        status, said = await run(bench, *asked[:-1], "2Mi=3Gi", "--json")
        assert (status, json.loads(said)["fit"]["places"]) == (0, [[1]])
        status, said = await run(bench, *asked[:-1], "1Gi=4Gi")
        assert "kubelet has no hugepages-1Gi here; there are: hugepages-2Mi, memory" in said
        assert "such as 2Mi=4Gi" in (await run(bench, *asked[:-1], "2Mi"))[1]
        _, said = await run(bench, "explain", "--gpus", "1", "--cpus", "2")
        assert "none was asked for: say --memory" in said


async def test_cpus_that_init_containers_keep_are_not_free(bench, lister):
    async with bench.daemon(paths_status=own(bench)):
        await bench.usable(8)
        lister.cpus = {"a": [1, 2]}
        many = ",".join(map(str, range(1, 56)))
        write_states(bench, {"uid-a": {"main": "1,2", "init": many}, "uid-b": {"main": "60,61"}}, {})
        status, said = await run(bench, "explain", "--gpus", "4", "--cpus", "41")
        assert status == 1
        assert "pod team/a (container init) has CPUs 3-55" in said
        assert "CPUs 60-61 are still of a pod that kubelet no longer lists (UID uid-b)" in said
        (bench.folder / "cpu_manager_state").write_text("{")
        status, said = await run(bench, "explain", "--gpus", "4", "--cpus", "41")
        assert status == 0
        assert "/var/lib/kubelet/cpu_manager_state: " in said
        assert "CPUs of init containers, which their pod keeps, are not told of" in said
        state = {"policyName": "none", "defaultCpuSet": ""}
        (bench.folder / "cpu_manager_state").write_text(json.dumps(state))
        _, said = await run(bench, "explain", "--gpus", "4", "--cpus", "41")
        assert "cpuManagerPolicy is set to static, and kubelet has last run with none: what it tells now counts" in said


async def test_the_node_object_is_looked_at_once_a_question(bench, lister):
    async with api_server(bench) as (server, settings), bench.daemon(paths_status=own(bench), **settings):
        await bench.usable(8)
        server.put(NODE, node())
        assert server.asked == []
        status, said = await run(bench, "explain", "--gpus", "1")
        assert (status, server.asked) == (0, [NODE])
        assert "the Node object" in said.splitlines()[-1]
        server.put(NODE, node(unschedulable=True, taints=[{"key": "gpu", "effect": "NoSchedule"}]))
        status, said = await run(bench, "explain", "--gpus", "1")
        assert status == 1
        assert "admitted now" in said
        assert "The scheduler would not send it here\nnode node-1 is cordoned" in said
        assert "kubectl uncordon node-1" in said
        assert "the pod has to tolerate gpu:NoSchedule" in said
        status, said = await run(bench, "explain", "0")
        assert (status, said.splitlines()[-1]) == (0, "node node-1 is cordoned")
        status, said = await run(bench, "explain", "--file", "-", given=json.dumps(pod(1, nodeSelector={"zone": "b"})))
        assert "the pod does not tolerate the taint gpu:NoSchedule" in said
        assert "wants zone=b, and this node has zone=a" in said
        status, said = await run(bench, "explain", "--gpus", "9", "--json")
        assert "the Node object has 8 nvidia.com/gpu" in json.loads(said)["node"]["causes"][-1]["why"]
        server.put(NODE, {"kind": "Status", "reason": "Forbidden", "message": "no"}, status=403)
        status, said = await run(bench, "explain", "--gpus", "1")
        assert status == 0
        assert "the Node object was not looked at (cordoned, taints, what is allocatable): " in said
        assert "verbs ['get']" in said


async def test_without_the_api_server_it_is_said_that_the_node_was_not_looked_at(bench, lister):
    async with bench.daemon(paths_status=own(bench)):
        await bench.usable(8)
        assert "was not looked at" in (await run(bench, "explain", "--gpus", "1"))[1]
        assert "node.name is not set" in (await run(bench, "explain", "--gpus", "1"))[1]
        _, said = await run(bench, "explain", "team/x")
        assert "its object cannot be looked at: the daemon has no access to the API server" in said
        assert "gpuplugin explain --file -" in said


REFUSED = {"phase": "Failed", "reason": "TopologyAffinityError", "message": "Resources cannot be allocated"}


async def test_a_refused_pod_is_explained_from_its_object_and_by_what_is_in_the_way_now(bench, lister):
    path = "/api/v1/namespaces/team/pods/x"
    async with api_server(bench) as (server, settings), bench.daemon(paths_status=own(bench), **settings):
        await bench.usable(8)
        await bench.kubelet.admit("four", GPU, 4)
        await bench.kubelet.admit("one", GPU, 1)
        server.put(NODE, node())
        server.put(path, pod(4, status=REFUSED, nodeName="node-1"))
        status, said = await run(bench, "explain", "team/x")
        assert status == 0
        assert "Failed, TopologyAffinityError: Resources cannot be allocated" in said
        assert "kubelet found no NUMA nodes for all that a container asks for" in said
        assert "Such a pod, now\nnot admitted now: TopologyAffinityError" in said
        assert "pod team/one (container main) has GPU 4" in said
        answer = json.loads((await run(bench, "explain", "team/x", "--json"))[1])
        assert answer["refused"]["said"]["reason"] == "TopologyAffinityError"
        assert answer["refused"]["now"]["fit"]["ending"] == ["pod team/one (container main)"]
        given = json.dumps(pod(4, status=REFUSED, nodeName="node-1"))
        _, said = await run(bench, "explain", "--file", "-", given=given)
        assert said.startswith("Pod team/x\nFailed, TopologyAffinityError: Resources cannot be allocated")
        server.put(path, pod(4, status=REFUSED, nodeName="node-2"))
        assert "it was sent to node node-2" in (await run(bench, "explain", "team/x"))[1]
        waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
        server.put(path, pod(4, status={"phase": "Pending", "conditions": [waiting]}))
        _, said = await run(bench, "explain", "team/x")
        assert "Pending, Unschedulable: 0/1 nodes" in said
        assert "no node has it yet" in said
        server.put(path, {"kind": "Status", "reason": "Forbidden", "message": "no"}, status=403)
        status, said = await run(bench, "explain", "team/x")
        assert status == 1
        assert "kubectl get pod … -o json | gpuplugin explain --file -" in said
        status, said = await run(bench, "explain", "team/never")
        assert status == 1
        assert "not found" in said


async def test_what_we_refused_ourselves_is_told_and_is_in_the_report(bench, lister):
    path = "/api/v1/namespaces/team/pods/x"
    async with api_server(bench) as (server, settings), bench.daemon(paths_status=own(bench), **settings):
        await bench.usable(8)
        with pytest.raises(Refused):
            await bench.kubelet._plugin(GPU).allocate(["GPU-none"])
        reason, operation = refusals.recent()[-1].reason, refusals.recent()[-1].operation
        assert "GPU-none" in reason
        assert operation > 0
        refusals.keep("prepare", "team/x-gpu-abc", "GPU-1 is held by another claim")
        refusals.keep("prepare", "team/other", "why")
        message = f"Allocate failed due to rpc error: code = FailedPrecondition desc = {reason}, which is unexpected"
        status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message}
        claims = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "x-gpu-abc"}]}
        server.put(path, pod(1, status=status | claims, nodeName="node-1"))
        _, said = await run(bench, "explain", "team/x")
        ours = said.partition("What we ourselves refused\n")[2].partition("\n\n")[0].splitlines()
        assert [line.partition(", ")[2] for line in ours] == [
            f"Allocate of {GPU} (operation {operation} in the log): {reason}",
            "prepare of team/x-gpu-abc (operation 0 in the log): GPU-1 is held by another claim",
        ]
        _, said = await run(bench, "explain", "team/never")
        assert "What we ourselves refused of late:" in said
        assert f"Allocate of {GPU}: {reason}" in said
        write_states(bench, {"uid-a": {"main": "1,2"}}, {})
        files = json.loads((await run(bench, "report", "--json"))[1])
        assert [each["of"] for each in json.loads(files["refusals.json"])] == [GPU, "team/x-gpu-abc", "team/other"]
        kubelet = json.loads(files["kubelet.json"])
        assert kubelet["cpu_manager_state"]["own"] == {"uid-a/main": [1, 2]}
        assert kubelet["memory_manager_state"]["nodes"]["0"]["allocatable"]["memory"] == 100 * GI
