"""What `gpuplugin explain` foretells beside what a real kubelet then does with the pod, at random; and why it did."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gpunode import GPU, GpuNode
from onenode import Cluster, KubeletSettings
from onenode.layout import KUBELET_FOLDER, NODE
from onenode.pods import busybox_pod

from gpuplugin.cli.daemon import STATUS, ask
from gpuplugin.explain.fit import NOT_ALIGNED
from gpuplugin.explain.pod import PodAnswer
from gpuplugin.explain.podfile import pod_object
from gpuplugin.explain.questions import FitAnswer, OfFit, OfPod

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(os.cpu_count() != 2, reason="which CPU is on which NUMA node is known where there are two"),
]

MORE = "GPUPLUGIN_TEST_MORE" in os.environ
PODS = 500 if MORE else 100
"""Of each policy; a pod takes a quarter of a second to a half."""
MOST = 4
"""Pods there at a time."""
PAGES, NODES = "/sys/kernel/mm/hugepages", "/sys/devices/system/node"
SIZE = "hugepages-2048kB"
HUGE_PAGES = f"""\
mount -t tmpfs -o mode=755 tmpfs {PAGES}
mkdir {PAGES}/{SIZE}
echo 64 | tee {PAGES}/{SIZE}/nr_hugepages >{PAGES}/{SIZE}/free_hugepages
for node in node0 node1; do
    mkdir -p {NODES}/$node/hugepages/{SIZE}
    echo 32 | tee {NODES}/$node/hugepages/{SIZE}/nr_hugepages >{NODES}/$node/hugepages/{SIZE}/free_hugepages
