"""As test_as_kubelet, with memory and huge pages that kubelet keeps to NUMA nodes, and containers that go first.

What is free is taken from kubelet's own state files, as the daemon takes it.
"""

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gpuplugin.discovery.kubelet_states import read_states
from gpuplugin.discovery.places import Place
from gpuplugin.explain.fit import NOT_ALIGNED, NOT_THERE, Asked, Fit, would_admit
from gpuplugin.explain.memory import Memory
from gpuplugin.explain.owners import Listed, cpu_holders, memory_held
from gpuplugin.explain.stock import CPU, SYSTEM, Stock
from gpuplugin.explain.verdict import Rules
from gpuplugin.topology.affinity import Policy
from tests.alignment import node
from tests.alignment.judge import SCOPES
from tests.alignment.run import Bench

pytestmark = pytest.mark.go

GI, MI = 1 << 30, 1 << 20
MORE = "GPUPLUGIN_TEST_MORE" in os.environ
PODS = 1000 if MORE else 200
HUGE = {"2Mi": (2048, 32), "1Gi": (1 << 20, 16)}
"""Huge pages of each NUMA node: size in KiB, and how many Gi of them there are."""


@dataclass(frozen=True, slots=True)
class NumaNode:
    """cores: the threads of each · memory: bytes."""

    cores: list[list[int]]
    memory: int


