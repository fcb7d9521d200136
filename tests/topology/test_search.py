from __future__ import annotations

from gpuplugin.topology.graph import Graph, positions
from gpuplugin.topology.score import Score
from gpuplugin.topology.search import good_set
from tests.topology.machines import Slot, inventory


def test_an_exchange_mends_a_first_step_that_misled() -> None:
    """From 0 the next best is 1, but the best three are 0, 2 and 3."""
    score = Score(Graph.of(inventory([Slot()] * 4, direct={(0, 1): 3, (0, 2): 2, (0, 3): 2, (2, 3): 4})))

    assert positions(good_set(score, 0b1111, 0b0001, 3, ())) == (0, 2, 3)
    assert positions(good_set(score, 0b1111, 0b0011, 3, ())) == (0, 1, 2)


def test_each_class_starts_at_its_lowest_free_gpu() -> None:
    score = Score(Graph.of(inventory([Slot()] * 4)))

    assert positions(good_set(score, 0b1100, 0, 1, [(0, 1, 2, 3)])) == (2,)
