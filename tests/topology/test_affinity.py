"""Topology Manager's decisions, as tables: what kubelet 1.37 admits, and on which nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.topology.affinity import Decision, Policy, Want, align, decide, decide_together

NONE, BEST, RESTRICTED, SINGLE = Policy


def machine(*nodes: str) -> dict[str, frozenset[int]]:
    """One device for each word, such as ``a0``: a name and the nodes it sits on."""
    return {word[0]: frozenset(map(int, word[1:])) for word in nodes}


EIGHT = machine("a0", "b0", "c0", "d0", "e1", "f1", "g1", "h1")
NODES = (0, 1)


@pytest.mark.parametrize(
    ("policy", "free", "count", "admitted", "affinity"),
    [
        (SINGLE, "abcdefgh", 1, True, {0}),
        (SINGLE, "abcdefgh", 4, True, {0}),
        (SINGLE, "bcdefgh", 4, True, {1}),
        (SINGLE, "abcdefgh", 5, False, None),  # refused, and the whole machine is no affinity
        (SINGLE, "bcdfgh", 4, False, None),  # four would fit a node of the empty machine: no straddling
        (SINGLE, "ab", 3, False, None),  # too few at all is refused for locality, not for number
        (RESTRICTED, "abcdefgh", 5, True, {0, 1}),
        (RESTRICTED, "bcdfgh", 4, False, {0, 1}),
        (RESTRICTED, "ab", 3, False, {0, 1}),
        (BEST, "bcdfgh", 4, True, {0, 1}),
        (BEST, "bcdfgh", 3, True, {0}),
        (BEST, "ab", 3, True, {0, 1}),  # admitted here; the device manager then finds too few
        (NONE, "abcdefgh", 5, True, None),
        (NONE, "ab", 3, True, None),
    ],
)
def test_eight_devices_on_two_nodes(policy, free, count, admitted, affinity):
    expected = Decision(admitted, None if affinity is None else frozenset(affinity))
    assert decide(policy, NODES, EIGHT, set(free), count) == expected


@pytest.mark.parametrize("policy", list(Policy))
def test_devices_without_nodes_are_never_refused_for_locality(policy):
    flat = machine("a", "b", "c")
    assert decide(policy, NODES, flat, {"a"}, 3).admitted


def test_one_node_machine_leaves_the_device_manager_free():
    assert decide(SINGLE, (0,), machine("a0", "b0"), {"a", "b"}, 1) == Decision(admitted=True, affinity=None)


def test_nodes_without_devices_are_no_choice():
    assert decide(RESTRICTED, (0, 1, 2, 3), machine("a1", "b3"), {"a", "b"}, 2) == Decision(
        admitted=True, affinity=frozenset({1, 3})
    )


def test_a_device_near_to_two_nodes_counts_for_both():
    shared = machine("a0", "b01", "c1")
    assert decide(SINGLE, NODES, shared, {"b", "c"}, 2) == Decision(admitted=True, affinity=frozenset({1}))


def test_unhealthy_devices_still_say_how_few_nodes_are_enough():
    two_left = {"a", "e"}
    assert not decide(RESTRICTED, NODES, EIGHT, two_left, 2).admitted


def test_free_devices_are_sorted_by_the_affinity():
    devices = machine("a0", "b1", "c", "d01")
    sorted_ = align(frozenset({0}), devices, set("abcd"))
    assert (sorted_.on, sorted_.off, sorted_.unknown) == ({"a", "d"}, {"b"}, {"c"})
    free = align(None, devices, set("abc"))
    assert (free.on, free.off, free.unknown) == (set(), set(), {"a", "b", "c"})


@given(
    st.dictionaries(st.text("abcdefgh", min_size=1, max_size=2), st.frozensets(st.sampled_from(range(4)), max_size=2)),
    st.data(),
)
def test_what_single_numa_node_admits_fits_its_affinity(devices, data):
    free = data.draw(st.sets(st.sampled_from(sorted(devices)))) if devices else set()
    count = data.draw(st.integers(1, 8))
    decision = decide(SINGLE, range(4), devices, free, count)
    if decision.admitted and any(devices.values()):
        assert decision.affinity is not None
        assert len(decision.affinity) == 1
        assert len(align(decision.affinity, devices, free).on) >= count


CPUS = machine("k0", "l0", "m0", "n0", "o1", "p1", "q1", "r1")


@pytest.mark.parametrize(
    ("policy", "gpus", "free_gpus", "cpus", "free_cpus", "affinity"),
    [
        (SINGLE, 4, "abcdefgh", 4, "klmnopqr", {0}),
        (SINGLE, 4, "abcdefgh", 4, "lmnopqr", {1}),
        (SINGLE, 4, "abcdfgh", 4, "lmnopqr", None),  # node 0 is short of a CPU and node 1 of a GPU
        (SINGLE, 4, "abcdefgh", 5, "klmnopqr", None),
        (RESTRICTED, 4, "abcdefgh", 5, "klmnopqr", None),  # one node for the GPUs, and two for the CPUs: never the same
        (RESTRICTED, 5, "abcdefgh", 5, "klmnopqr", {0, 1}),
    ],
)
def test_gpus_and_cpus_have_to_want_the_same_nodes(policy, gpus, free_gpus, cpus, free_cpus, affinity):
    wants = [Want(EIGHT, set(free_gpus), gpus), Want(CPUS, set(free_cpus), cpus)]
    decision = decide_together(policy, NODES, wants)
    assert decision.admitted == (affinity is not None)
    if affinity is not None:
        assert decision.affinity == affinity


def test_who_has_no_nodes_does_not_care():
    flat = machine("a", "b")
    assert decide_together(SINGLE, NODES, [Want(flat, {"a"}, 2), Want(CPUS, set("pq"), 2)]).affinity == {1}
    assert decide_together(RESTRICTED, NODES, [Want(flat, {"a"}, 1)]) == Decision(True, frozenset(NODES))


@given(
    st.sampled_from([RESTRICTED, SINGLE]),
    st.dictionaries(st.text("abcdefgh", min_size=1, max_size=2), st.frozensets(st.sampled_from(range(4)), max_size=2)),
    st.data(),
)
def test_one_kind_alone_is_decided_the_same_by_both(policy, devices, data):
    free = data.draw(st.sets(st.sampled_from(sorted(devices)))) if devices else set()
    count = data.draw(st.integers(1, 8))
    alone, among = (
        decide(policy, range(4), devices, free, count),
        decide_together(policy, range(4), [Want(devices, free, count)]),
    )
    assert alone.admitted == among.admitted
    if alone.admitted:
        assert alone.affinity == among.affinity
