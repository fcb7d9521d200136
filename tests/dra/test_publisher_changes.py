"""That every way from what is there to what is wanted is short, safe after each step, and can be stopped anywhere."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dra.changes import Changes, Taken, bare, changes
from dra.slices import Contents, Owner, cut
from gpuplugin.kube.objects import (
    Attribute,
    Counter,
    CounterSet,
    CounterUse,
    Device,
    Meta,
    OwnerReference,
    ResourceSlice,
    Taint,
)

OWNER = Owner("node", "uid")
TAINT = Taint(key="gpuplugin.io/unhealthy", effect="NoSchedule", value="XID-79")


def wanted(*devices: Device, counters: Sequence[CounterSet] = ()) -> tuple[ResourceSlice, ...]:
    return cut(OWNER, Contents(devices, tuple(counters)))


def gpus(count: int) -> list[Device]:
    return [Device(name=f"gpu-{i}") for i in range(count)]


class Server:
    """Slices as a server keeps them: versions, UIDs, times of taints."""

    def __init__(self) -> None:
        self.slices: dict[str, ResourceSlice] = {}
        self.version = 0
        self.writes = 0

    def write(self, one: ResourceSlice) -> ResourceSlice:
        there = self.slices.get(one.metadata.name)
        assert one.metadata.resource_version == (there.metadata.resource_version if there else "")
        self.version += 1
        self.writes += 1
        devices = tuple(
            replace(
                device, taints=tuple(replace(t, time_added=t.time_added or f"T{self.version}") for t in device.taints)
            )
            for device in one.spec.devices
        )
        uid = there.metadata.uid if there else f"u{self.version}"
        meta = replace(one.metadata, resource_version=str(self.version), uid=uid)
        self.slices[one.metadata.name] = replace(one, metadata=meta, spec=replace(one.spec, devices=devices))
        return self.slices[one.metadata.name]

    def delete(self, one: ResourceSlice) -> None:
        self.writes += 1
        del self.slices[one.metadata.name]

    def carry_out(self, todo: Changes, steps: int | None = None) -> None:
        actions = [*((self.write, one) for one in todo.writes), *((self.delete, one) for one in todo.deletes)]
        for act, one in actions[:steps]:
            act(one)

    def bring(self, *slices: ResourceSlice) -> Changes:
        todo = changes(slices, self.slices.values(), {})
        self.carry_out(todo)
        return todo

    def visible(self) -> list[Device] | None:
        """The pool's devices as the scheduler sees them; None while the pool is not complete or not consistent."""
        pool = [one for one in self.slices.values() if one.spec.pool.name == OWNER.node]
        newest = max((one.spec.pool.generation for one in pool), default=0)
        current = [one for one in pool if one.spec.pool.generation == newest]
        devices = [device for one in sorted(current, key=lambda one: one.metadata.name) for device in one.spec.devices]
        complete = all(one.spec.pool.resource_slice_count == len(current) for one in current)
        names = [device.name for device in devices]
        counters = {one_set.name for one in current for one_set in one.spec.shared_counters}
        uses = {use.counter_set for device in devices for use in device.consumes_counters}
        return devices if complete and len(set(names)) == len(names) and uses <= counters else None


@pytest.fixture
def server() -> Server:
    return Server()


def generations(server: Server) -> set[int]:
    return {one.spec.pool.generation for one in server.slices.values()}


def test_nothing_there_is_written_once(server: Server):
    server.bring(*wanted(*gpus(70)))
    assert server.writes == 2
    assert generations(server) == {1}
    assert not server.bring(*wanted(*gpus(70)))


def test_a_change_within_one_slice_keeps_the_generation(server: Server):
    server.bring(*wanted(*gpus(70)))
    sick = gpus(70)
    sick[3] = replace(sick[3], taints=(TAINT,))
    server.bring(*wanted(*sick))
    assert server.writes == 3
    assert generations(server) == {1}
    assert not server.bring(*wanted(*sick))


