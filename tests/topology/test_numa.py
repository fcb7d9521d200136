from __future__ import annotations

from gpuplugin.topology.numa import alignment
from tests.topology import machines
from tests.topology.machines import Slot, inventory


def test_each_size_has_the_nodes_that_can_give_it() -> None:
    free = alignment(machines.hgx_h100(), {0, 4, 5, 6})

    assert free.free == ((0, 1), (1, 3))
    assert free.largest == 3
    assert [free.nodes_for(size) for size in (1, 2, 3, 4)] == [(0, 1), (1,), (1,), ()]


def test_a_lost_gpu_is_not_free() -> None:
    assert alignment(machines.without(machines.hgx_h100(), 5), range(4, 8)).free == ((0, 0), (1, 3))


def test_unknown_nodes_are_counted_apart() -> None:
    found = alignment(inventory([Slot(None), Slot(None), Slot(1)]), {0, 1, 2})
    assert (found.free, found.unknown, found.largest) == (((1, 1),), 2, 1)


def test_without_gpus_nothing_is_aligned() -> None:
    assert alignment(inventory([]), ()).largest == 0
