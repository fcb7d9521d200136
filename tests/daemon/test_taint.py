"""When the startup taint goes, and what of the node is changed for it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from gpuplugin.config import load
from gpuplugin.daemon import taint
from gpuplugin.errors import ConfigError, KubeForbidden, KubeInvalid
from gpuplugin.kube.objects import Meta, Node, NodeSpec, NodeStatus, NodeTaint

KEY = "gpuplugin.io/not-ready"
THEIRS, OURS = NodeTaint("theirs", "NoExecute"), NodeTaint(KEY, "NoSchedule")


def offer(usable: int, size: int, name: str = "nvidia.com/gpu"):
    return SimpleNamespace(name=name, usable=usable, size=size)


class FakeKube:
    """One node, of which each look shows the next of `allocatable`."""

    def __init__(self, *allocatable: str, taints=(THEIRS, OURS), refuse=()):
        self._allocatable, self._refuse = list(allocatable), list(refuse)
        self.taints, self.changes = taints, []

    async def node(self, name: str) -> Node:
        there = self._allocatable.pop(0) if len(self._allocatable) > 1 else self._allocatable[0]
        return Node(
            metadata=Meta(name=name),
            spec=NodeSpec(taints=self.taints),
            status=NodeStatus(allocatable={"nvidia.com/gpu": there}),
        )

    async def patch(self, _kind, name: str, operations) -> Node:
        if self._refuse:
            raise self._refuse.pop(0)
        self.changes.append(operations)
        self.taints = tuple(one for one in self.taints if one.key != KEY)
        return await self.node(name)


@pytest.mark.parametrize(
    ("offers", "allocatable", "expected"),
    [
        ((offer(8, 8),), {"nvidia.com/gpu": "8"}, True),
        ((offer(8, 8),), {"nvidia.com/gpu": "0"}, False),
        ((offer(8, 8),), {}, False),
        ((offer(7, 8),), {"nvidia.com/gpu": "7"}, True),
        ((offer(0, 8),), {"nvidia.com/gpu": "0"}, False),
        ((offer(8, 8), offer(2, 2, "nvidia.com/mig-3g.40gb")), {"nvidia.com/gpu": "8"}, False),
        ((offer(1000, 1000),), {"nvidia.com/gpu": "1k"}, True),
        ((offer(1000, 1000),), {"nvidia.com/gpu": "1e3"}, True),
        ((offer(1000, 1000),), {"nvidia.com/gpu": "999"}, False),
        ((offer(8, 8),), {"nvidia.com/gpu": "eight"}, False),
        ((offer(0, 0),), {}, True),
        ((), {}, True),
    ],
)
def test_what_the_node_object_must_say(offers, allocatable, expected):
    assert taint.can_be_had(offers, allocatable) is expected


async def test_only_our_taint_is_taken_and_only_if_it_is_still_where_it_was():
    kube = FakeKube("8")
    assert await taint.lift_once(kube, "n", KEY, (offer(8, 8),))
    assert kube.taints == (THEIRS,)
    assert kube.changes == [
        (
            {"op": "test", "path": "/spec/taints/1/key", "value": KEY},
            {"op": "remove", "path": "/spec/taints/1"},
        )
    ]


async def test_a_node_without_it_is_left_alone():
    kube = FakeKube("0", taints=(THEIRS,))
    assert await taint.lift_once(kube, "n", KEY, (offer(8, 8),))
    assert kube.changes == []


async def test_it_stays_until_kubelet_has_told_the_api_server_and_refusals_are_said_once(monkeypatch):
    monkeypatch.setattr(taint, "LOOK_SECONDS", 0.01)
    forbidden = [KubeForbidden("patch", "nodes", "n", 403, "no") for _ in range(3)]
    kube = FakeKube("0", "0", "8", refuse=[KubeInvalid("patch", "nodes", "n", "test failed"), *forbidden])
    warnings = []
    monkeypatch.setattr(taint.log, "warning", lambda *_, **said: warnings.append(said))
    async with asyncio.timeout(20):
        await taint._lift(kube, "n", KEY, lambda: (offer(8, 8),))
    assert kube.taints == (THEIRS,)
    assert [("test failed" in said["reason"], "nodes" in said["reason"]) for said in warnings] == [
        (True, True),
        (False, True),
    ]


async def test_the_api_server_is_asked_ever_more_rarely_and_not_at_all_while_no_answer_could_help(monkeypatch):
    asked, slept = [], []
    kube = FakeKube("0")
    node = kube.node

    async def counted(name):
        asked.append(len(slept))
        return await node(name)

    async def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 40:
            raise asyncio.CancelledError

    monkeypatch.setattr(kube, "node", counted)
    monkeypatch.setattr(taint.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await taint._lift(kube, "n", KEY, lambda: (offer(0 if len(slept) < 20 else 8, 8),))
    assert min(asked) == 20, "all GPUs were broken until then"
    assert min(slept[30:]) >= 30


async def test_it_is_asked_at_once_again_when_something_else_is_offered(monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 20:
            raise asyncio.CancelledError

    monkeypatch.setattr(taint.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await taint._lift(FakeKube("0"), "n", KEY, lambda: (offer(8 if len(slept) < 15 else 7, 8),))
    assert slept[14] > 10
    assert slept[15] <= taint.LOOK_SECONDS


def test_the_daemon_must_know_its_nodes_name():
    with pytest.raises(ConfigError, match=r"node\.name"):
        load(None, {"GPUPLUGIN_NODE_STARTUP_TAINT": KEY}, {})
