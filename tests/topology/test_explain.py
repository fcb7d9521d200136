from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuplugin.model.inventory import Inventory
from gpuplugin.model.links import PcieLevel
from gpuplugin.topology.explain import WeakestPair, explain, ranges
from gpuplugin.topology.graph import Graph, mask_of
from tests.topology import machines
from tests.topology.machines import Slot, inventory


@pytest.mark.parametrize(
    ("machine", "chosen", "said"),
    [
        (
            machines.hgx_h100,
            (0, 1, 2, 3),
            "4 GPUs (0-3), one NVLink island (NV18), NUMA 0, NICs mlx5_0-3; GPUs 4-7 kept whole",
        ),
        (
            machines.bridged_pairs,
            (0, 1, 4),
            "3 GPUs (0-1,4), 2 NVLink islands (NV12), PCIe SYS at the farthest, NUMA 0-1; GPUs 2-3 and 6-7 kept whole",
        ),
        (
            machines.dgx1_volta,
            (0, 1, 2, 3),
            "4 GPUs (0-3), one NVLink island (NV1 to NV2), NUMA 0; GPUs 4-7 kept whole",
        ),
        (
            machines.plain_pcie,
            (0, 1),
            "2 GPUs (0-1), no NVLink, PCIe PIX at the farthest, NUMA 0, NIC mlx5_0; GPUs 2-3 and 4-7 kept whole",
        ),
        (machines.rtx8000, (2,), "1 GPU (2), NUMA 1; GPUs 0-1 and 0,3 kept whole"),
    ],
)
def test_one_line_for_people(machine: Callable[[], Inventory], chosen: tuple[int, ...], said: str) -> None:
    graph = Graph.of(machine())
    everyone = mask_of(range(len(graph.labels)))
    assert str(explain(graph, mask_of(chosen), everyone)) == said


def test_the_facts_behind_the_line() -> None:
    reasons = explain(Graph.of(machines.dgx1_volta()), mask_of((0, 1, 6)), mask_of((0, 1, 4, 5, 6)))

    assert reasons.islands == ((0, 1), (6,))
    assert reasons.nvlinks == 1
    assert reasons.weakest == WeakestPair(0, 6, 0, PcieLevel.SYS)
    assert reasons.numa == (0, 1)
    assert len(reasons.switches) == 2
    assert reasons.kept == ((4, 5),)


def test_gpus_are_named_by_nvml_index_not_by_place() -> None:
    machine = inventory([Slot()] * 2)
    later = replace(machine, gpus=tuple(replace(gpu, index=gpu.index + 3) for gpu in machine.gpus))
    assert str(explain(Graph.of(later), 0b10, 0b10)) == "1 GPU (4), NUMA 0"


def test_a_set_that_may_not_be_the_best_says_so() -> None:
    text = str(explain(Graph.of(inventory([Slot(None)])), 1, 1, exact=False))
    assert text == "1 GPU (0); too many sets to be sure that none is better"


def test_nothing_chosen_has_no_weakest_pair() -> None:
    assert explain(Graph.of(inventory([Slot()])), 0, 1).weakest is None


@pytest.mark.parametrize(
    ("numbers", "text"), [((), ""), ((4,), "4"), ((0, 1), "0-1"), ((0, 1, 2, 5, 7, 8), "0-2,5,7-8")]
)
def test_ranges(numbers: tuple[int, ...], text: str) -> None:
    assert ranges(numbers) == text