def numa_nodes(on: Bench, parts: int) -> list[NumaNode]:
    """The machine's, each in so many parts: the second ones are numbered after all first ones, and have no GPUs."""
    whole = [node.cores(each.cpus) for each in on.machine.numa_nodes]
    return [
        NumaNode(cores[part * len(cores) // parts : (part + 1) * len(cores) // parts], memory * GI // parts)
        for part in range(parts)
        for cores, memory in zip(whole, on.machine.memory_gib, strict=True)
    ]


@contextmanager
def kubelet(on: Bench, nodes: list[NumaNode], policy: str, scope: str) -> Iterator[node.Kubelet]:
    """A kubelet that gives memory out, and 1 Gi of it to the system."""
    reserved = node.hardware(on.machine).reserved
    node.forget(on.folder)
    with node.kubelet(on.program) as running:
        running.ask(
            start={
                "folder": str(on.folder),
                "policy": policy,
                "scope": scope,
                "options": {},
                "cpu_policy": "static",
                "memory_policy": "Static",
                "reserved": ",".join(map(str, sorted(reserved))),
                "reserved_memory": GI,
                "nodes": [
                    {
                        "socket": number % len(on.machine.numa_nodes),
                        "cores": each.cores,
                        "memory": each.memory,
                        "huge_pages": {str(kib): gi * GI // (kib << 10) for kib, gi in HUGE.values()},
                        "distances": [10 if other == number else 21 for other in range(len(nodes))],
                    }
                    for number, each in enumerate(nodes)
                ],
            }
        )
        running.wait(len(on.machine.gpus))
        yield running


@dataclass(frozen=True, slots=True)
class Container:
    """cpu_milli: CPUs of its own where it is whole ones · memory: bytes · huge: bytes by size of page."""

    gpus: int
    cpu_milli: int
    memory: int
    huge: dict[str, int]

    def for_kubelet(self, name: str) -> dict[str, Any]:
        devices = {node.GPU: self.gpus} if self.gpus else {}
        return {
            "name": name,
            "cpu_milli": self.cpu_milli,
            "memory": self.memory,
            "huge_pages": self.huge,
            "devices": devices,
        }

    def asked(self, name: str) -> Asked:
        cpus, rest = divmod(self.cpu_milli, 1000)
        huge = {f"hugepages-{size}": count for size, count in self.huge.items()}
        return Asked(name, {node.GPU: self.gpus, CPU: 0 if rest else cpus, "memory": self.memory, **huge})


def container(chance: random.Random, nodes: list[NumaNode]) -> Container:
    """Small ones mostly, and now and then one that no NUMA node has enough for."""
    cpus, most = sum(map(len, nodes[0].cores)), nodes[0].memory // GI
    milli = chance.randint(1, cpus // 4) * 1000 if chance.random() < 0.8 else chance.randint(1, 9) * 1000 + 500
    memory = chance.choice([1, 4, most // 8, most // 4, most // 4, most // 2, most - 60, most + most // 4]) * GI
    huge = {}
    if chance.random() < 0.4:
        huge["2Mi"] = chance.choice([64 * MI, 4 * GI, 12 * GI, 24 * GI, 40 * GI])
    if chance.random() < 0.2:
        huge["1Gi"] = chance.choice([1, 4, 10, 20]) * GI
    return Container(chance.choice([0, 1, 1, 1, 2, 2, 3, 4, 5]), milli, memory, huge)


def there(on: Bench, nodes: list[NumaNode], given: dict[str, list[str]]) -> tuple[dict[str, Stock], Memory]:
    """What the node has. given: GPUs by pod, of those pods that there are."""
    hardware, states = node.hardware(on.machine), read_states(on.folder, Place(on.folder, "/elsewhere"))
    assert states.cpus is not None
    assert states.memory is not None
    pods = {pod: pod for pod in given}  # the UID is the name here
    listed = Listed({}, {}, {number: each.allocatable for number, each in states.memory.nodes.items()})
    cpus, _ = cpu_holders(states.cpus, listed, pods)
    memory, _ = memory_held(states.memory, listed, pods)
    assert memory is not None
    gpus = {gpu: frozenset({numa}) for gpu, numa in hardware.gpus.items() if numa is not None}
    stocks = {
        node.GPU: Stock(node.GPU, gpus, {gpu: f"pod {pod}" for pod, its in given.items() for gpu in its}),
        CPU: Stock(
            CPU,
            {str(cpu): frozenset({numa}) for numa, own in enumerate(nodes) for core in own.cores for cpu in core},
            {str(cpu): who for cpu, who in cpus.items()},
            {str(cpu): SYSTEM for cpu in hardware.reserved},
        ),
    }
    return stocks, memory


RUNS = [
    *((policy, scope, 1, PODS) for policy in (Policy.SINGLE_NUMA_NODE, Policy.RESTRICTED) for scope in SCOPES),
    *((Policy.BEST_EFFORT, scope, 1, PODS) for scope in SCOPES),
    (Policy.NONE, "container", 1, PODS // 2),
    (Policy.RESTRICTED, "container", 2, PODS // 2),
    (Policy.BEST_EFFORT, "container", 2, PODS // 2),
]


@pytest.mark.parametrize(("policy", "scope", "parts", "pods"), RUNS)
@pytest.mark.parametrize("on", ["hgx-h100"], indirect=True)
def test_what_was_foretold_is_what_kubelet_does(on: Bench, policy: Policy, scope: str, parts: int, pods: int):
    nodes = numa_nodes(on, parts)
    rules = Rules(policy, frozenset(range(len(nodes))), scope == "pod")
    chance = random.Random(f"{policy}/{scope}/{parts}")
    given: dict[str, list[str]] = {}
    wrong: list[tuple[list[Container], Fit, dict[str, Any]]] = []
    unsure: list[tuple[list[Container], Fit, dict[str, Any]]] = []
    tally: Counter[str] = Counter()
    helped = went_first = 0
    with kubelet(on, nodes, policy, scope) as running:
        for number in range(pods):
            while given and chance.random() < 0.4:
                gone = chance.choice(sorted(given))
                running.ask(remove=gone)
                del given[gone]
            pod = [container(chance, nodes) for _ in range(chance.choice([1, 1, 1, 2, 3]))]
            first = [replace(container(chance, nodes), gpus=0)] if chance.random() < 0.15 else []
            stocks, memory = there(on, nodes, given)
            said = would_admit(rules, stocks, [each.asked(f"c{i}") for i, each in enumerate(pod)], memory)
            did = running.ask(
                admit={
                    "uid": f"pod-{number}",
                    "init_containers": [c.for_kubelet(f"init{i}") for i, c in enumerate(first)],
                    "containers": [c.for_kubelet(f"c{i}") for i, c in enumerate(pod)],
                }
            )
            if did["admitted"]:
                given[f"pod-{number}"] = [gpu for each in did["containers"] for gpu in each["devices"]]
            if first:  # what is told of it leaves them out; what they leave to the pod is in the next answers
                went_first += did["admitted"]
                continue
            helped += bool(said.ending) and any(lack.resource != node.GPU for lack in said.in_the_way)
            tally[did["reason"] or "admitted"] += 1
            if (said.admitted, said.reason) != (did["admitted"], did["reason"]):
                doubtful = policy is Policy.BEST_EFFORT and len(pod) > 1  # said with the answer: where they lie matters
                (unsure if doubtful else wrong).append((pod, said, did))
    assert wrong == []
    assert len(unsure) <= pods // 50
    assert tally["admitted"] > pods // 5
    refusals = {NOT_ALIGNED} if rules.strict else {NOT_THERE}
    assert sum(tally[reason] for reason in refusals) > pods // 10
    assert helped > 0
    assert went_first > 0
