"""What is offered on a server that drops what keeps GPUs apart."""

from __future__ import annotations

from msgspec.structs import replace

from dra.gated import COUNTERS, TAINTS, USES, dropped, used, without
from dra.slices import Contents, Owner, cut
from gpuplugin.kube.objects import Attribute, Counter, CounterSet, CounterUse, Device, SliceSpec, Taint

USE = (CounterUse(counter_set="gpu-0", counters={"slices": Counter(value="8")}),)
SICK = Device(name="gpu-1", taints=(Taint(key="gpuplugin.io/unhealthy", effect="NoSchedule"),))
NOTED = Device(name="gpu-2", taints=(Taint(key="gpuplugin.io/note", effect="None"),))
WHOLE = Device(name="gpu-0", consumes_counters=USE)
PART = Device(name="gpu-0-mig-0-0", consumes_counters=USE)
SETS = (CounterSet(name="gpu-0", counters={"slices": Counter(value="8")}),)
ALL = Contents((WHOLE, PART, SICK, NOTED), SETS, frozenset({"gpu-0-mig-0-0"}))


def spec_of(*devices: Device) -> SliceSpec:
    return cut(Owner("n", "u"), Contents(devices))[0].spec


def names(contents: Contents) -> list[str]:
    return [device.name for device in contents.devices]


def test_a_server_that_keeps_all_is_given_all():
    assert without(ALL, ()) == ALL


def test_without_taints_the_ill_are_not_offered():
    found = without(ALL, {TAINTS})
    assert names(found) == ["gpu-0", "gpu-0-mig-0-0", "gpu-2"]
    assert found.counter_sets == SETS
    assert not any(device.taints for device in found.devices)


def test_without_counters_nothing_that_overlaps_is_offered():
    for lack in (COUNTERS, USES):
        found = without(ALL, {lack})
        assert names(found) == ["gpu-0", "gpu-1", "gpu-2"]
        assert found.counter_sets == ()
        assert not any(device.consumes_counters for device in found.devices)


def test_what_a_slice_relies_on():
    assert used(spec_of(Device(name="a"))) == set()
    assert used(spec_of(WHOLE, SICK)) == {USES, TAINTS}
    assert used(cut(Owner("n", "u"), ALL)[-1].spec) == {COUNTERS}


def test_what_was_dropped_is_named_by_its_path():
    written = spec_of(
        replace(SICK, attributes={"a.io/b": Attribute(strings=("x",)), "c": Attribute(string="y")}), WHOLE
    )
    answer = spec_of(Device(name="gpu-1", attributes={"a.io/b": Attribute(), "c": Attribute(string="z")}), WHOLE)
    assert dropped(written, answer) == {TAINTS, "devices[].attributes.a.io/b.strings"}
    assert dropped(written, written) == set()
    assert dropped(written, spec_of(SICK)) == {"devices[]"}


def test_what_a_server_adds_is_nothing_dropped():
    later = replace(SICK, taints=(replace(SICK.taints[0], time_added="2026-01-01T00:00:00Z"),))
    assert dropped(spec_of(SICK), spec_of(later)) == set()
