"""The answer to "would it be admitted?" beside what kubelet's own managers then do, for random pods and faults."""

import os
from collections import Counter

import pytest

from gpuplugin.explain.fit import NOT_ALIGNED, Asked, Fit, would_admit
from gpuplugin.explain.stock import CPU, SYSTEM, Stock
from gpuplugin.explain.verdict import Rules
from gpuplugin.topology.affinity import Policy
from tests.alignment import node
from tests.alignment.judge import BEST_EFFORT, POLICIES, SCOPES, Hardware, Outcome
from tests.alignment.pods import Arrives, Leaves, Pod, Recovers, Sickens, events
from tests.alignment.run import Bench

pytestmark = pytest.mark.go

MORE = "GPUPLUGIN_TEST_MORE" in os.environ
PODS = 1000 if MORE else 200
MACHINES = ["hgx-h100", *(["dgx-a100", "vm-flat"] if MORE else [])]


def stocks(hardware: Hardware, pods: dict[str, Outcome], sick: set[str]) -> dict[str, Stock]:
    gpus = {gpu: frozenset() if numa is None else frozenset({numa}) for gpu, numa in hardware.gpus.items()}
    cpus = {str(cpu): frozenset({numa}) for cpu, numa in hardware.cpus.items()}
    given = [(f"pod {name}", each) for name, outcome in pods.items() for each in outcome.given]
    return {
        node.GPU: Stock(
            node.GPU, gpus, {gpu: who for who, each in given for gpu in each.gpus}, dict.fromkeys(sick, "lost")
        ),
        CPU: Stock(
            CPU,
            cpus,
            {str(cpu): who for who, each in given for cpu in each.cpus},
            {str(cpu): SYSTEM for cpu in hardware.reserved},
        ),
    }


def asked(pod: Pod) -> list[Asked]:
    return [Asked(f"c{i}", {node.GPU: each.gpus, CPU: each.cpus}) for i, each in enumerate(pod.containers)]


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("on", MACHINES, indirect=True)
def test_what_was_foretold_is_what_kubelet_does(on: Bench, policy: str, scope: str):
    hardware, gpus = node.hardware(on.machine), [gpu.record.uuid for gpu in on.machine.gpus]
    rules = Rules(Policy(policy), frozenset(hardware.cpus.values()), scope == "pod")
    there: dict[str, Outcome] = {}
    sick: list[int] = []
    wrong: list[tuple[Pod, Fit, Outcome]] = []
    tally: Counter[str] = Counter()
    with on.kubelet(policy, scope) as kubelet:
        try:
            for event in events(on.machine, PODS, "explain"):
                match event:
                    case Arrives(pod):
                        said = would_admit(rules, stocks(hardware, there, {gpus[i] for i in sick}), asked(pod))
                        outcome, _ = kubelet.admit(pod)
                        tally[outcome.reason or "admitted"] += 1
                        if (said.admitted, said.reason) != (outcome.admitted, outcome.reason):
                            wrong.append((pod, said, outcome))
                        if outcome.admitted:
                            there[pod.name] = outcome
                    case Leaves(pick) if there:
                        name = list(there)[pick % len(there)]
                        kubelet.remove(name)
                        del there[name]
                    case Sickens(gpu) if gpu not in sick:
                        sick.append(gpu)
                        on.state.lose(gpu)
                        kubelet.wait(len(gpus) - len(sick))
                    case Recovers() if sick:
                        on.state.restore(sick.pop(0))
                        kubelet.wait(len(gpus) - len(sick))
        finally:
            for gpu in sick:
                on.state.restore(gpu)
    assert wrong == []
    assert tally["admitted"] > PODS // 5
    if policy != BEST_EFFORT:
        assert tally[NOT_ALIGNED] > PODS // 10
