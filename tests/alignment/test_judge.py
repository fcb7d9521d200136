"""The judge has to tell wrong from right, else the runs that it finds nothing in prove nothing."""

import pytest

from tests.alignment.judge import (
    BEST_EFFORT,
    NOT_ALIGNED,
    NOT_THERE,
    RESTRICTED,
    SINGLE,
    Given,
    Hardware,
    Judge,
    Outcome,
)
from tests.alignment.links import quality
from tests.alignment.pods import Container, Pod

HARDWARE = Hardware(
    gpus={"a": 0, "b": 0, "c": 1, "d": 1},
    cpus=dict.fromkeys(range(4), 0) | dict.fromkeys(range(4, 8), 1),
    reserved=frozenset({0}),
)
FLAT = Hardware(gpus=dict.fromkeys("abcd"), cpus=dict.fromkeys(range(8), 0), reserved=frozenset({0}))


def pod(*containers: tuple[int, int], name: str = "pod") -> Pod:
    return Pod(name, tuple(Container(gpus, cpus * 1000) for gpus, cpus in containers))


def given(gpus: str, *cpus: int) -> Given:
    return Given(tuple(gpus), cpus)


def verdict(policy: str, scope: str, asked: Pod, outcome: Outcome, hardware: Hardware = HARDWARE) -> str:
    """The tally's only entry, or the first disagreement."""
    judge = Judge(hardware, policy, scope)
    judge.decided(asked, outcome)
    return judge.disagreements[0] if judge.disagreements else next(iter(judge.tally))


def admitted(*containers: Given) -> Outcome:
    return Outcome(admitted=True, given=containers)


def refused(reason: str, containers: int = 1) -> Outcome:
    return Outcome(admitted=False, reason=reason, given=(Given(),) * containers)


@pytest.mark.parametrize(
    ("policy", "scope", "asked", "outcome", "says"),
    [
        (SINGLE, "container", pod((2, 2)), admitted(given("ab", 1, 2)), "admitted"),
        (SINGLE, "container", pod((2, 2)), admitted(given("ac", 1, 2)), "lies on NUMA nodes [0, 1]"),
        (SINGLE, "container", pod((2, 2)), admitted(given("ab", 4, 5)), "lies on NUMA nodes [0, 1]"),
        (SINGLE, "container", pod((1, 1), (1, 1)), admitted(given("a", 1), given("c", 4)), "admitted"),
        (SINGLE, "pod", pod((1, 1), (1, 1)), admitted(given("a", 1), given("c", 4)), "lies on NUMA nodes [0, 1]"),
        (SINGLE, "container", pod((2, 2)), admitted(given("a", 1, 2)), "did not get its count"),
        (SINGLE, "container", pod((2, 1)), admitted(given("aa", 1)), "did not get its count"),
        (SINGLE, "container", pod((1, 2)), admitted(given("a", 0, 1)), "got what is held"),
        (SINGLE, "container", pod((1, 1), (1, 1)), admitted(given("a", 1), given("a", 2)), "got what is held"),
        (SINGLE, "container", pod((2, 2)), refused(NOT_ALIGNED), "did not get its count"),
        (SINGLE, "container", pod((3, 2)), refused(NOT_ALIGNED), "refused: no aligned place"),
        (SINGLE, "container", pod((3, 2)), refused(NOT_THERE), f"refused with {NOT_THERE}"),
        (SINGLE, "container", pod((3, 2)), admitted(given("abc", 1, 2)), "admitted, and not refused"),
        (SINGLE, "container", pod((5, 2)), refused(NOT_ALIGNED), "refused: short"),
        (RESTRICTED, "container", pod((3, 5)), admitted(given("abc", 1, 2, 3, 4, 5)), "admitted"),
        (RESTRICTED, "container", pod((3, 2)), refused(NOT_ALIGNED), "refused: no aligned place"),
        (RESTRICTED, "container", pod((1, 2)), admitted(given("a", 4, 5)), "lies on NUMA nodes [0, 1]"),
        (BEST_EFFORT, "container", pod((3, 2)), admitted(given("abc", 1, 2)), "admitted unaligned"),
        (BEST_EFFORT, "container", pod((2, 2)), admitted(given("bc", 1, 2)), "lies on NUMA nodes [0, 1]"),
        (BEST_EFFORT, "container", pod((3, 2)), refused(NOT_ALIGNED), "did not get its count"),
        (BEST_EFFORT, "container", pod((5, 2)), refused(NOT_THERE), "refused: short"),
        (BEST_EFFORT, "container", pod((1, 8)), refused(NOT_THERE), "refused: short"),
    ],
)
def test_judge(policy: str, scope: str, asked: Pod, outcome: Outcome, says: str):
    assert says in verdict(policy, scope, asked, outcome)


@pytest.mark.parametrize("policy", [SINGLE, RESTRICTED, BEST_EFFORT])
def test_gpus_without_a_node_are_had_from_anywhere(policy: str):
    assert verdict(policy, "container", pod((3, 2)), admitted(given("abd", 1, 2)), FLAT) == "admitted"
    assert verdict(policy, "container", pod((5, 2)), refused(NOT_THERE), FLAT) == "refused: short"


def test_sick_and_held_gpus_are_not_to_be_given_until_their_pod_has_left():
    judge = Judge(HARDWARE, BEST_EFFORT, "container")
    judge.sick = {"a"}
    judge.decided(pod((1, 1), name="one"), admitted(given("b", 1)))
    judge.decided(pod((1, 1), name="two"), admitted(given("a", 2)))
    assert len(judge.disagreements) == 2  # sick, and on another node than the CPU that was free
    judge.disagreements.clear()
    judge.decided(pod((1, 1), name="three"), admitted(given("b", 3)))
    assert judge.disagreements
    judge.disagreements.clear()
    for name in ("one", "two", "three"):
        judge.left(name)
    judge.sick = set()
    judge.decided(pod((2, 1), name="four"), admitted(given("ab", 1)))
    assert judge.disagreements == []


def test_pod_that_only_its_own_first_container_kept_out_is_told_of():
    judge = Judge(HARDWARE, SINGLE, "container")
    judge.decided(pod((1, 0), name="there"), admitted(given("a")))
    asked = pod((1, 0), (2, 0))
    judge.decided(asked, Outcome(admitted=False, reason=NOT_ALIGNED, given=(given("c"), Given())))
    assert judge.disagreements == []
    assert judge.tally == {"admitted": 1, "refused: earlier containers had the room": 1}


def test_quality_is_measured_against_what_kubelet_left_open():
    scores = {frozenset(pair): score for pair, score in [("ab", 10), ("ac", 50), ("bc", 20)]}
    found = quality(scores, "ab", near="abc", free="abc")
    assert found is not None
    assert (found.chosen, found.best, round(found.mean)) == (10, 50, 27)
    assert quality(scores, "ab", near="ab", free="abc") is None
    forced = quality(scores, "bc", near="c", free="abc")
    assert forced is not None
    assert (forced.chosen, forced.best) == (20, 50)