def test_changes_in_two_slices_that_do_not_meet_keep_the_generation(server: Server):
    server.bring(*wanted(*gpus(70)))
    sick = gpus(70)
    sick[3] = sick[3].__class__(name="gpu-3", taints=(TAINT,))
    sick[69] = sick[69].__class__(name="gpu-69", taints=(TAINT,))
    server.bring(*wanted(*sick))
    assert (server.writes, generations(server)) == (4, {1})


def test_devices_that_change_slices_need_a_generation(server: Server):
    server.bring(*wanted(*gpus(70)))
    server.bring(*wanted(*gpus(70)[1:]))
    assert generations(server) == {2}
    assert server.writes == 4


def test_another_number_of_slices_needs_a_generation(server: Server):
    server.bring(*wanted(*gpus(64)))
    server.bring(*wanted(*gpus(65)))
    assert generations(server) == {2}
    server.bring(*wanted(*gpus(64)))
    assert generations(server) == {3}
    assert len(server.slices) == 1


def test_counters_and_their_use_change_together_under_a_generation(server: Server):
    def shared(amount: str) -> tuple[ResourceSlice, ...]:
        use = CounterUse(counter_set="s", counters={"c": Counter(value=amount)})
        counters = CounterSet(name="s", counters={"c": Counter(value=amount)})
        return wanted(Device(name="gpu-0", consumes_counters=(use,)), counters=[counters])

    server.bring(*shared("7"))
    server.bring(*shared("8"))
    assert generations(server) == {2}


def test_a_deleted_slice_is_put_back_alone(server: Server):
    server.bring(*wanted(*gpus(70)))
    del server.slices["node-gpu.nvidia.com-01"]
    assert server.visible() is None
    todo = server.bring(*wanted(*gpus(70)))
    assert [one.metadata.name for one in todo.writes] == ["node-gpu.nvidia.com-01"]
    assert generations(server) == {1}


def test_what_kubelet_wiped_comes_back_with_the_generation_it_had(server: Server):
    todo = changes(wanted(*gpus(1)), (), {}, last_generation=4)
    assert todo.writes[0].spec.pool.generation == 4


def test_an_edited_slice_is_mended_and_what_others_put_beside_it_stays(server: Server):
    (ours,) = wanted(*gpus(2))
    server.bring(ours)
    theirs = OwnerReference(api_version="v1", kind="ConfigMap", name="x", uid="y")
    there = server.slices[ours.metadata.name]
    edited = replace(
        there,
        metadata=replace(there.metadata, labels={"a": "b"}, owner_references=(theirs,), finalizers=("x/y",)),
        spec=replace(there.spec, devices=()),
    )
    server.slices[ours.metadata.name] = edited
    server.bring(ours)
    mended = server.slices[ours.metadata.name]
    assert mended.spec.devices == ours.spec.devices
    assert mended.metadata.owner_references == (OWNER.reference, theirs)
    assert (mended.metadata.labels, mended.metadata.finalizers) == ({"a": "b"}, ("x/y",))
    assert not server.bring(ours)


def test_labels_alone_are_nobodys_business(server: Server):
    (ours,) = wanted(*gpus(2))
    there = server.write(ours)
    server.slices[ours.metadata.name] = replace(there, metadata=replace(there.metadata, labels={"a": "b"}))
    assert not server.bring(ours)


def test_a_node_made_anew_owns_the_slices(server: Server):
    server.bring(*wanted(*gpus(1)))
    again = cut(Owner("node", "other-uid"), Contents(tuple(gpus(1))))
    server.bring(*again)
    (one,) = server.slices.values()
    assert [owner.uid for owner in one.metadata.owner_references] == ["other-uid"]


def test_a_taint_that_stays_keeps_its_time(server: Server):
    server.bring(*wanted(replace(gpus(1)[0], taints=(TAINT,))))
    other = replace(TAINT, key="gpuplugin.io/other")
    server.bring(*wanted(replace(gpus(1)[0], taints=(TAINT, other))))
    (one,) = server.slices.values()
    assert [taint.time_added for taint in one.spec.devices[0].taints] == ["T1", "T2"]


