from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest

from gpuplugin.model.inventory import Inventory
from gpuplugin.topology.allocate import Tables
from gpuplugin.topology.graph import Graph, mask_of, positions
from tests.topology import machines
from tests.topology.machines import MACHINES, Slot, inventory, without


def chosen(machine: Inventory, size: int, *, free: str | None = None, must: str = "") -> tuple[int, ...]:
    """`free` and `must`: positions as hex digits, all free when None."""
    everyone = (1 << len(machine.gpus)) - 1
    available = everyone if free is None else mask_of(int(digit, 16) for digit in free)
    return positions(Tables.build(machine).choose(available, mask_of(int(digit, 16) for digit in must), size))


@pytest.mark.parametrize("name", MACHINES)
def test_every_size_gets_as_many_as_asked(name: str) -> None:
    tables = Tables.build(MACHINES[name]())
    gpus = len(tables.graph.labels)
    for size in range(gpus + 1):
        assert tables.choose((1 << gpus) - 1, 0, size).bit_count() == size


@pytest.mark.parametrize(
    ("machine", "size", "free", "expected"),
    [
        pytest.param(machines.hgx_h100, 3, None, (0, 1, 2), id="three stay in one NUMA node"),
        pytest.param(machines.hgx_h100, 3, "0156", (0, 1, 5), id="unless no node has three"),
        pytest.param(machines.hgx_h100, 3, "014567", (4, 5, 6), id="the node that has three"),
        pytest.param(machines.hgx_h100, 2, "014567", (0, 1), id="two from the broken node, the whole one is kept"),
        pytest.param(machines.hgx_h100, 1, "024567", (0,), id="one from the broken node"),
        pytest.param(machines.hgx_h100, 1, "01234567", (0,), id="all alike: the lowest"),
        pytest.param(machines.dgx_a100, 2, "134567", (4, 5), id="one switch before a broken pair"),
        pytest.param(machines.dgx_a100, 1, "134567", (1,), id="one from a broken pair, in the broken node"),
        pytest.param(machines.dgx_a100, 3, "0134567", (0, 1, 3), id="three that just fit, the whole node is kept"),
        pytest.param(machines.bridged_pairs, 2, "123", (2, 3), id="a bridge before the lowest"),
        pytest.param(machines.bridged_pairs, 4, "012345", (0, 1, 2, 3), id="two bridges in one node"),
        pytest.param(machines.bridged_pairs, 4, "013457", (0, 1, 4, 5), id="two bridges across nodes before none"),
        pytest.param(machines.bridged_pairs, 1, "0123457", (7,), id="one from a broken bridge"),
        pytest.param(machines.plain_pcie, 2, "234567", (4, 5), id="two at a switch with a NIC"),
        pytest.param(machines.plain_pcie, 1, None, (0,), id="one near a NIC"),
        pytest.param(machines.plain_pcie, 1, "234567", (4,), id="a NIC before what is left over"),
        pytest.param(machines.rtx8000, 2, None, (0, 3), id="a bridge across the sockets"),
        pytest.param(machines.rtx8000, 1, "123", (3,), id="the one without its mate"),
        pytest.param(machines.dgx1_volta, 4, "01234567", (0, 1, 2, 3), id="one quad"),
        pytest.param(machines.dgx2, 8, "123456789abcdef", (8, 9, 10, 11, 12, 13, 14, 15), id="the whole node of two"),
    ],
)
def test_choice(machine: Callable[[], Inventory], size: int, free: str | None, expected: tuple[int, ...]) -> None:
    assert chosen(machine(), size, free=free) == expected


def test_devices_that_must_be_included_pull_the_rest_to_them() -> None:
    assert chosen(machines.hgx_h100(), 3, must="6") == (4, 5, 6)
    assert chosen(machines.bridged_pairs(), 2, must="5") == (4, 5)
    assert chosen(machines.bridged_pairs(), 2, must="05") == (0, 5)


def test_a_link_by_way_of_a_gpu_outside_the_set_does_not_join_it() -> None:
    chain = inventory([Slot()] * 4, direct={(0, 1): 1, (1, 2): 4, (2, 3): 1})
    assert chosen(chain, 2, free="023") == (2, 3)
    assert chosen(chain, 3, free="0123") == (0, 1, 2)


def test_a_link_that_only_one_end_reports_is_none() -> None:
    one_sided = inventory([Slot()] * 3, direct={(0, 1): 4, (1, 0): 0, (1, 2): 1})
    assert chosen(one_sided, 2) == (1, 2)


def test_a_lost_gpu_is_left_out_unless_it_must_be_included() -> None:
    machine = without(machines.hgx_h100(), 1)
    assert chosen(machine, 4) == (4, 5, 6, 7)
    assert chosen(machine, 2, must="1") == (0, 1)
    with pytest.raises(ValueError, match="no set of 8"):
        chosen(machine, 8)


@pytest.mark.parametrize(("free", "must", "size"), [("012", "3", 2), ("012", "01", 1), ("012", "", 4), ("012", "", -1)])
def test_what_cannot_be_met_is_refused(free: str, must: str, size: int) -> None:
    with pytest.raises(ValueError, match=f"no set of {size}"):
        chosen(machines.hgx_h100(), size, free=free, must=must)


