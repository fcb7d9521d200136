"""The tables against a brute force that knows nothing of them: every set, judged from the inventory by the rules."""

from __future__ import annotations

from itertools import combinations

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gpuplugin.model.inventory import Inventory
from gpuplugin.model.links import PcieLevel, pcie_level
from gpuplugin.topology.allocate import Tables
from gpuplugin.topology.graph import mask_of, positions
from gpuplugin.topology.score import Score
from gpuplugin.topology.search import good_set
from tests.topology.machines import Slot, dgx2, dgx_a100, inventory, plain_pcie

ROOTS = ("pci0000:10", "pci0000:20")
SLOTS = st.builds(
    Slot, st.sampled_from([0, 0, 1, 1, 2, None]), st.sampled_from(ROOTS), st.sampled_from([None, 0, 0, 1])
)


@st.composite
def machines(draw: st.DrawFn, most: int = 10) -> Inventory:
    """From all alike to all different: any links, one-sided ones too, any NUMA nodes, switches, NICs and losses."""
    count = draw(st.integers(1, most))
    alike = draw(st.booleans())
    slots = [draw(SLOTS)] * count if alike else [draw(SLOTS) for _ in range(count)]
    pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
    direct = draw(st.dictionaries(st.sampled_from(pairs), st.integers(0, 3), max_size=20)) if pairs else {}
    switched = draw(st.sampled_from([0, 0, 18]))
    to_switch = [draw(st.sampled_from([switched, switched, 0])) for _ in range(count)]
    nics = draw(st.lists(SLOTS, max_size=4))
    distances = draw(
        st.sampled_from([{}, {0: (10, 20, 30), 1: (20, 10, 12), 2: (30, 12, 10)}, {0: (10, 21), 1: (21, 10)}])
    )
    lost = draw(st.sets(st.integers(0, count - 1), max_size=2))
    return inventory(slots, direct=direct, to_switch=to_switch, nics=nics, distances=distances, lost=sorted(lost))


@st.composite
def requests(draw: st.DrawFn, most: int = 10) -> tuple[Inventory, set[int], set[int], int]:
    machine = draw(machines(most))
    everyone = range(len(machine.gpus))
    available = draw(st.sets(st.sampled_from(everyone))) if draw(st.booleans()) else set(everyone)
    must = draw(st.sets(st.sampled_from(sorted(available)), max_size=3)) if available else set()
    usable = {i for i in available if machine.gpus[i].fault is None} | must
    return machine, available, must, draw(st.integers(len(must), len(usable)))


def groups_by_link(members: tuple[int, ...], machine: Inventory) -> list[set[int]]:
    groups: list[set[int]] = []
    for i in members:
        joined = [group for group in groups if any(machine.nvlinks.between(i, j) for j in group)]
        groups = [group for group in groups if group not in joined] + [{i}.union(*joined)]
    return groups


def nearest(machine: Inventory, i: int) -> set[str]:
    gpu = machine.gpus[i]
    levels = {nic.name: pcie_level(gpu.pcie, nic.pcie, gpu.numa, nic.numa) for nic in machine.nics}
    near = min(levels.values(), default=PcieLevel.SYS)
    return {name for name, level in levels.items() if level == near <= PcieLevel.PXB}


def pools(machine: Inventory) -> list[tuple[set[int], set[str]]]:
    found: list[tuple[set[int], set[str]]] = []
    for i in range(len(machine.gpus)):
        if mine := nearest(machine, i):
            joined = [pool for pool in found if pool[1] & mine]
            found = [pool for pool in found if pool not in joined]
            found.append(({i}.union(*(gpus for gpus, _ in joined)), mine.union(*(names for _, names in joined))))
    return found


def distance(machine: Inventory, a: int | None, b: int | None) -> int:
    table = {(n.id, m.id): d for n in machine.numa_nodes for m, d in zip(machine.numa_nodes, n.distances, strict=False)}
    far = max(table.values(), default=0)
    return far if a is None or b is None else max(table.get((a, b), far), table.get((b, a), far))


