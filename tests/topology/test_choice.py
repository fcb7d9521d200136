from __future__ import annotations

import random

import pytest

from gpuplugin.errors import UnknownDevice, UnsatisfiableRequest
from gpuplugin.model.ids import DeviceId, ResourceName
from gpuplugin.model.inventory import Inventory
from gpuplugin.topology.allocate import Tables
from gpuplugin.topology.choice import Chooser, Place
from tests.topology import machines

RESOURCE = ResourceName("nvidia.com/gpu")


def chooser(machine: Inventory, places: dict[str, int] | None = None) -> Chooser:
    """Devices are called a, b, c … by position unless told otherwise."""
    named = places or {chr(ord("a") + i): i for i in range(len(machine.gpus))}
    return Chooser(RESOURCE, Tables.build(machine), {DeviceId(name): Place(place) for name, place in named.items()})


def ids(names: str) -> list[DeviceId]:
    return [DeviceId(name) for name in names]


def test_ids_in_ids_out() -> None:
    choice = chooser(machines.bridged_pairs()).choose(ids("bcdf"), ids("f"), 2)
    assert choice.devices == ("b", "f")


def test_order_and_repetition_of_the_request_make_no_difference() -> None:
    subject, free = chooser(machines.dgx1_volta()), ids("abdefgh")
    expected = subject.choose(free, ids("ea"), 5).devices
    dice = random.Random(7)
    for _ in range(20):
        dice.shuffle(free)
        assert subject.choose([*free, *free[:3]], ids("aea"), 5).devices == expected


def test_a_resource_may_offer_only_some_of_the_gpus() -> None:
    choice = chooser(machines.bridged_pairs(), {"x": 1, "y": 6, "z": 7}).choose(ids("xyz"), [], 2)
    assert choice.devices == ("y", "z")


def test_an_unknown_id_that_must_be_had_is_named() -> None:
    with pytest.raises(UnknownDevice, match="has no device 'r'") as caught:
        chooser(machines.hgx_h100()).choose(ids("ab"), ids("r"), 1)
    assert caught.value.device == "r"


def test_what_is_offered_no_longer_is_left_out_as_kubelet_hears_of_it_a_moment_later() -> None:
    assert chooser(machines.hgx_h100()).choose(ids("aqb"), [], 2).devices == ("a", "b")
    with pytest.raises(UnsatisfiableRequest, match=r"3 asked for, but only 2 can be used, without q, which"):
        chooser(machines.hgx_h100()).choose(ids("aqb"), [], 3)


@pytest.mark.parametrize(
    ("free", "must", "size", "said"),
    [
        ("abc", "", 4, "nvidia.com/gpu: 4 asked for, but only 3 can be used"),
        ("abc", "ab", 1, "nvidia.com/gpu: 1 asked for, but 2 must be included: a, b"),
        ("abc", "ad", 2, "nvidia.com/gpu: d must be included but is not among the available devices"),
        ("abh", "", 3, "nvidia.com/gpu: 3 asked for, but only 2 can be used, leaving out the lost h"),
    ],
)
def test_a_request_that_cannot_be_met_says_why(free: str, must: str, size: int, said: str) -> None:
    machine = machines.without(machines.hgx_h100(), 7)
    with pytest.raises(UnsatisfiableRequest) as caught:
        chooser(machine).choose(ids(free), ids(must), size)
    assert str(caught.value) == said


def test_a_lost_gpu_that_must_be_included_is() -> None:
    machine = machines.without(machines.hgx_h100(), 7)
    assert chooser(machine).choose(ids("abegh"), ids("h"), 2).devices == ("e", "h")
