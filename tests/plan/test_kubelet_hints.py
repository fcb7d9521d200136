from dataclasses import replace

import pytest

from gpuplugin.model.ids import NumaId
from gpuplugin.model.inventory import Inventory, NumaNode
from gpuplugin.model.kubelet import KubeletSettings
from gpuplugin.plan.kubelet_hints import hints
from tests.plan import machine

SILENT = KubeletSettings("best-effort", "container", cpu_policy="static", memory_policy="Static", reserves_cpu=True)
STRICT = replace(SILENT, topology_policy="single-numa-node")


def node(number: int, *distances: int, cpus: int = 4) -> NumaNode:
    return NumaNode(NumaId(number), tuple(range(number * 4, number * 4 + cpus)), distances)


TWO_NODES = (node(0, 10, 21), node(1, 21, 10))
FOUR_NODES = tuple(
    node(number, *[10 if number == other else 12 if number // 2 == other // 2 else 32 for other in range(4)])
    for number in range(4)
)
NINE_NODES = tuple(node(number) for number in range(9))


def inventory(*numa: int | None, nodes: tuple[NumaNode, ...] = TWO_NODES) -> Inventory:
    """One GPU for each NUMA node named."""
    gpus = [machine.gpu(index, numa=place) for index, place in enumerate(numa)]
    return replace(machine.inventory(*gpus), numa_nodes=nodes)


def but(**changes: object) -> KubeletSettings:
    return replace(SILENT, **changes)


def said(settings: KubeletSettings, where: Inventory) -> list[str]:
    return [f"{hint.level}: {hint.text}" for hint in hints(settings, where)]


ON_TWO, ON_ONE = inventory(0, 0, 1, 1), inventory(0, 0, nodes=(node(0, 10),))


@pytest.mark.parametrize("where", [ON_TWO, inventory(0, 1, nodes=NINE_NODES), inventory(None), ON_ONE])
def test_nothing_is_said_when_nothing_is_known(where: Inventory):
    assert said(KubeletSettings(), where) == []


def test_nothing_is_said_when_all_is_well():
    assert said(SILENT, ON_TWO) == []


@pytest.mark.parametrize(
    ("settings", "where", "words"),
    [
        (but(topology_policy="strict"), ON_TWO, "error: …topologyManagerPolicy: 'strict'; allowed: none, best-effort,"),
        (but(topology_scope="node"), ON_TWO, "error: …topologyManagerScope: 'node'; allowed: container, pod"),
        (but(memory_policy="static"), ON_TWO, "error: …memoryManagerPolicy: 'static'; allowed: None, Static"),
        (but(topology_options={"near": "1"}), ON_TWO, "error: …topologyManagerPolicyOptions.near; allowed: prefer-"),
        (
            SILENT,
            inventory(0, nodes=NINE_NODES),
            'error: …9 NUMA nodes where it takes 8. Set …max-allowable-numa-nodes: "9"',
        ),
        (but(topology_options={"max-allowable-numa-nodes": "4"}), ON_TWO, "error: …'4'; allowed: a number, 8 or more"),
        (but(reserves_cpu=False), ON_TWO, "error: …static needs CPU set aside…Set reservedSystemCPUs"),
        (
            replace(STRICT, cpu_options={"align-by-socket": "true"}),
            ON_TWO,
            "error: …align-by-socket …exclude each other. Remove",
        ),
        (but(cpu_state="none"), ON_TWO, "error: …cpuManagerPolicy is static, …cpu_manager_state …under none. Drain"),
        (but(memory_state="None"), ON_TWO, "error: …memoryManagerPolicy is Static, …memory_manager_state …under None."),
        (but(topology_policy="none"), ON_TWO, "warning: topologyManagerPolicy is none: …Set it to best-effort"),
        (
            SILENT,
            inventory(None, None),
            "warning: …best-effort, but the kernel ties no GPU to a NUMA node (numa_node is -1)",
        ),
        (SILENT, inventory(0, None), "warning: …ties GPU 1 to no NUMA node, so kubelet takes them last"),
        (but(cpu_policy="none"), ON_TWO, "warning: …cpuManagerPolicy is none…Set cpuManagerPolicy: static"),
        (but(cpu_policy=None, cpu_state="none"), ON_TWO, "warning: …cpuManagerPolicy is none"),
        (
            but(reserved_cpus=(4, 5, 6, 7)),
            ON_TWO,
            "warning: no container can have CPUs near GPU 2, 3: …NUMA node 1. Reserve",
        ),
        (SILENT, inventory(1, nodes=(node(0), node(1, cpus=0))), "warning: …near GPU 0: NUMA node 1 has no CPUs"),
        (SILENT, inventory(0, nodes=FOUR_NODES), 'warning: …(distances 12, 32), …prefer-closest-numa-nodes: "true"'),
        (SILENT, ON_ONE, "info: …one NUMA node: there is nothing to align"),
        (STRICT, ON_TWO, "info: single-numa-node: no container of more than 2 GPUs is ever admitted"),
        (
            replace(STRICT, topology_scope="pod"),
            inventory(0, 1),
            "info: single-numa-node: no pod of more than 1 GPU is ever",
        ),
        (but(topology_policy="restricted"), ON_TWO, "info: restricted: a container of more than 2 GPUs that has CPUs"),
    ],
)
def test_each_thing_is_said_with_what_to_do(settings: KubeletSettings, where: Inventory, words: str):
    first = said(settings, where)[0]
    position = 0
    for part in words.split("…"):
        assert part in first[position:]
        position = first.index(part, position) + len(part)


def test_memory_that_is_not_held_is_a_consequence_of_strict_policies_alone():
    assert any("memoryManagerPolicy is None" in text for text in said(replace(STRICT, memory_policy="None"), ON_TWO))
    assert said(but(memory_policy="None"), ON_TWO) == []


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        (but(topology_options={"max-allowable-numa-nodes": "9"}), inventory(0, nodes=NINE_NODES)),
        (but(topology_policy="none"), inventory(0, nodes=NINE_NODES[:1])),
        (but(topology_options={"prefer-closest-numa-nodes": "true"}), inventory(0, nodes=FOUR_NODES)),
        (but(cpu_options={"align-by-socket": "true"}), ON_TWO),
        (but(reserved_cpus=(0, 4)), ON_TWO),
        (but(cpu_state="static", memory_state="Static"), ON_TWO),
        (STRICT, inventory(0, 0)),
    ],
)
def test_nothing_is_said_of_what_does_no_harm(settings: KubeletSettings, where: Inventory):
    assert said(settings, where) == []


def test_worst_comes_first():
    many = replace(STRICT, cpu_policy="none", cpu_state="static", memory_policy="None")
    levels = [text.partition(":")[0] for text in said(many, ON_TWO)]
    assert levels == ["error", "warning", "info", "info"]
