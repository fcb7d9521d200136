"""When a GPU is its new owner's: not before kubelet has said that nobody has it, or may get it, by way of the old."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpuplugin.config.settings import Dra
from gpuplugin.daemon.dra_owners import ELSEWHERE, NOT_ASKED, Owners
from gpuplugin.model.holds import Hold, Holder, Owner
from gpuplugin.plan.ledger import Ledger
from gpuplugin.serving.pod_resources import Allocatable, PluginDevice, PodResources
from tests.topology import machines

GPU = "nvidia.com/gpu"


class Node:
    """Three GPUs; `records`: what claims have."""

    def __init__(self) -> None:
        self.inventory = machines.inventory([machines.Slot() for _ in range(3)])
        self.a, self.b, self.c = (gpu.uuid for gpu in self.inventory.gpus)
        self.config = SimpleNamespace(dra=Dra())
        self.records = Ledger()
        self.owners = Owners(self, lambda: self.records)  # type: ignore[arg-type]

    def configure(self, *gpus: str) -> bool:
        self.config.dra = Dra(gpus=(self.a, self.b, self.c) if gpus == ("all",) else gpus)
        return self.owners.configured()

    def answer(self, *, counted=(), pods=(), question=None) -> bool:
        """What kubelet says: devices that it could give, and those that pods have."""
        return self.owners.take(
            question or self.owners.question(),
            Allocatable({(GPU, device): frozenset() for device in counted}, ()),
            PodResources(tuple(PluginDevice("team", "pod", GPU, device) for device in pods), ()),
        )


@pytest.fixture
def node() -> Node:
    return Node()


def test_without_claims_nobody_is_asked(node):
    assert not node.owners.unsettled
    assert set(node.owners.refused.values()) == {ELSEWHERE}


def test_gpu_of_claims_is_kept_back_until_kubelet_has_answered(node):
    assert node.configure(node.a, node.b)
    assert not node.configure(node.a, node.b), "said twice"
    assert node.owners.kept_back == {node.a: NOT_ASKED, node.b: NOT_ASKED}
    assert node.answer()
    assert node.owners.kept_back == {}
    assert node.owners.refused == {node.c: ELSEWHERE}
    assert not node.owners.unsettled


def test_what_was_asked_before_the_configuration_changed_counts_for_nothing(node):
    node.configure("all")
    question = node.owners.question()
    node.configure()
    node.configure("all")
    assert not node.answer(question=question)
    assert set(node.owners.kept_back) == {node.a, node.b, node.c}


def test_gpu_that_went_back_and_came_again_is_asked_for_again(node):
    node.configure("all")
    node.answer()
    node.configure(node.a)
    node.configure("all")
    assert set(node.owners.kept_back) == {node.b, node.c}


def test_gpu_that_came_while_kubelet_was_asked_is_asked_for_too(node):
    node.configure("all")
    whole = node.inventory
    node.inventory = SimpleNamespace(gpus=whole.gpus[:2])
    question = node.owners.question()
    node.inventory = whole
    node.answer(question=question)
    assert node.owners.kept_back == {node.c: NOT_ASKED}


def test_gpu_that_is_away_while_owners_change_is_asked_for_when_it_is_back(node):
    node.configure("all")
    node.answer()
    whole, node.inventory = node.inventory, SimpleNamespace(gpus=node.inventory.gpus[:2])
    node.configure()
    node.configure("all")
    node.inventory = whole
    assert set(node.owners.kept_back) == {node.a, node.b, node.c}


def test_gpu_that_kubelet_counts_for_a_device_plugin_waits_until_it_has_not_twice(node):
    node.configure("all")
    node.answer(counted=[f"{node.a}::3"])
    assert node.owners.kept_back == {node.a: f"kubelet still counts it for a device plugin, as {GPU}"}
    node.answer()
    assert node.owners.kept_back == {node.a: NOT_ASKED}, "a pod may have just got it"
    node.answer()
    assert node.owners.kept_back == {}
    node.answer(counted=[node.b])
    assert set(node.owners.kept_back) == {node.b}, "another plugin has begun to offer it"


def test_pod_that_has_it_is_in_the_way_and_is_named(node):
    node.configure("all")
    node.answer(pods=[node.b])
    division = node.owners.division(node.inventory)
    assert "pod team/pod" in division.withheld[node.b]
    assert node.owners.unsettled
    node.answer()
    assert node.owners.unsettled, "kubelet may have just started, and know few pods"
    node.answer()
    assert not node.owners.unsettled


def test_claim_that_has_it_keeps_it_from_the_device_plugin(node):
    node.configure("all")
    node.answer()
    node.records = Ledger((Hold(node.a, Holder(Owner.CLAIMS, "team", "train", "uid")),))
    node.configure()
    division = node.owners.division(node.inventory)
    assert list(division.withheld) == [node.a]
    assert division.owners[node.a] is Owner.DEVICE_PLUGIN
    node.records = Ledger()
    assert not node.owners.unsettled
