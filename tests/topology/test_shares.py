"""MIG devices and replicas: spread or packed, and with a rule that keeps slices of one container apart."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.errors import UnknownDevice, UnsatisfiableRequest
from gpuplugin.model.ids import DeviceId, ResourceName
from gpuplugin.topology.allocate import Tables
from gpuplugin.topology.choice import Chooser, Place
from tests.topology import machines

RESOURCE = ResourceName("nvidia.com/gpu")
PAIRS = Tables.build(machines.bridged_pairs())
"""Eight GPUs, 0 and 1 bridged, 2 and 3, and so on."""


def replicas(count: int, gpus: int = 4, *, pack: bool = False, alone: bool = False) -> Chooser:
    """GPUs called a, b, c …, each offered `count` times."""
    places = {DeviceId("abcdefgh"[i]): Place(i, replicas=count, alone=alone) for i in range(gpus)}
    return Chooser(RESOURCE, PAIRS, places, pack=pack)


def migs(per_gpu: tuple[int, ...], *, pack: bool = False, count: int = 0) -> Chooser:
    """MIG devices called a0, a1 … on GPU a, b0 … on GPU b."""
    places = {
        DeviceId(f"{'abcdefgh'[i]}{slot}"): Place(i, whole=False, replicas=count)
        for i, slots in enumerate(per_gpu)
        for slot in range(slots)
    }
    return Chooser(RESOURCE, PAIRS, places, pack=pack)


def ids(text: str) -> list[DeviceId]:
    """`a2 b0` → a::2, b::0."""
    return [DeviceId(f"{word[0]}::{word[1:]}") for word in text.split()]


def every(gpus: str, count: int) -> list[DeviceId]:
    return [DeviceId(f"{gpu}::{number}") for gpu in gpus for number in range(count)]


@pytest.mark.parametrize(
    ("free", "size", "distributed", "packed"),
    [
        ("a0 a1 b0 b1 c0 c1 d0 d1", 1, "a0", "a0"),
        ("a1 b0 b1 c0 c1 d0 d1", 1, "b0", "a1"),
        ("a1 b1 c0 c1 d0 d1", 2, "c0 d0", "a1 b1"),
        ("a1 b1 c1 d0 d1", 2, "c1 d0", "a1 b1"),
        ("a0 a1 b0 b1 c0 c1 d0 d1", 2, "a0 b0", "a0 a1"),
        ("a0 a1 b0 b1", 4, "a0 a1 b0 b1", "a0 a1 b0 b1"),
        ("b0 b1 c0 c1 d0 d1", 2, "c0 d0", "b0 b1"),
        ("a0 a1 b1 c0 c1 d0 d1", 3, "a0 c0 d0", "a0 a1 b1"),
    ],
)
def test_distributed_takes_where_least_is_taken_and_packed_where_most(
    free: str, size: int, distributed: str, packed: str
) -> None:
    assert list(replicas(2).choose(ids(free), [], size).devices) == ids(distributed)
    assert list(replicas(2, pack=True).choose(ids(free), [], size).devices) == ids(packed)


def test_one_container_after_the_other_goes_round_the_gpus() -> None:
    free, order = every("abcd", 4), []
    for _ in range(16):
        [one] = replicas(4).choose(free, [], 1).devices
        free.remove(one)
        order.append(one[0])
    assert order == [*"abcd" * 4]


def test_packed_fills_one_gpu_before_the_next() -> None:
    free, order = every("abcd", 4), []
    for _ in range(16):
        [one] = replicas(4, pack=True).choose(free, [], 1).devices
        free.remove(one)
        order.append(one[0])
    assert order == [*"aaaabbbbccccdddd"]


def test_what_must_be_included_counts_as_taken() -> None:
    assert list(replicas(2).choose(every("ab", 2), ids("a0"), 2).devices) == ids("a0 b0")
    assert list(replicas(2, pack=True).choose(every("ab", 2), ids("b0"), 2).devices) == ids("b0 b1")


def test_mig_devices_are_spread_over_gpus() -> None:
    free = [DeviceId(name) for name in ["a1", "a2", "b0", "b1", "b2", "c0", "c1", "c2"]]
    assert migs((3, 3, 3)).choose(free, [], 1).devices == ("b0",)
    assert migs((3, 3, 3)).choose(free, [], 4).devices == ("a1", "b0", "b1", "c0")
    assert migs((3, 3, 3), pack=True).choose(free, [], 2).devices == ("a1", "a2")


def test_replicas_of_mig_devices_are_spread_over_devices_then_gpus() -> None:
    subject = migs((2, 2), count=2)
    free = [DeviceId(f"{device}::{number}") for device in ("a0", "a1", "b0", "b1") for number in range(2)]
    order = []
    for _ in range(8):
        [one] = subject.choose(free, [], 1).devices
        free.remove(one)
        order.append(one[:2])
    assert order == ["a0", "b0", "a1", "b1"] * 2


def test_equal_gpus_are_taken_by_how_they_are_joined() -> None:
    chosen = replicas(2, 8).choose([DeviceId(f"{gpu}::0") for gpu in "bdefh"], [], 2).devices
    assert chosen == ("e::0", "f::0")


def test_spread_never_puts_two_slices_of_a_container_on_one_gpu() -> None:
    subject = replicas(4, 2, alone=True)
    assert list(subject.choose(every("ab", 4), [], 2).devices) == ids("a0 b0")
    assert list(subject.choose(every("ab", 4), ids("b2"), 2).devices) == ids("a0 b2")
    packing = replicas(4, 2, alone=True, pack=True)
    assert list(packing.choose(ids("a0 a1 b3"), [], 2).devices) == ids("a0 b3")


@pytest.mark.parametrize(
    ("free", "must", "size", "said"),
    [
        ("a0 a1 b0", "", 3, "3 asked for, each on a GPU of its own (spread: required), but only 2 GPUs have one to"),
        ("a0 a1 a2", "", 2, "2 asked for, each on a GPU of its own (spread: required), but only 1 GPU has one to give"),
        ("a0 a1 b0", "a0 a1", 3, "but a::0, a::1 must be included and share a GPU"),
    ],
)
def test_spread_that_cannot_be_had_is_refused_with_the_reason(free: str, must: str, size: int, said: str) -> None:
    with pytest.raises(UnsatisfiableRequest) as caught:
        replicas(4, 3, alone=True).choose(ids(free), ids(must), size)
    assert said in str(caught.value)


@pytest.mark.parametrize("unknown", ["a", "a::4", "a::-1", "a::", "a::x", "z::0", "a::0::0", "a::٣"])
def test_an_id_that_is_not_offered_is_unknown(unknown: str) -> None:
    with pytest.raises(UnknownDevice):
        replicas(4).choose([DeviceId(unknown)], [DeviceId(unknown)], 1)
    with pytest.raises(UnknownDevice):
        migs((1,)).choose([DeviceId("a0::0")], [DeviceId("a0::0")], 1)


def test_slices_that_have_just_ceased_to_be_are_left_out() -> None:
    free = [DeviceId(f"a::{number}") for number in range(8)]
    assert replicas(4).choose(free, [], 4).devices == tuple(free[:4])


def test_a_resource_may_have_shared_and_plain_devices() -> None:
    places = {DeviceId("a"): Place(0), DeviceId("b"): Place(1, replicas=2), DeviceId("c"): Place(2)}
    subject = Chooser(RESOURCE, PAIRS, places)
    assert subject.choose([DeviceId("a"), DeviceId("c")], [], 2).devices == ("a", "c")
    assert subject.choose([DeviceId("a"), *ids("b0 b1")], [], 3).devices == ("a", "b::0", "b::1")


def test_a_lost_gpu_gives_no_slices() -> None:
    tables = Tables.build(machines.without(machines.bridged_pairs(), 0))
    places = {DeviceId("a"): Place(0, replicas=2), DeviceId("b"): Place(1, replicas=2)}
    subject = Chooser(RESOURCE, tables, places)
    assert list(subject.choose(every("ab", 2), [], 2).devices) == ids("b0 b1")
    assert list(subject.choose(every("ab", 2), ids("a1"), 2).devices) == ids("a1 b0")
    with pytest.raises(UnsatisfiableRequest, match="only 2 can be used, leaving out the lost a::0, a::1"):
        subject.choose(every("ab", 2), [], 3)


REQUESTS = st.tuples(
    st.lists(st.integers(0, 31), unique=True, min_size=1), st.integers(0, 3), st.integers(1, 32), st.booleans()
)


@given(REQUESTS)
def test_an_answer_is_what_was_asked_for_and_nothing_else(request_: tuple[list[int], int, int, bool]) -> None:
    numbers, given_, size, pack = request_
    free = [DeviceId(f"{'abcdefgh'[number // 4]}::{number % 4}") for number in numbers]
    must, size = free[:given_], max(min(size, len(free)), min(given_, len(free)))
    subject = replicas(4, 8, pack=pack)

    chosen = subject.choose(free, must, size).devices

    assert len(set(chosen)) == len(chosen) == size
    assert set(must) <= set(chosen) <= set(free)
    assert subject.choose(reversed(free), must, size).devices == chosen


@given(REQUESTS)
def test_distributed_leaves_no_gpu_two_ahead_of_one_that_had_room(request_: tuple[list[int], int, int, bool]) -> None:
    numbers, _, size, _ = request_
    free = [DeviceId(f"{'abcdefgh'[number // 4]}::{number % 4}") for number in numbers]
    chosen = replicas(4, 8).choose(free, [], min(size, len(free))).devices

    room, took = Counter(one[0] for one in free), Counter(one[0] for one in chosen)
    after = {gpu: 4 - room[gpu] + took[gpu] for gpu in "abcdefgh"}
    for gpu in took:
        assert all(after[gpu] <= after[other] + 1 for other in "abcdefgh" if room[other] > took[other])


@given(REQUESTS)
def test_spread_is_kept_or_refused(request_: tuple[list[int], int, int, bool]) -> None:
    numbers, _, size, pack = request_
    free = [DeviceId(f"{'abcdefgh'[number // 4]}::{number % 4}") for number in numbers]
    size, gpus = min(size, len(free)), len({one[0] for one in free})
    subject = replicas(4, 8, pack=pack, alone=True)
    if size > gpus:
        with pytest.raises(UnsatisfiableRequest):
            subject.choose(free, [], size)
    else:
        assert len({one[0] for one in subject.choose(free, [], size).devices}) == size
