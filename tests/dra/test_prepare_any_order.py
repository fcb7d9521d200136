"""No order of calls gives a device twice, or leaks one."""

import asyncio
import random
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpuplugin.errors import DeviceHeld
from tests.dra.claims import ApiServer, Node, claim


class Claims(RuleBasedStateMachine):
    """Two instances, restarts, force-deleted claims, in any order: one holder a GPU, and nothing left at the end."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.api = ApiServer()
        self.nodes = [Node(Path(self.folder.name) / "claims", self.api)]
        self.nodes.append(self.nodes[0].again())
        self.prepared: dict[str, set[str]] = {}
        self.claims = {}
        self.count = 0

    @rule(gpus=st.sets(st.integers(0, 7), min_size=1, max_size=8), which=st.integers(0, 1))
    def prepare(self, gpus, which):
        self.count += 1
        one = claim(f"c{self.count}", *sorted(gpus))
        self.api.put(one)
        wanted = {f"gpu-{index}" for index in gpus}
        free = not any(wanted & held for held in self.prepared.values())
        try:
            asyncio.run(self.nodes[which].prepare(one))
        except DeviceHeld as held:
            assert not free
            assert all(self.prepared[uid] & wanted for uid in held.claims)  # noqa: PT017 - either outcome is right
            self.api.drop(one)
        else:
            assert free
            self.prepared[one.metadata.uid] = wanted
            self.claims[one.metadata.uid] = one

    @precondition(lambda self: self.prepared)
    @rule(data=st.data(), which=st.integers(0, 1))
    def again(self, data, which):
        uid = data.draw(st.sampled_from(sorted(self.prepared)))
        if (self.claims[uid].metadata.namespace, self.claims[uid].metadata.name) in self.api.objects:
            record = asyncio.run(self.nodes[which].prepare(self.claims[uid]))
            assert {d.device for d in record.devices} == self.prepared[uid]

    @precondition(lambda self: self.prepared)
    @rule(data=st.data(), which=st.integers(0, 1), forced=st.booleans())
    def unprepare(self, data, which, forced):
        uid = data.draw(st.sampled_from(sorted(self.prepared)))
        if forced:
            self.api.drop(self.claims[uid])
            return
        assert asyncio.run(self.nodes[which].unprepare(self.claims[uid]))
        assert not asyncio.run(self.nodes[1 - which].unprepare(self.claims[uid]))
        del self.prepared[uid]

    @rule(which=st.integers(0, 1))
    def restart(self, which):
        self.nodes[which] = self.nodes[which].again()

    @invariant()
    def records_are_what_was_prepared(self):
        for node in self.nodes:
            assert {uid: {d.device for d in r.devices} for uid, r in node.records().items()} == self.prepared

    def teardown(self):
        for uid in list(self.prepared):
            asyncio.run(self.nodes[0].unprepare(self.claims[uid]))
        assert [path.name for path in self.nodes[0].folder.iterdir()] == [".lock"]
        self.folder.cleanup()


Claims.TestCase.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
test_any_order_of_calls = Claims.TestCase


async def test_two_hundred_claims_in_a_row_in_random_order(node, api):
    dice = random.Random(20)
    waiting = [claim(f"c{number}", *dice.sample(range(8), dice.choice([1, 1, 2, 4, 8]))) for number in range(200)]
    api.put(*waiting)
    running, refused = [], 0
    while waiting or running:
        if waiting and dice.random() < 0.6:
            one = dice.choice(waiting)
            try:
                await node.prepare(one)
            except DeviceHeld:
                refused += 1
            else:
                waiting.remove(one)
                running.append(one)
        elif running:
            await node.unprepare(running.pop(dice.randrange(len(running))))
        held = [d.device for record in node.records().values() for d in record.devices]
        assert len(held) == len(set(held))
    assert refused
    assert node.records() == {}