def test_slices_of_the_driver_before_us_give_way_without_a_gap(server: Server):
    (ours,) = wanted(*gpus(2))
    pool = replace(ours.spec.pool, generation=5)
    server.write(replace(ours, metadata=Meta(name="node-gpu.nvidia.com-x7f2p"), spec=replace(ours.spec, pool=pool)))
    elsewhere = replace(pool, name="node-old")
    server.write(replace(ours, metadata=Meta(name="old"), spec=replace(ours.spec, pool=elsewhere)))
    todo = changes((ours,), server.slices.values(), {})
    for one in todo.writes:
        server.write(one)
        assert server.visible() == gpus(2)
    for one in todo.deletes:
        server.delete(one)
        assert server.visible() == gpus(2)
    assert list(server.slices) == [ours.metadata.name]
    assert generations(server) == {6}


def test_what_is_on_its_way_out_is_not_deleted_twice(server: Server):
    (ours,) = wanted(*gpus(1))
    server.bring(ours)
    going = replace(ours, metadata=Meta(name="other", deletion_timestamp="2026-01-01T00:00:00Z"))
    assert not changes((ours,), [*server.slices.values(), going], {}).deletes


def test_what_a_server_makes_of_ours_is_not_argued_with(server: Server):
    (ours,) = wanted(Device(name="gpu-0", attributes={"a": Attribute(string="x")}))
    there = server.write(replace(ours, spec=replace(ours.spec, pool=replace(ours.spec.pool, generation=1))))
    altered = replace(there, spec=replace(there.spec, devices=(Device(name="gpu-0"),)))
    known = {ours.metadata.name: Taken(bare(ours.spec), bare(altered.spec))}
    assert changes((ours,), [altered], {})
    assert not changes((ours,), [altered], known)
    edited = replace(altered, spec=replace(altered.spec, devices=()))
    assert changes((ours,), [edited], known)


@st.composite
def pools(draw: st.DrawFn) -> tuple[ResourceSlice, ...]:
    names = draw(st.lists(st.integers(0, 139), unique=True, min_size=0, max_size=140))
    counted = draw(st.booleans())
    amount = draw(st.sampled_from("78"))
    sets = [CounterSet(name="s", counters={"c": Counter(value=amount)})] if counted else []
    use = (CounterUse(counter_set="s", counters={"c": Counter(value=amount)}),) if counted else ()
    sick = draw(st.sets(st.sampled_from(names or [0]), max_size=2))
    return wanted(
        *(Device(name=f"gpu-{i}", taints=(TAINT,) if i in sick else (), consumes_counters=use) for i in names),
        counters=sets,
    )


def plain(devices: Sequence[Device]) -> list[Device]:
    return [replace(device, taints=tuple(replace(t, time_added=None) for t in device.taints)) for device in devices]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(pools(), st.integers(0, 6), st.booleans()), min_size=1, max_size=4))
def test_stopped_anywhere_nothing_mixed_is_ever_seen_and_the_end_is_the_same(story):
    server = Server()
    known: list[list[Device]] = []
    for slices, steps, wiped in story:
        if wiped and server.slices:
            del server.slices[min(server.slices)]
        want = [device for one in slices for device in one.spec.devices]
        known.append(want)
        todo = changes(slices, server.slices.values(), {})
        for step in range(min(steps, len(todo.writes) + len(todo.deletes))):
            actions = [*((server.write, one) for one in todo.writes), *((server.delete, one) for one in todo.deletes)]
            act, one = actions[step]
            act(one)
            seen = server.visible()
            if seen is not None and seen:
                for device in plain(seen):
                    assert any(device in before for before in known)
                counts = {use.counters["c"].value for device in seen for use in device.consumes_counters}
                assert len(counts) <= 1
    last = story[-1][0]
    server.carry_out(changes(last, server.slices.values(), {}))
    seen = server.visible()
    assert seen is not None
    assert plain(seen) == [device for one in last for device in one.spec.devices]
    assert not changes(last, server.slices.values(), {})
