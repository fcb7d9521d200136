"""Kubelet's own managers, our daemon and random pods: what is admitted is aligned, what is refused had no place."""

import os

import pytest

from tests.alignment.judge import BEST_EFFORT, NOT_ALIGNED, POLICIES, RESTRICTED, SCOPES, SINGLE
from tests.alignment.pods import Container, Pod
from tests.alignment.run import Bench

pytestmark = pytest.mark.go

MORE = "GPUPLUGIN_TEST_MORE" in os.environ
PODS = 1000 if MORE else 100
MACHINES = ("hgx-h100", "dgx-a100", "vm-flat", *(["dgx-1v", "a100-pcie-4"] if MORE else []))


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("on", MACHINES, indirect=True)
def test_every_pod_is_aligned_or_had_no_place(on: Bench, policy: str, scope: str):
    result = on.run(policy, scope, PODS)
    assert result.disagreements == []
    assert result.tally["admitted"] > PODS // 5
    assert sum(result.tally.values()) - result.tally["admitted"] > PODS // 5


@pytest.mark.parametrize("policy", [RESTRICTED, BEST_EFFORT])
@pytest.mark.parametrize("on", ["dgx-a100"], indirect=True)
def test_promise_is_the_same_when_kubelet_prefers_near_nodes(on: Bench, policy: str):
    result = on.run(policy, "pod", PODS, options={"prefer-closest-numa-nodes": "true"})
    assert result.disagreements == []


@pytest.mark.parametrize(
    ("policy", "asked", "reason"),
    [
        (RESTRICTED, Container(3, 4000), NOT_ALIGNED),  # GPUs need two NUMA nodes, CPUs one
        (RESTRICTED, Container(3, 40000), ""),  # two, two
        (RESTRICTED, Container(3, 4500), ""),  # no CPUs of its own
        (BEST_EFFORT, Container(3, 4000), ""),
        (SINGLE, Container(3, 4000), NOT_ALIGNED),
        (SINGLE, Container(2, 4000), ""),
    ],
)
@pytest.mark.parametrize("on", ["dgx-a100"], indirect=True)
def test_what_an_empty_machine_admits(on: Bench, policy: str, asked: Container, reason: str):
    with on.kubelet(policy, "container") as running:
        outcome, _ = running.admit(Pod("pod", (asked,)))
    assert outcome.reason == reason
