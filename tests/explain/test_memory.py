"""What kubelet's memory manager gives, as tables: NUMA nodes with 100 bytes of memory each, and 10 of huge pages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.explain.fit import NOT_ALIGNED, NOT_THERE, Asked, Fit, would_admit
from gpuplugin.explain.memory import Memory, Share, amount, size
from gpuplugin.explain.stock import CPU, Stock
from gpuplugin.explain.verdict import Rules
from gpuplugin.topology.affinity import Policy

GPU, HUGE = "nvidia.com/gpu", "hugepages-2Mi"
NONE, BEST, RESTRICTED, SINGLE = Policy
GI = 1 << 30


def memory(*shares: tuple[str, str, tuple[int, ...], int], nodes: int = 2) -> Memory:
    return Memory({n: {"memory": 100, HUGE: 10} for n in range(nodes)}, tuple(Share(*share) for share in shares))


def hints(of: Memory, wanted: dict[str, int]) -> dict[tuple[int, ...], bool]:
    return {tuple(sorted(hint.nodes)): hint.preferred for hint in of.hints(wanted)}


ALONE = ("pod a", "memory", (0,), 40)
JOINED = ("pod b", "memory", (0, 1), 120)
FEW = ("pod c", HUGE, (0,), 8)


@pytest.mark.parametrize(
    ("shares", "nodes", "wanted", "found"),
    [
        ([], 2, {"memory": 100}, {(0,): True, (1,): True, (0, 1): False}),
        ([], 2, {"memory": 101}, {(0, 1): True}),
        ([], 2, {"memory": 201}, {}),
        ([], 2, {"memory": 1, HUGE: 11}, {(0, 1): True}),
        ([ALONE], 2, {"memory": 61}, {(1,): True}),
        ([ALONE], 2, {"memory": 60}, {(0,): True, (1,): True}),
        ([ALONE], 2, {"memory": 101}, {}),  # enough is free, and node 0 is not joined with another
        ([JOINED], 2, {"memory": 10}, {(0, 1): False}),
        ([JOINED], 2, {"memory": 81}, {}),
        ([JOINED], 4, {"memory": 80}, {(2,): True, (3,): True, (0, 1): False, (2, 3): False}),
        ([JOINED], 4, {"memory": 150}, {(2, 3): True}),
        ([FEW], 2, {"memory": 1, HUGE: 3}, {(1,): True}),
        ([FEW], 2, {"memory": 1, HUGE: 2}, {(0,): True, (1,): True}),
    ],
)
def test_hints(shares, nodes, wanted, found):
    assert hints(memory(*shares, nodes=nodes), wanted) == found


@pytest.mark.parametrize(
    ("shares", "decided", "wanted", "taken"),
    [
        ([], {1}, {"memory": 60}, {1}),
        ([], {1}, {"memory": 160}, {0, 1}),  # more than the node has: others are added
        ([ALONE], {0}, {"memory": 80}, None),
        ([ALONE], {0, 1}, {"memory": 10}, None),  # node 0 is given alone
        ([JOINED], {0, 1}, {"memory": 10}, {0, 1}),
        ([JOINED], {1}, {"memory": 10}, {1}),  # kubelet does not look at a single node again
        ([], None, {"memory": 60}, {0}),
        ([ALONE], None, {"memory": 80}, {1}),
        ([JOINED], None, {"memory": 90}, None),
    ],
)
def test_where_it_is_taken_from_once_nodes_are_decided_on(shares, decided, wanted, taken):
    found = memory(*shares).placed(None if decided is None else frozenset(decided), wanted)
    assert found == (None if taken is None else frozenset(taken))


def test_a_share_over_nodes_takes_from_the_first_first():
    held = memory(JOINED)
    assert [held.free("memory", {node}) for node in (0, 1)] == [0, 80]
    assert held.without(["pod b"]).free("memory") == 200
    assert held.with_("pod d", frozenset({0, 1}), {"memory": 30}).free("memory") == 50


def test_what_is_taken_back_leaves_what_the_others_have_made_of_it():
    """Kubelet keeps the group that was given last, until nothing lies on a node any more."""
    alone = memory(JOINED).with_("pod a", frozenset({1}), {"memory": 10})
    after = alone.without(["pod b"])
    assert [(each.free["memory"], each.assignments, each.group) for each in after.given.values()] == [
        (100, 0, frozenset({0})),
        (90, 1, frozenset({1})),
    ]
    joined = memory(ALONE).with_("pod b", frozenset({0, 1}), {"memory": 10}).without(["pod a"])
    assert hints(joined, {"memory": 10}) == {(0, 1): False}


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (7, "7"), (1024, "1Ki"), (64 * GI, "64Gi"), (3 * GI // 2, "1536Mi"), (GI + 1, "1.0Gi")],
)
def test_sizes_are_written_as_kubernetes_does(count, text):
    assert size(count) == text
    assert amount("memory", count) == f"{text} memory"
    assert amount(GPU, count) == f"{count} {GPU}"


def gpus(held: dict[str, str] | None = None) -> dict[str, Stock]:
    """a and b on node 0, c and d on node 1; and CPUs 0 to 3, two a node."""
    holders = {letter: who for who, letters in (held or {}).items() for letter in letters}
    nodes = {letter: frozenset({int(letter > "b")}) for letter in "abcd"}
    return {GPU: Stock(GPU, nodes, holders), CPU: Stock(CPU, {cpu: frozenset({int(cpu > "1")}) for cpu in "0123"})}


def fit(policy: Policy, of: Memory, wanted: dict[str, int], held: dict[str, str] | None = None) -> Fit:
    return would_admit(Rules(policy, frozenset(of.allocatable)), gpus(held), [Asked("main", wanted)], of)


@pytest.mark.parametrize(
    ("policy", "shares", "wanted", "reason", "ending"),
    [
        (SINGLE, [], {GPU: 2, "memory": 100}, "", ()),
        (SINGLE, [ALONE], {GPU: 1, "memory": 100}, "", ()),
        (SINGLE, [("pod x", "memory", (1,), 1), ALONE], {GPU: 1, "memory": 100}, NOT_THERE, ("pod x",)),
        (SINGLE, [ALONE], {GPU: 1, "memory": 101}, NOT_THERE, ()),  # no hint at all is none that refuses
        (SINGLE, [], {GPU: 1, "memory": 101}, NOT_ALIGNED, ()),
        (RESTRICTED, [], {GPU: 1, "memory": 101}, NOT_ALIGNED, ()),
        (RESTRICTED, [], {GPU: 3, "memory": 101}, "", ()),
        (RESTRICTED, [ALONE], {GPU: 3, "memory": 101}, NOT_THERE, ("pod a",)),
        (RESTRICTED, [JOINED], {GPU: 1, "memory": 10}, NOT_ALIGNED, ("pod b",)),
        (BEST, [JOINED], {GPU: 1, "memory": 10}, "", ()),
        (BEST, [ALONE], {GPU: 1, "memory": 110}, NOT_THERE, ("pod a",)),
        (NONE, [ALONE], {GPU: 1, "memory": 110}, NOT_THERE, ("pod a",)),
        (NONE, [], {GPU: 4, "memory": 200}, "", ()),
    ],
)
def test_memory_counts_like_gpus_do(policy, shares, wanted, reason, ending):
    found = fit(policy, memory(*shares), wanted)
    assert (found.reason, found.ending) == (reason, ending)


def test_huge_pages_in_the_way_are_named_with_who_has_them():
    big = Memory({n: {"memory": 64 * GI, HUGE: 8 * GI} for n in range(2)})
    held = big.with_("pod a/x", frozenset({0}), {HUGE: 6 * GI}).with_("pod a/y", frozenset({1}), {HUGE: 5 * GI})
    found = fit(SINGLE, held, {GPU: 1, "memory": GI, HUGE: 4 * GI})
    assert (found.reason, found.ending) == (NOT_THERE, ("pod a/y",))
    assert [str(lack) for lack in found.in_the_way] == [
        "NUMA node 1: 3Gi of 4Gi hugepages-2Mi free; pod a/y has 5Gi hugepages-2Mi",
        "NUMA node 0: 2Gi of 4Gi hugepages-2Mi free; pod a/x has 6Gi hugepages-2Mi",
    ]


def test_memory_that_is_free_and_cannot_be_had_says_why():
    found = fit(RESTRICTED, memory(JOINED), {GPU: 1, "memory": 10})
    text = str(found.in_the_way[0])
    assert "80 of 10 memory free, and cannot be had: kubelet gives none of one NUMA node alone" in text
    assert "pod b has 120 memory of NUMA nodes 0, 1" in text


@pytest.mark.parametrize(
    ("policy", "wanted", "says"),
    [
        (SINGLE, {GPU: 1, "memory": 150}, "no NUMA node has 150 memory, the most is 100"),
        (RESTRICTED, {GPU: 1, "memory": 150}, f"1 {GPU} need 1 NUMA node and 150 memory need 2 NUMA nodes"),
        (RESTRICTED, {GPU: 1, "memory": 250}, "this node has 200 memory in all, and 250 are wanted"),
        (BEST, {GPU: 1, HUGE: 50}, "this node has 20 hugepages-2Mi in all, and 50 are wanted"),
    ],
)
def test_what_is_never_admitted_here(policy, wanted, says):
    found = fit(policy, memory(), wanted)
    assert says in found.never
    assert found.advice


def test_containers_take_memory_from_each_other():
    two = [Asked("one", {GPU: 1, "memory": 90}), Asked("two", {GPU: 1, "memory": 90})]
    rules = Rules(SINGLE, frozenset({0, 1}))
    assert would_admit(rules, gpus(), two, memory()).admitted
    third = would_admit(rules, gpus(), [*two, Asked("three", {GPU: 1, "memory": 20})], memory())
    assert (third.container, third.reason, third.ending) == ("three", NOT_THERE, ("its own container one",))
    together = would_admit(Rules(SINGLE, frozenset({0, 1}), pod_scope=True), gpus(), two, memory())
    assert "no NUMA node has 180 memory" in together.never


def test_memory_does_not_count_where_it_is_not_given_out():
    rules = Rules(SINGLE, frozenset({0, 1}))
    found = would_admit(rules, gpus(), [Asked("main", {GPU: 1, "memory": 10**9})])
    assert (found.admitted, found.wanted) == (True, {GPU: 1})


nodes_of = st.sampled_from([(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])


@given(
    st.sampled_from(list(Policy)),
    st.lists(st.tuples(nodes_of, st.integers(0, 60), st.integers(0, 8), st.sets(st.sampled_from("abcd"))), max_size=5),
    st.integers(0, 4),
    st.integers(1, 320),
    st.sampled_from([0, 0, 3, 12, 25]),
)
def test_without_the_pods_that_are_named_it_is_admitted(policy, pods, count, wanted, huge):
    of, held = memory(nodes=3), {}
    for number, (nodes, some, few, letters) in enumerate(pods):
        share = {"memory": some, HUGE: few}
        if any(hint.nodes == frozenset(nodes) for hint in of.hints(share)):
            of = of.with_(f"pod {number}", frozenset(nodes), share)
            held[f"pod {number}"] = "".join(sorted(letters - set("".join(held.values()))))
    asked = {GPU: count, "memory": wanted, HUGE: huge}
    found = fit(policy, of, asked, held)
    if found.admitted:
        return
    assert found.advice
    assert found.never or found.in_the_way
    left = {who: letters for who, letters in held.items() if who not in found.ending}
    after = fit(policy, of.without(found.ending), asked, left)
    assert after.admitted == bool(found.ending)
    assert bool(found.never) != fit(policy, memory(nodes=3), asked).admitted
