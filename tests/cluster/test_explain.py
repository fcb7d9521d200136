"""What `gpuplugin explain` foretells beside what a real kubelet then does with the pod, at random."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpunode import GPU, GpuNode
from onenode.layout import NODE
from onenode.pods import busybox_pod

from gpuplugin.cli.daemon import STATUS, ask
from gpuplugin.explain.fit import NOT_ALIGNED, Asked
from gpuplugin.explain.pod import PodAnswer
from gpuplugin.explain.questions import FitAnswer, OfFit, OfPod
from gpuplugin.explain.stock import CPU

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(os.cpu_count() != 2, reason="which CPU is on which NUMA node is known where there are two"),
]

MORE = "GPUPLUGIN_TEST_MORE" in os.environ
PODS = 500 if MORE else 100
"""Of each policy; a pod takes a quarter of a second to a half."""
MOST = 4
"""Pods there at a time."""


@pytest.fixture
def explained(bare_node: GpuNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuNode]:
    """The node with its daemon, which sees the NUMA nodes of the CPUs as kubelet is shown them."""
    for node in range(2):
        (bare_node.host.root / f"sys/devices/system/node/node{node}/cpulist").write_text(f"{node}\n")
    own = Path(tempfile.mkdtemp(prefix="gpu"))  # short, since a socket's path is
    monkeypatch.setenv(STATUS, str(own / "status.sock"))
    bare_node.start_ready(GPUPLUGIN_PATHS_STATUS=str(own / "status.sock"))
    yield bare_node
    shutil.rmtree(own)


def pod(name: str, gpus: int, cpus: int) -> dict[str, object]:
    """Bound to the node, so that kubelet has to decide, also where the scheduler would not send it."""
    own = {"cpu": cpus, "memory": "16Mi"} if cpus else {}
    return busybox_pod(name, limits={GPU: gpus, **own}, nodeName=NODE, terminationGracePeriodSeconds=0)


def decided(gpus: GpuNode, name: str) -> str:
    """Kubelet's reason for refusing the pod, "" where it was admitted."""

    def outcome() -> tuple[str] | None:
        status = gpus.cluster.api.get("Pod", name)["status"]
        if status["phase"] == "Failed":
            return (status["reason"],)
        return ("",) if name in gpus.held() else None

    return gpus.cluster.wait_for(outcome, 60, f"kubelet's decision on {name}")[0]


def follow(gpus: GpuNode, policy: str) -> tuple[list[str], Counter[str]]:
    chance = random.Random(policy)
    there: list[str] = []
    wrong: list[str] = []
    tally: Counter[str] = Counter()
    for number in range(PODS):
        while len(there) >= MOST or (there and chance.random() < 0.35):
            gpus.end(there.pop(chance.randrange(len(there))))
        name, count, cpus = f"pod-{number}", chance.choice([1, 1, 2, 2, 3, 4, 4, 5, 6, 7, 8]), chance.randrange(2)
        answer = ask(OfFit((Asked("main", {GPU: count, CPU: cpus}),), policy), FitAnswer)
        gpus.cluster.api.apply(pod(name, count, cpus))
        reason = decided(gpus, name)
        tally[reason or "admitted"] += 1
        if (answer.fit.admitted, answer.fit.reason) != (not reason, reason):
            wrong.append(f"{count} GPUs, {cpus} CPUs beside {there}: {reason or 'admitted'}, foretold {answer.fit}")
        if reason:
            gpus.cluster.api.delete("Pod", name, grace=0)
        else:
            there.append(name)
    if there:
        told = ask(OfPod(f"default/{there[-1]}"), PodAnswer)
        assert set(told.containers[0].devices) == gpus.held()[there[-1]]
    return wrong, tally


def test_single_numa_node_decides_as_foretold(explained: GpuNode):
    wrong, tally = follow(explained, "single-numa-node")
    assert wrong == []
    assert min(tally["admitted"], tally[NOT_ALIGNED]) > PODS // 10


@pytest.mark.kubelet(topology_policy="restricted")
def test_restricted_decides_as_foretold(explained: GpuNode):
    wrong, tally = follow(explained, "restricted")
    assert wrong == []
    assert min(tally["admitted"], tally[NOT_ALIGNED]) > PODS // 10
