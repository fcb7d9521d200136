"""What `plan.kubelet_hints` says keeps kubelet from starting, against kubelet's own managers."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpuplugin.model.ids import NumaId
from gpuplugin.model.kubelet import KubeletSettings
from gpuplugin.plan.kubelet_hints import hints
from gpuplugin.sim.machine import Machine, load
from tests.alignment.judge import POLICIES
from tests.alignment.node import KubeletError, kubelet, settings
from tests.plan.machine import inventory

pytestmark = pytest.mark.go


def machine(nodes: int) -> Machine:
    flat = load("vm-flat")
    (first,) = flat.numa_nodes
    several = tuple(
        replace(first, id=NumaId(number), cpus=first.cpus[number * 4 : number * 4 + 4], distances=(10,) * nodes)
        for number in range(nodes)
    )
    return replace(flat, numa_nodes=several, memory_gib=(8,) * nodes)


NINE, TWO = machine(9), machine(2)
GOOD = settings(TWO, "restricted")


def refusal(program: Path, on: Machine, folder: Path, wanted: KubeletSettings) -> str:
    """Kubelet's words when it does not start; empty when it does."""
    with kubelet(program) as running:
        try:
            running.start(on, folder, wanted)
        except KubeletError as error:
            return str(error)
    return ""


def errors(on: Machine, wanted: KubeletSettings) -> list[str]:
    looked = replace(inventory(), numa_nodes=on.numa_nodes)
    return [hint.text for hint in hints(wanted, looked) if hint.level == "error"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("on", "changes"),
    [
        (TWO, {}),
        (NINE, {}),
        (NINE, {"topology_options": {"max-allowable-numa-nodes": "9"}}),
        (NINE, {"topology_options": {"max-allowable-numa-nodes": "8"}}),
        (TWO, {"topology_options": {"max-allowable-numa-nodes": "4"}}),
        (TWO, {"topology_options": {"max-allowable-numa-nodes": "many"}}),
        (TWO, {"topology_options": {"prefer-closest-numa-nodes": "true"}}),
        (TWO, {"topology_options": {"prefer-near": "true"}}),
        (TWO, {"topology_scope": "node"}),
        (TWO, {"cpu_policy": "dynamic"}),
        (TWO, {"cpu_policy": "none"}),
        (TWO, {"memory_policy": "none"}),
        (TWO, {"reserved_cpus": (), "reserves_cpu": False}),
        (TWO, {"reserved_cpus": (), "reserves_cpu": False, "cpu_policy": "none"}),
    ],
)
def test_kubelet_starts_exactly_when_no_error_is_told(
    program: Path, tmp_path: Path, policy: str, on: Machine, changes: dict[str, object]
):
    wanted = replace(GOOD, topology_policy=policy, **changes)
    assert bool(refusal(program, on, tmp_path, wanted)) == bool(errors(on, wanted))


def test_no_policy_has_no_bound_on_nodes_and_an_unknown_one_does_not_start(program: Path, tmp_path: Path):
    none, unknown = replace(GOOD, topology_policy="none"), replace(GOOD, topology_policy="strict")
    assert refusal(program, NINE, tmp_path, none) == ""
    assert errors(NINE, none) == []
    assert "unknown policy" in refusal(program, TWO, tmp_path, unknown)
    assert len(errors(TWO, unknown)) == 1


@pytest.mark.parametrize(("before", "after"), [("static", "none"), ("none", "static")])
def test_state_of_another_policy_keeps_kubelet_from_starting(program: Path, tmp_path: Path, before: str, after: str):
    assert refusal(program, TWO, tmp_path, replace(GOOD, cpu_policy=before)) == ""
    assert "differs from state checkpoint policy" in refusal(program, TWO, tmp_path, replace(GOOD, cpu_policy=after))
    (told,) = errors(TWO, replace(GOOD, cpu_policy=after, cpu_state=before))
    assert "cpu_manager_state" in told