def judged(machine: Inventory, available: set[int], members: tuple[int, ...]) -> tuple[object, ...]:
    """Less is better; the last entry makes it unique."""
    gpus = machine.gpus
    pairs = list(combinations(members, 2))
    free = {i for i in available if gpus[i].fault is None} - set(members)
    islands = groups_by_link(tuple(range(len(gpus))), machine)
    nodes = [{i for i, g in enumerate(gpus) if g.numa == node.id} for node in machine.numa_nodes]
    switches = {g.pcie.switch for g in gpus if g.pcie and g.pcie.switch}
    branches = [{i for i, g in enumerate(gpus) if g.pcie and g.pcie.switch == switch} for switch in switches]
    return (
        len(groups_by_link(members, machine)),
        -sum(machine.nvlinks.between(i, j) for i, j in pairs),
        max(1, len({gpus[i].numa for i in members} - {None})),
        sum(distance(machine, gpus[i].numa, gpus[j].numa) for i, j in pairs),
        sum(pcie_level(gpus[i].pcie, gpus[j].pcie, gpus[i].numa, gpus[j].numa) for i, j in pairs),
        -sum(min(len(gpus_ & set(members)), len(names)) for gpus_, names in pools(machine)),
        *(-sum(len(group & free) ** 2 for group in kind) for kind in (islands, nodes, branches)),
        members,
    )


def best(machine: Inventory, available: set[int], must: set[int], size: int) -> tuple[int, ...]:
    usable = {i for i in available if machine.gpus[i].fault is None} | must
    fitting = (members for members in combinations(sorted(usable), size) if must <= set(members))
    return min(fitting, key=lambda members: judged(machine, available, members))


@settings(max_examples=400, deadline=None)
@given(requests())
@example((dgx_a100(), {0, 1, 2, 4, 5, 6}, {5}, 4))
@example((plain_pcie(), {1, 2, 3, 4, 6, 7}, set(), 3))
def test_the_choice_is_the_best_of_all_sets(request_: tuple[Inventory, set[int], set[int], int]) -> None:
    machine, available, must, size = request_

    chosen = Tables.build(machine).choose(mask_of(available), mask_of(must), size)

    assert positions(chosen) == best(machine, available, must, size)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_on_sixteen_gpus_symmetry_loses_nothing(data: st.DataObject) -> None:
    machine = dgx2()
    available = data.draw(st.sets(st.integers(0, 15), min_size=1, max_size=11))
    must = data.draw(st.sets(st.sampled_from(sorted(available)), max_size=2))
    size = data.draw(st.integers(max(1, len(must)), len(available)))

    chosen = Tables.build(machine).choose(mask_of(available), mask_of(must), size)

    assert positions(chosen) == best(machine, available, must, size)


@settings(max_examples=200, deadline=None)
@given(machines())
def test_a_costs_less_than_b_exactly_when_the_rules_say_so(machine: Inventory) -> None:
    score = Score(Tables.build(machine).graph)
    size = (len(machine.gpus) + 1) // 2
    sets = list(combinations(range(len(machine.gpus)), size))[:40]

    by_cost = sorted(sets, key=lambda members: (score.cost(mask_of(members)), members))
    by_rules = sorted(sets, key=lambda members: (judged(machine, set(), members)[:6], members))

    assert by_cost == by_rules


@settings(max_examples=200, deadline=None)
@given(requests())
def test_the_search_beyond_tables_respects_the_request(request_: tuple[Inventory, set[int], set[int], int]) -> None:
    machine, available, must, size = request_
    assume(size > len(must))
    tables = Tables.build(machine)
    usable = mask_of(available) & ~tables.lost | mask_of(must)

    chosen = good_set(tables.score, usable, mask_of(must), size, tables.classes)

    assert chosen.bit_count() == size
    assert not chosen & ~usable
    assert not mask_of(must) & ~chosen
