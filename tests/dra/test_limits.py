"""Each rule of the API, at its bound and beyond; the tests on the cluster ask the server itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from dra.limits import check, problems
from dra.names import Names, name_all
from dra.slices import Contents, Owner, cut, whole_gpus
from gpuplugin.errors import SlicesInvalid
from gpuplugin.kube.objects import (
    Attribute,
    Capacity,
    Counter,
    CounterSet,
    CounterUse,
    Device,
    ResourceSlice,
    Taint,
)
from gpuplugin.topology.allocate import Tables
from tests.topology import machines

OWNER = Owner("node-1", "uid")
REPLACE = msgspec.structs.replace


def one_device(**fields: Any) -> tuple[ResourceSlice, ...]:
    return cut(OWNER, Contents((REPLACE(Device(name="gpu-0"), **fields),)))


def devices(count: int, **fields: Any) -> tuple[ResourceSlice, ...]:
    """All in one slice, whatever `cut` would do."""
    (one,) = cut(OWNER, Contents(()))
    many = tuple(Device(name=f"gpu-{i}", **(fields if i == 0 else {})) for i in range(count))
    return (REPLACE(one, spec=REPLACE(one.spec, devices=many)),)


def counters(count: int) -> dict[str, Counter]:
    return {f"c-{i}": Counter(value="1") for i in range(count)}


def sets(*found: CounterSet, uses: tuple[CounterUse, ...] = ()) -> tuple[ResourceSlice, ...]:
    return cut(OWNER, Contents((Device(name="gpu-0", consumes_counters=uses),), found))


def with_sets_in_one(count: int) -> tuple[ResourceSlice, ...]:
    (one,) = cut(OWNER, Contents(()))
    many = tuple(CounterSet(name=f"s-{i}", counters=counters(1)) for i in range(count))
    return (REPLACE(one, spec=REPLACE(one.spec, shared_counters=many)),)


def attributes(count: int, size: int | None = None) -> dict[str, Attribute]:
    value = Attribute(number=1) if size is None else Attribute(strings=("x",) * size)
    return {f"a{i}": value for i in range(count)}


TAINT = Taint(key="gpuplugin.io/unhealthy", effect="NoSchedule", value="v")


@dataclass(frozen=True)
class Rule:
    name: str
    good: tuple[ResourceSlice, ...]
    bad: tuple[ResourceSlice, ...]
    key: str


def use(name: str, count: int) -> CounterUse:
    return CounterUse(counter_set=name, counters=counters(count))


def counter_set(name: str, count: int) -> CounterSet:
    return CounterSet(name=name, counters=counters(count))


def renamed(name: str) -> tuple[ResourceSlice, ...]:
    (one,) = cut(OWNER, Contents(()))
    return (REPLACE(one, metadata=REPLACE(one.metadata, name=name)),)


def counted(count: int) -> tuple[ResourceSlice, ...]:
    (one,) = cut(OWNER, Contents(()))
    return (REPLACE(one, spec=REPLACE(one.spec, pool=REPLACE(one.spec.pool, resource_slice_count=count))),)


RULES = [
    Rule("devices", devices(128), devices(129), "spec.devices"),
    Rule("devices, one tainted", devices(64, taints=(TAINT,)), devices(65, taints=(TAINT,)), "spec.devices"),
    Rule(
        "devices, one list",
        devices(64, attributes=attributes(1, 1)),
        devices(65, attributes=attributes(1, 1)),
        "spec.devices",
    ),
    Rule("device name", one_device(name="a" * 63), one_device(name="a" * 64), "spec.devices[0].name"),
    Rule("device name's form", one_device(name="a-1"), one_device(name="a_1"), "spec.devices[0].name"),
    Rule(
        "attributes",
        one_device(attributes=attributes(32)),
        one_device(attributes=attributes(33)),
        "spec.devices[0].attributes",
    ),
    Rule(
        "attributes and capacities",
        one_device(attributes=attributes(31), capacity={"memory": Capacity(value="1Gi")}),
        one_device(attributes=attributes(32), capacity={"memory": Capacity(value="1Gi")}),
        "spec.devices[0].attributes",
    ),
    Rule(
        "values",
        one_device(attributes=attributes(1, 48)),
        one_device(attributes=attributes(1, 49)),
        "spec.devices[0].attributes",
    ),
    Rule(
        "domain",
        one_device(attributes={f"{'d' * 63}/a": Attribute(number=1)}),
        one_device(attributes={f"{'d' * 64}/a": Attribute(number=1)}),
        "spec.devices[0].attributes",
    ),
    Rule(
        "identifier",
        one_device(attributes={"a" * 32: Attribute(number=1)}),
        one_device(attributes={"a" * 33: Attribute(number=1)}),
        "spec.devices[0].attributes",
    ),
    Rule(
        "identifier's form",
        one_device(attributes={"d.io/a_1": Attribute(number=1)}),
        one_device(attributes={"d.io/a-1": Attribute(number=1)}),
        "spec.devices[0].attributes",
    ),
    Rule(
        "string",
        one_device(attributes={"a": Attribute(string="é" * 32)}),
        one_device(attributes={"a": Attribute(string="é" * 32 + "x")}),
        "spec.devices[0].attributes[a]",
    ),
    Rule(
        "one value",
        one_device(attributes={"a": Attribute(flag=False)}),
        one_device(attributes={"a": Attribute(flag=False, number=0)}),
        "spec.devices[0].attributes[a]",
    ),
    Rule(
        "version",
        one_device(attributes={"a": Attribute(version="580.95.5-rc.1+b.01")}),
        one_device(attributes={"a": Attribute(version="580.95.05")}),
        "spec.devices[0].attributes[a]",
    ),
    Rule(
        "quantity",
        one_device(capacity={"memory": Capacity(value="81559Mi")}),
        one_device(capacity={"memory": Capacity(value="81559MiB")}),
        "spec.devices[0].capacity[memory]",
    ),
    Rule(
        "taints",
        one_device(taints=tuple(REPLACE(TAINT, value=f"v{i}") for i in range(16))),
        one_device(taints=tuple(REPLACE(TAINT, value=f"v{i}") for i in range(17))),
        "spec.devices[0].taints",
    ),
    Rule(
        "taint's value",
        one_device(taints=(REPLACE(TAINT, value="v" * 63),)),
        one_device(taints=(REPLACE(TAINT, value="v" * 64),)),
        "spec.devices[0].taints[0].value",
    ),
    Rule(
        "taint's key",
        one_device(taints=(REPLACE(TAINT, key="a.io/X_1"),)),
        one_device(taints=(REPLACE(TAINT, key="a.io/"),)),
        "spec.devices[0].taints[0].key",
    ),
    Rule(
        "taint's effect",
        one_device(taints=(REPLACE(TAINT, effect="None"),)),
        one_device(taints=(REPLACE(TAINT, effect="Never"),)),
        "spec.devices[0].taints[0].effect",
    ),
    Rule("counter sets", with_sets_in_one(8), with_sets_in_one(9), "spec.sharedCounters"),
    Rule("counters", sets(counter_set("s", 32)), sets(counter_set("s", 33)), "spec.sharedCounters[0].counters"),
    Rule("no counters", sets(counter_set("s", 1)), sets(counter_set("s", 0)), "spec.sharedCounters[0].counters"),
    Rule(
        "a device's sets",
        sets(*(counter_set(f"s-{i}", 1) for i in range(3)), uses=tuple(use(f"s-{i}", 1) for i in range(2))),
        sets(*(counter_set(f"s-{i}", 1) for i in range(3)), uses=tuple(use(f"s-{i}", 1) for i in range(3))),
        "spec.devices[0].consumesCounters",
    ),
    Rule("slice's name", renamed("a." + "n" * 251), renamed("a." + "n" * 252), "metadata.name"),
]
POOL_RULES = [
    Rule(
        "unknown counter",
        sets(counter_set("s", 1), uses=(use("s", 1),)),
        sets(counter_set("s", 1), uses=(use("s", 2),)),
        "spec.devices[].consumesCounters",
    ),
    Rule(
        "a name twice",
        cut(OWNER, Contents((Device(name="a"), Device(name="b")))),
        cut(OWNER, Contents((Device(name="a"), Device(name="a")))),
        "spec.devices[].name",
    ),
    Rule("count", counted(1), counted(2), "spec.pool.resourceSliceCount"),
]


@pytest.mark.parametrize("rule", [*RULES, *POOL_RULES], ids=lambda rule: rule.name)
def test_a_rule_holds_at_its_bound_and_not_beyond(rule: Rule):
    assert list(problems(rule.good)) == []
    assert [problem.key for problem in problems(rule.bad)] == [rule.key]


def test_devices_and_counters_do_not_share_a_slice():
    (one,) = devices(1)
    both = REPLACE(one, spec=REPLACE(one.spec, shared_counters=(counter_set("s", 1),)))
    assert [problem.key for problem in problems((both,))] == ["spec"]


def test_slices_of_two_generations_are_no_pool():
    first, second = cut(OWNER, Contents(tuple(Device(name=f"g-{i}") for i in range(65))))
    later = REPLACE(second, spec=REPLACE(second.spec, pool=REPLACE(second.spec.pool, generation=1)))
    assert [problem.key for problem in problems((first, later))] == ["spec.pool"]


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(SlicesInvalid) as caught:
        check(one_device(name="GPU_0", capacity={"memory": Capacity(value="much")}))
    assert len(caught.value.problems) == 2
    assert "ResourceSlice node-1-gpu.nvidia.com-00: spec.devices[0].name: 'GPU_0' is not allowed" in str(caught.value)


@pytest.mark.parametrize("make", machines.MACHINES.values(), ids=machines.MACHINES)
def test_what_we_make_is_within_the_rules(make):
    inventory = make()
    names = name_all(Names(), inventory, None)
    check(cut(OWNER, whole_gpus(inventory, Tables.build(inventory), names, {})))