done
"""
HUGE, MI = "hugepages-2Mi", 1 << 20


@pytest.fixture
def explained(bare_node: GpuNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuNode]:
    """The node with its daemon, which sees the NUMA nodes of the CPUs as kubelet is shown them, and kubelet's settings.

    It may ask the API server as the cluster's administrator.
    """
    settings = KUBELET_FOLDER / "config.yaml"
    shutil.copy(bare_node.cluster.layout.kubelet_config, settings)
    for node in range(2):
        (bare_node.host.root / f"sys/devices/system/node/node{node}/cpulist").write_text(f"{node}\n")
    own = Path(tempfile.mkdtemp(prefix="gpu"))  # short, since a socket's path is
    monkeypatch.setenv(STATUS, str(own / "status.sock"))
    try:
        bare_node.start_ready(
            GPUPLUGIN_PATHS_STATUS=str(own / "status.sock"),
            NODE_NAME=NODE,
            KUBECONFIG=str(bare_node.cluster.layout.admin_kubeconfig),
        )
        yield bare_node
    finally:
        shutil.rmtree(own)
        settings.unlink()


@pytest.fixture
def with_memory(cluster: Cluster) -> Iterator[None]:
    """A kubelet that keeps memory to NUMA nodes, and is shown huge pages: 64 of 2 Mi, half of them on each.

    They are there on paper alone, and so is the memory of the second node: the pods have an image that is not there, so
    that they are let in, have what they were given, and no container of theirs is ever started.
    """
    cluster.enter("sh", "-euc", HUGE_PAGES)
    reserved = {"reservedMemory": [{"numaNode": 0, "limits": {"memory": "50Mi"}}]}  # what evictionHard keeps
    settings = KubeletSettings(extra={"memoryManagerPolicy": "Static", **reserved})
    try:
        cluster.configure_kubelet(settings)
        yield
    finally:
        cluster.enter("sh", "-euc", f"umount {PAGES}; rm -r {NODES}/node0/hugepages {NODES}/node1/hugepages")


def pod(name: str, gpus: int, **own: int | str) -> dict[str, object]:
    """Bound to the node, so that kubelet has to decide, also where the scheduler would not send it."""
    return busybox_pod(name, limits={GPU: gpus, **own}, nodeName=NODE, terminationGracePeriodSeconds=0)


def idle_pod(name: str, gpus: int, **own: int | str) -> dict[str, object]:
    """The same with an image that is not there."""
    made = pod(name, gpus, **own)
    made["spec"]["containers"][0]["image"] = "localhost/none:1"  # type: ignore[index]
    return made


def some_cpus(chance: random.Random) -> dict[str, int | str]:
    return {"cpu": 1, "memory": "16Mi"} if chance.randrange(2) else {}


def some_memory(chance: random.Random) -> dict[str, int | str]:
    """Of a machine that has some gibibytes on each node."""
    mebibytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MI // 2
    memory = int(mebibytes * chance.choice([0.01, 0.01, 0.1, 0.3, 0.6, 0.8, 1.2]))
    huge = {HUGE: f"{chance.choice([2, 16, 40, 60, 80])}Mi"} if chance.randrange(2) else {}
    return {"cpu": "10m", "memory": f"{memory}Mi", **huge}


def decided(gpus: GpuNode, name: str) -> str:
    """Kubelet's reason for refusing the pod, "" where it was admitted.

    While it decides, the pod already has GPUs by its word, and may yet be refused for want of memory.
    """

    def outcome() -> tuple[str] | None:
        status = gpus.cluster.api.get("Pod", name)["status"]
        if status["phase"] == "Failed":
            return (status["reason"],)
        return ("",) if status.get("containerStatuses") and name in gpus.held() else None

    return gpus.cluster.wait_for(outcome, 60, f"kubelet's decision on {name}")[0]


Followed = tuple[list[str], Counter[str]]
"""What was foretold otherwise than it came, and how many pods were let in, or refused for which reason."""


def follow(gpus: GpuNode, policy: str, more: Callable[[random.Random], dict[str, int | str]] = some_cpus) -> Followed:
    chance = random.Random(policy)
    there: list[str] = []
    wrong: list[str] = []
    tally: Counter[str] = Counter()
    for number in range(PODS):
        while len(there) >= MOST or (there and chance.random() < 0.35):
            gpus.end(there.pop(chance.randrange(len(there))))
        name, own = f"pod-{number}", more(chance)
        count = chance.choice([1, 1, 2, 2, 3, 4, 4, 5, 6, 7, 8] if more is some_cpus else [1, 1, 1, 2, 2, 3, 5])
        wanted = (pod if more is some_cpus else idle_pod)(name, count, **own)
        asked = pod_object(wanted)
        answer = ask(OfFit(asked.containers, policy, pod=asked), FitAnswer)
        gpus.cluster.api.apply(wanted)
        reason = decided(gpus, name)
        tally[reason or "admitted"] += 1
        if (answer.fit.admitted, answer.fit.reason) != (not reason, reason):
            wrong.append(f"{name}: {count} GPUs, {own} beside {there}: {reason or 'admitted'}, foretold {answer}")
        if reason:
            told = ask(OfPod(f"default/{name}"), PodAnswer)
            assert told.refused is not None
            assert told.refused.said.reason == reason
            assert told.refused.now is not None
            gpus.cluster.api.delete("Pod", name, grace=0)
        else:
            there.append(name)
    if there:
        told = ask(OfPod(f"default/{there[-1]}"), PodAnswer)
        assert set(told.containers[0].devices) == gpus.held()[there[-1]]
    return wrong, tally


def test_single_numa_node_decides_as_foretold(explained: GpuNode):
    wrong, tally = follow(explained, "single-numa-node")
    assert not wrong, "\n".join(wrong)
    assert min(tally["admitted"], tally[NOT_ALIGNED]) > PODS // 10


@pytest.mark.kubelet(topology_policy="restricted")
def test_restricted_decides_as_foretold(explained: GpuNode):
    wrong, tally = follow(explained, "restricted")
    assert not wrong, "\n".join(wrong)
    assert min(tally["admitted"], tally[NOT_ALIGNED]) > PODS // 10


def test_memory_and_huge_pages_are_given_as_foretold(with_memory: None, explained: GpuNode):
    wrong, tally = follow(explained, "single-numa-node", some_memory)
    assert not wrong, "\n".join(wrong)
    assert min(tally["admitted"], tally[NOT_ALIGNED]) > PODS // 10


def test_who_has_huge_pages_and_what_the_node_object_says_is_named(with_memory: None, explained: GpuNode):
    for name, size in (("first", "60Mi"), ("second", "20Mi")):
        explained.cluster.api.apply(idle_pod(name, 1, cpu="10m", memory="64Mi", **{HUGE: size}))
        assert decided(explained, name) == ""
    asked = pod_object(pod("third", 1, cpu="10m", memory="64Mi", **{HUGE: "50Mi"}))
    explained.cluster.kubectl("cordon", NODE)
    try:
        answer = ask(OfFit(asked.containers, pod=asked), FitAnswer)
    finally:
        explained.cluster.kubectl("uncordon", NODE)
    assert not answer.fit.admitted
    assert answer.fit.ending == ("pod default/second (container main)",)
    assert {lack.resource for lack in answer.fit.in_the_way} == {HUGE}
    assert f"node {NODE} is cordoned" in {cause.why for cause in answer.node.causes}
    assert set(answer.rests_on) >= {"cpu_manager_state", "memory_manager_state", "the Node object"}


def test_cpus_of_an_init_container_stay_with_its_pod(explained: GpuNode):
    made = pod("keeps", 1, cpu="500m", memory="16Mi")
    spec: dict[str, Any] = made["spec"]  # type: ignore[assignment]
    main = spec["containers"][0]
    first = {**main, "name": "first", "command": ["true"], "resources": {"limits": {"cpu": "1", "memory": "16Mi"}}}
    spec["initContainers"] = [first]
    explained.cluster.api.apply(made)
    explained.cluster.wait_for_phase("keeps", "Running")
    asked = pod_object(pod("after", 1, cpu="1", memory="16Mi"))
    answer = ask(OfFit(asked.containers, pod=asked), FitAnswer)
    explained.cluster.api.apply(pod("after", 1, cpu="1", memory="16Mi"))
    assert (answer.fit.admitted, answer.fit.reason) == (False, decided(explained, "after"))
