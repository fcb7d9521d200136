"""What the scheduler is told of a machine, and that the order alone keeps GPUs together that belong together."""

from __future__ import annotations

import itertools
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.names import Names, name_all
from dra.slices import Contents, Owner, cut, preference, taints, whole_gpus
from gpuplugin.kube.objects import Counter, CounterSet, Device
from gpuplugin.model.health import HEALTHY, DeviceHealth, Level
from gpuplugin.model.inventory import Inventory, MigMode
from gpuplugin.topology.allocate import Tables
from tests.topology import machines

OWNER = Owner("node-1", "uid-1")


def contents(inventory: Inventory, health=None, elsewhere=()) -> Contents:
    names = name_all(Names(), inventory, frozenset())
    health = {gpu.uuid: HEALTHY for gpu in inventory.gpus} | (health or {})
    return whole_gpus(inventory, Tables.build(inventory), names, health, elsewhere)


def numbers(found: Contents) -> list[int]:
    return [int(device.name.removeprefix("gpu-")) for device in found.devices]


@pytest.mark.parametrize("make", machines.MACHINES.values(), ids=machines.MACHINES)
def test_first_fit_gives_the_best_halves(make):
    inventory = make()
    tables = Tables.build(inventory)
    order = preference(tables)
    assert sorted(order) == list(range(len(inventory.gpus)))
    free = (1 << len(order)) - 1
    for size in (1, 4, 8):
        if size < len(order):
            first = sum(1 << i for i in order[:size])
            assert tables.score.cost(first) == tables.score.cost(tables.choose(free, 0, size))


@pytest.mark.parametrize("make", [machines.hgx_h100, machines.dgx_a100, machines.bridged_pairs, machines.plain_pcie])
def test_claims_for_four_land_on_one_numa_node_each(make):
    inventory = make()
    order = numbers(contents(inventory))
    for four in (order[:4], order[4:]):
        assert len({inventory.gpus[i].numa for i in four}) == 1


@pytest.mark.parametrize("make", [machines.bridged_pairs, machines.dgx_a100, machines.rtx8000])
def test_claims_for_two_land_on_a_pair_each(make):
    inventory = make()
    tables = Tables.build(inventory)
    order = numbers(contents(inventory))
    best = min(tables.score.cost(1 << i | 1 << j) for i, j in itertools.combinations(order, 2))
    for pair in zip(order[::2], order[1::2], strict=True):
        assert tables.score.cost(sum(1 << i for i in pair)) == best


def test_an_island_is_what_nvlinks_join():
    found = {
        device.name: device.attributes["gpuplugin.io/nvlinkIsland"].string
        for device in contents(machines.bridged_pairs()).devices
    }
    assert found == {f"gpu-{i}": f"gpu-{i // 2 * 2}" for i in range(8)}


def test_an_ill_gpu_goes_to_the_end_and_says_why():
    inventory = machines.hgx_h100()
    sick = DeviceHealth(Level.UNHEALTHY, "XID 79: GPU has fallen off the bus; restart the machine")
    found = contents(machines.without(inventory, 2), {inventory.gpus[2].uuid: sick})
    order = numbers(found)
    assert order[-1] == 2
    assert {inventory.gpus[i].numa for i in order[:4]} == {1}
    assert {device.name: device.taints for device in found.devices if device.taints} == {"gpu-2": taints(sick)}
    assert msgspec.to_builtins(taints(sick)) == (
        {
            "key": "gpuplugin.io/unhealthy",
            "value": "XID-79-GPU-has-fallen-off-the-bus-restart-the-machine",
            "effect": "NoSchedule",
        },
    )
    assert contents(inventory) == contents(inventory, {inventory.gpus[2].uuid: HEALTHY})


def test_health_that_is_not_known_is_a_taint_of_its_own():
    inventory = machines.inventory([machines.Slot()])
    names = name_all(Names(), inventory, None)
    found = whole_gpus(inventory, Tables.build(inventory), names, {})
    assert [(taint.key, taint.value) for taint in found.devices[0].taints] == [
        ("gpuplugin.io/unknown", "not-looked-at-yet")
    ]


@given(st.text())
def test_any_reason_becomes_a_label_value(reason: str):
    (taint,) = taints(DeviceHealth(Level.UNHEALTHY, reason))
    assert len(taint.value) <= 63
    assert not taint.value or (taint.value[0].isalnum() and taint.value[-1].isalnum() and taint.value.isascii())


def test_gpus_of_others_and_gpus_cut_up_are_not_there():
    inventory = machines.hgx_h100()
    gpus = list(inventory.gpus)
    gpus[1] = replace(gpus[1], mig=MigMode(current=True, pending=True))
    gpus[2] = replace(gpus[2], mig=MigMode(current=False, pending=True))
    found = contents(replace(inventory, gpus=tuple(gpus)), elsewhere={gpus[0].uuid})
    assert sorted(numbers(found)) == [2, 3, 4, 5, 6, 7]


def test_slices_are_the_nodes_and_end_with_it():
    (one,) = cut(OWNER, contents(machines.four_direct()))
    assert one.metadata.name == "node-1-gpu.nvidia.com-00"
    assert msgspec.to_builtins(one.metadata.owner_references) == (
        {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "uid-1", "controller": True},
    )
    assert (one.spec.driver, one.spec.node_name, one.spec.pool.name) == ("gpu.nvidia.com", "node-1", "node-1")


def test_no_devices_make_one_empty_slice():
    (one,) = cut(OWNER, Contents(()))
    assert one.spec.devices == ()
    assert one.spec.pool.resource_slice_count == 1


def test_what_is_too_much_for_one_slice_is_cut_in_order():
    devices = tuple(Device(name=f"gpu-{i}") for i in range(130))
    counters = tuple(CounterSet(name=f"gpu-{i}", counters={"slices": Counter(value="8")}) for i in range(9))
    found = cut(OWNER, Contents(devices, counters))
    assert [one.metadata.name.removeprefix("node-1-gpu.nvidia.com-") for one in found] == [
        "00", "01", "02", "counters-00", "counters-01"
    ]  # fmt: skip
    assert {one.spec.pool.resource_slice_count for one in found} == {5}
    assert tuple(device for one in found for device in one.spec.devices) == devices
    assert tuple(one_set for one in found for one_set in one.spec.shared_counters) == counters
    assert sorted(one.metadata.name for one in found) == [one.metadata.name for one in found]


def test_a_long_node_name_is_cut_and_stays_its_own():
    names = {cut(Owner(f"{'n' * 250}{end}", "uid"), Contents(()))[0].metadata.name for end in "ab"}
    assert len(names) == 2
    assert all(len(name) <= 253 for name in names)


def test_the_same_machine_gives_the_same_bytes():
    encode = msgspec.json.encode
    assert encode(cut(OWNER, contents(machines.dgx2()))) == encode(cut(OWNER, contents(machines.dgx2())))