def test_a_near_numa_node_comes_before_a_far_one() -> None:
    quarters = {0: (10, 12, 32, 32), 1: (12, 10, 32, 32), 2: (32, 32, 10, 12), 3: (32, 32, 12, 10)}
    machine = inventory([Slot(node, f"pci0000:1{node}") for node in (0, 2, 1, 3)], distances=quarters)
    assert chosen(machine, 2) == (0, 2)
    assert chosen(machine, 2, free="012") == (0, 2)
    assert chosen(machine, 2, free="123") == (1, 3)


def test_gpus_of_known_numa_nodes_come_before_unknown_ones() -> None:
    machine = inventory([Slot(None), Slot(0), Slot(0), Slot(1)], distances=machines.TWO_SOCKETS)
    assert chosen(machine, 2) == (1, 2)


def test_a_nic_of_its_own_decides_between_gpus_that_are_alike_otherwise() -> None:
    alone = [Slot(0, f"pci0000:1{i}", 0) for i in range(4)]
    machine = inventory(alone, nics=[alone[1], alone[3]])
    assert chosen(machine, 1) == (1,)
    assert chosen(machine, 3) == (0, 1, 3)


def test_without_any_facts_the_lowest_are_chosen() -> None:
    machine = inventory([Slot(None)] * 5)
    assert chosen(machine, 3) == (0, 1, 2)
    assert chosen(machine, 2, free="134") == (1, 3)


def test_no_gpus_make_empty_tables() -> None:
    assert Tables.build(inventory([])).choose(0, 0, 0) == 0


def test_tables_are_taken_over_when_only_a_fault_is_new() -> None:
    before = Tables.build(machines.hgx_h100())
    after = Tables.build(without(machines.hgx_h100(), 0), before)

    assert after.by_size is before.by_size
    assert positions(after.choose(0xFF, 0, 1)) == (1,)


def test_tables_are_made_anew_when_the_machine_differs() -> None:
    before = Tables.build(machines.hgx_h100())
    after = Tables.build(machines.bridged_pairs(), before)

    assert after.graph == Graph.of(machines.bridged_pairs())
    assert positions(after.choose(0b1110, 0, 2)) == (2, 3)


def test_many_gpus_that_are_alike_are_searched_exactly() -> None:
    slots = [Slot(i // 16, f"pci0000:1{i // 16}") for i in range(32)]
    tables = Tables.build(inventory(slots, to_switch=[18] * 32))
    free = (1 << 32) - 1 & ~0b1111

    assert tables.exact
    assert positions(tables.choose(free, 0, 16)) == tuple(range(16, 32))
    assert positions(tables.choose(free, 0, 3)) == (4, 5, 6)


def test_many_gpus_that_differ_get_a_good_set_of_the_asked_size() -> None:
    """20 bridged pairs: too many to be sure, but whole pairs are found."""
    slots = [Slot(i // 20, f"pci0000:1{i // 20}") for i in range(40)]
    tables = Tables.build(inventory(slots, direct={(i, i + 1): 4 for i in range(0, 40, 2)}))
    free = (1 << 40) - 1 & ~0b11

    assert not tables.exact
    assert positions(tables.choose(free, 0, 4)) == (2, 3, 4, 5)
    assert positions(tables.choose(free, 1 << 37, 2)) == (36, 37)
    assert positions(tables.choose(free & ~(1 << 4), 0, 1)) == (5,)
    assert tables.choose(free, 0, 21).bit_count() == 21


# Pair sums as go-gpuallocator counts them, and the best that its own policy reaches on the topologies of its tests
# with the whole node free.
REFERENCE_SUMS = {
    "rtx8000": {2: 200, 3: 230, 4: 460},
    "dgx1_pascal": {2: 150, 3: 410, 4: 820, 5: 960, 6: 1250, 7: 1650, 8: 2200},
    "dgx1_volta": {2: 230, 3: 610, 4: 1120, 5: 1360, 6: 1750, 7: 2250, 8: 3000},
}


def pair_sum(name: str, graph: Graph, members: tuple[int, ...]) -> int:
    """100 an NVLink, and by PCIe 50 for one switch down to 10 across sockets; bridged RTX 8000 have no PCIe entry."""
    total = 0
    for i, j in combinations(members, 2):
        total += 100 * graph.links[i][j]
        if not (name == "rtx8000" and graph.links[i][j]):
            total += 60 - graph.levels[i][j]
    return total


@pytest.mark.parametrize(
    ("name", "size", "best"),
    [(name, size, best) for name, sums in REFERENCE_SUMS.items() for size, best in sums.items()],
)
def test_never_below_the_reference_on_its_own_topologies(name: str, size: int, best: int) -> None:
    machine = MACHINES[name]()
    graph = Graph.of(machine)
    possible = max(pair_sum(name, graph, members) for members in combinations(range(len(machine.gpus)), size))

    assert best <= pair_sum(name, graph, chosen(machine, size)) == possible


@pytest.mark.parametrize("name", REFERENCE_SUMS)
def test_nor_whatever_part_of_the_node_is_free(name: str) -> None:
    tables = Tables.build(MACHINES[name]())
    gpus = range(len(tables.graph.labels))
    sums = {
        mask_of(members): pair_sum(name, tables.graph, members)
        for size in gpus
        for members in combinations(gpus, size + 1)
    }
    for free in sums:
        for size in range(1, free.bit_count() + 1):
            best = max(sums[mask_of(members)] for members in combinations(positions(free), size))
            assert sums[tables.choose(free, 0, size)] == best
