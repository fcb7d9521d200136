"""Whether a pod would be admitted, and what is in the way: two NUMA nodes with four GPUs and four CPUs each."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.explain.fit import NOT_ALIGNED, NOT_THERE, Asked, Fit, would_admit
from gpuplugin.explain.stock import CPU, SYSTEM, Stock
from gpuplugin.explain.verdict import Rules
from gpuplugin.topology.affinity import Policy

GPU = "nvidia.com/gpu"
NONE, BEST, RESTRICTED, SINGLE = Policy
NODES = frozenset({0, 1})


def gpus(held: dict[str, str] | None = None, sick: dict[str, str] | None = None) -> Stock:
    """GPUs a to h, a to d on node 0. held: pod → letters · sick: letter → why."""
    holders = {letter: pod for pod, letters in (held or {}).items() for letter in letters}
    nodes = {letter: frozenset({int(letter > "d")}) for letter in "abcdefgh"}
    return Stock(GPU, nodes, holders, sick or {}, {letter: f"GPU {i}" for i, letter in enumerate("abcdefgh")})


def cpus(held: dict[str, str] | None = None, reserved: str = "") -> Stock:
    """CPUs 0 to 7, 0 to 3 on node 0."""
    holders = {cpu: pod for pod, digits in (held or {}).items() for cpu in digits}
    nodes = {cpu: frozenset({int(cpu > "3")}) for cpu in "01234567"}
    return Stock(CPU, nodes, holders, dict.fromkeys(reserved, SYSTEM))


def fit(policy: Policy, count: int, own_cpus: int = 0, *, g: Stock | None = None, c: Stock | None = None) -> Fit:
    stocks = {GPU: g or gpus(), CPU: c or cpus()}
    return would_admit(Rules(policy, NODES), stocks, [Asked("main", {GPU: count, CPU: own_cpus})])


@pytest.mark.parametrize(
    ("policy", "count", "own_cpus", "places"),
    [(SINGLE, 4, 4, ((0,), (1,))), (RESTRICTED, 5, 5, ((0, 1),)), (SINGLE, 0, 4, ((0,), (1,))), (BEST, 5, 1, ())],
)
def test_admitted_with_the_places_that_have_room(policy, count, own_cpus, places):
    found = fit(policy, count, own_cpus)
    assert (found.admitted, found.reason, found.places, found.advice) == (True, "", places, ())


def test_the_pod_in_the_way_is_named_with_what_it_has():
    found = fit(SINGLE, 4, g=gpus({"pod a/x": "ab", "pod a/y": "e", "pod a/z": "fg"}))
    assert (found.admitted, found.reason) == (False, NOT_ALIGNED)
    assert found.ending == ("pod a/x",)
    assert str(found.in_the_way[0]) == "NUMA node 0: 2 of 4 nvidia.com/gpu free; pod a/x has GPU 0, GPU 1"
    assert found.advice == ("wait for pod a/x to end, or end it: that makes room",)
    assert "stays Pending: 4 nvidia.com/gpu wanted, 3 free" in found.scheduler


def test_cpus_in_the_way_of_free_gpus():
    found = fit(SINGLE, 1, 3, c=cpus({"pod b/x": "12", "pod b/y": "456"}, reserved="0"))
    assert found.reason == NOT_ALIGNED
    assert found.ending == ("pod b/x",)
    first, second = map(str, found.in_the_way)
    assert first.startswith("NUMA node 0: 1 of 3 cpu free; pod b/x has CPUs 1-2; CPU 0: set aside for the system")
    assert second == "NUMA node 1: 1 of 3 cpu free; pod b/y has CPUs 4-6"


def test_a_sick_gpu_is_what_to_mend():
    found = fit(SINGLE, 4, g=gpus({"pod a/x": "e"}, {"e": "XID 79", "b": "XID 48"}))
    assert found.ending == ()
    assert "GPU 1: XID 48" in found.advice[0]
    assert "GPU 4: XID 79" in found.advice[0]


@pytest.mark.parametrize(
    ("policy", "count", "own_cpus", "says", "advice"),
    [
        (SINGLE, 5, 0, "no NUMA node has 5 nvidia.com/gpu, the most is 4", "ask for at most 4"),
        (SINGLE, 1, 5, "no NUMA node has 5 cpu, the most is 4", "ask for at most 4"),
        (RESTRICTED, 5, 1, "5 nvidia.com/gpu need 2 NUMA nodes and 1 cpu need 1 NUMA node", "ask for amounts that"),
        (SINGLE, 9, 0, "this node has 8 nvidia.com/gpu in all, and 9 are wanted", "ask for at most 8"),
        (NONE, 9, 0, "this node has 8 nvidia.com/gpu in all", "ask for at most 8"),
    ],
)
def test_what_is_never_admitted_here(policy, count, own_cpus, says, advice):
    found = fit(policy, count, own_cpus)
    assert not found.admitted
    assert says in found.never
    assert found.advice[0].startswith(advice)
    assert found.ending == ()


def test_a_whole_node_of_cpus_cannot_be_had_where_some_are_reserved():
    found = fit(SINGLE, 0, 4, c=cpus(reserved="04"))
    assert found.never == "no set of NUMA nodes has all of it, even with nothing running"
    assert "reserve fewer for the system" in found.advice[0]


@pytest.mark.parametrize("policy", [NONE, BEST])
def test_lenient_policies_refuse_only_what_is_not_there(policy):
    found = fit(policy, 4, g=gpus({"pod a/x": "abcde"}))
    assert (found.admitted, found.reason, found.ending) == (False, NOT_THERE, ("pod a/x",))
    assert str(found.in_the_way[0]).startswith("this node: 3 of 4 nvidia.com/gpu free")


def test_gpus_without_a_node_are_refused_only_when_they_are_too_few():
    flat = replace(gpus({"pod a/x": "abcdef"}), nodes=dict.fromkeys("abcdefgh", frozenset()))
    assert fit(SINGLE, 2, 4, g=flat).admitted
    found = fit(SINGLE, 3, g=flat)
    assert (found.reason, found.ending) == (NOT_THERE, ("pod a/x",))


def test_containers_are_placed_one_after_the_other_or_as_one():
    three = [Asked("one", {GPU: 3}), Asked("two", {GPU: 3})]
    assert would_admit(Rules(SINGLE, NODES), {GPU: gpus()}, three).admitted
    together = would_admit(Rules(SINGLE, NODES, pod_scope=True), {GPU: gpus()}, three)
    assert together.container == "all containers together"
    assert "no NUMA node has 6" in together.never
    third = would_admit(Rules(SINGLE, NODES), {GPU: gpus()}, [*three, Asked("three", {GPU: 2})])
    assert (third.container, third.ending) == ("three", ("its own container one",))


letters, digits = st.sets(st.sampled_from("abcdefgh")), st.sets(st.sampled_from("01234567"))


@given(
    st.sampled_from(list(Policy)),
    st.lists(st.tuples(letters, digits), max_size=5),
    letters,
    st.sampled_from(["", "0", "04", "01"]),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_without_the_pods_that_are_named_it_is_admitted(policy, pods, sick, reserved, count, own_cpus):
    g, c = gpus(sick=dict.fromkeys(sick, "XID 79")), cpus(reserved=reserved)
    for number, (has_gpus, has_cpus) in enumerate(pods):
        g = g.without(has_gpus & g.free, f"pod {number}")
        c = c.without(has_cpus & c.free, f"pod {number}")
    found = fit(policy, count, own_cpus, g=g, c=c)
    if found.admitted:
        return
    assert found.advice
    assert found.never or found.in_the_way
    freed_g, freed_c = (
        replace(s, holders={piece: who for piece, who in s.holders.items() if who not in found.ending}) for s in (g, c)
    )
    after = fit(policy, count, own_cpus, g=freed_g, c=freed_c)
    assert after.admitted == bool(found.ending)
    if found.never:  # also with nothing running and nothing broken
        assert not fit(policy, count, own_cpus, c=cpus(reserved=reserved)).admitted
    else:
        assert fit(policy, count, own_cpus, c=cpus(reserved=reserved)).admitted
