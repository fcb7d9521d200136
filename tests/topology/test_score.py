from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuplugin.model.inventory import Inventory
from gpuplugin.topology.graph import Graph
from gpuplugin.topology.score import Score, interchangeable
from tests.topology import machines
from tests.topology.machines import Slot, inventory

ALONE = [Slot(0, f"pci0000:1{i}", 0) for i in range(4)]


def classes(machine: Inventory) -> tuple[tuple[int, ...], ...]:
    graph = Graph.of(machine)
    return interchangeable(graph, Score(graph))


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (machines.hgx_h100, ((0, 1, 2, 3), (4, 5, 6, 7))),
        (machines.dgx_a100, ((0, 1), (2, 3), (4, 5), (6, 7))),
        (machines.bridged_pairs, ((0, 1), (2, 3), (4, 5), (6, 7))),
        (machines.dgx1_volta, tuple((i,) for i in range(8))),
    ],
)
def test_gpus_that_can_be_swapped(made: Callable[[], Inventory], expected: tuple[tuple[int, ...], ...]) -> None:
    assert classes(made()) == expected


def test_gpus_each_alone_in_a_numa_node_can_be_swapped() -> None:
    assert classes(inventory([Slot(i, f"pci0000:1{i}") for i in range(4)])) == ((0, 1, 2, 3),)


def test_a_nic_tells_gpus_apart() -> None:
    assert classes(inventory(ALONE, nics=[ALONE[1], ALONE[3]])) == ((0, 2), (1, 3))


def test_a_switch_tells_gpus_apart() -> None:
    assert classes(inventory([*ALONE[:2], Slot(0, "pci0000:20")])) == ((0, 1), (2,))


def test_a_numa_node_tells_gpus_apart() -> None:
    assert classes(inventory([Slot(0), Slot(None)])) == ((0,), (1,))


def test_what_is_left_over_is_least_broken_when_it_lies_together() -> None:
    score = Score(Graph.of(machines.dgx_a100()))
    assert score.left_over(0b1111) < score.left_over(0b10111) < score.left_over(0b110011)
    assert score.left_over(0b0011) < score.left_over(0b0101)
