"""What each MIG strategy makes of each machine, and which GPUs it cannot use."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.config import Config
from gpuplugin.config.settings import Devices
from gpuplugin.plan.units import units
from tests.plan.machine import gpu, inventory, strategy

GPU, SMALL, BIG = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
NONE, SINGLE, MIXED = map(strategy, ("none", "single", "mixed"))


def seen(machine, config):
    found = units(machine, config)
    return {(unit.resource, str(unit.uuid), not unit.isolated) for unit in found.units}, len(found.remarks)


@pytest.mark.parametrize(
    ("config", "gpus", "expected", "remarks"),
    [
        (NONE, [gpu(0), gpu(1)], {(GPU, "GPU-0", True), (GPU, "GPU-1", True)}, 0),
        (NONE, [gpu(0), gpu(1, "1g.10gb")], {(GPU, "GPU-0", True), (GPU, "GPU-1", False)}, 0),
        (NONE, [gpu(0, mig=None)], {(GPU, "GPU-0", True)}, 0),
        (SINGLE, [gpu(0), gpu(1)], {(GPU, "GPU-0", True), (GPU, "GPU-1", True)}, 0),
        (
            SINGLE,
            [gpu(0, "1g.10gb", "1g.10gb"), gpu(1, "1g.10gb")],
            {(GPU, "MIG-0-0", True), (GPU, "MIG-0-1", True), (GPU, "MIG-1-0", True)},
            0,
        ),
        (
            SINGLE,
            [gpu(0, "1g.10gb"), gpu(1, "1g.10gb"), gpu(2, "3g.40gb")],
            {(GPU, "MIG-0-0", True), (GPU, "MIG-1-0", True), (GPU, "MIG-2-0", False)},
            0,
        ),
        (SINGLE, [gpu(0, "1g.10gb"), gpu(1)], {(GPU, "MIG-0-0", True), (GPU, "GPU-1", False)}, 0),
        (
            SINGLE,
            [gpu(0, "1g.10gb"), gpu(1), gpu(2)],
            {(GPU, "MIG-0-0", False), (GPU, "GPU-1", True), (GPU, "GPU-2", True)},
            0,
        ),
        (SINGLE, [gpu(0, "1g.10gb"), gpu(1, mig=True)], {(GPU, "MIG-0-0", True)}, 1),
        (SINGLE, [gpu(0, "1g.10gb", "3g.40gb")], {(GPU, "MIG-0-0", False), (GPU, "MIG-0-1", False)}, 0),
        (
            MIXED,
            [gpu(0), gpu(1, "1g.10gb", "3g.40gb"), gpu(2, mig=True)],
            {(GPU, "GPU-0", True), (SMALL, "MIG-1-0", True), (BIG, "MIG-1-1", True)},
            1,
        ),
        (MIXED, [gpu(0, "1g.10gb+me")], {("nvidia.com/mig-1g.10gb.me", "MIG-0-0", True)}, 0),
        (MIXED, [gpu(0, "1c.3g.40gb")], {("nvidia.com/mig-1c.3g.40gb", "MIG-0-0", True)}, 0),
        (MIXED, [], set(), 0),
    ],
)
def test_strategies(config, gpus, expected, remarks):
    assert seen(inventory(*gpus), config) == (expected, remarks)


@pytest.mark.parametrize(
    ("config", "machine", "said"),
    [
        (NONE, [gpu(0, "1g.10gb")], "MIG is on, and flags.migStrategy none offers whole GPUs"),
        (SINGLE, [gpu(0), gpu(1, "1g.10gb")], "MIG is off, and flags.migStrategy single offers the 1g.10gb"),
        (
            SINGLE,
            [gpu(0, "3g.40gb", "1g.10gb"), gpu(1, "1g.10gb")],
            "its MIG layout (3g.40gb, 1g.10gb) differs: flags.migStrategy single offers 1g.10gb",
        ),
        (SINGLE, [gpu(0, "3g.40gb"), gpu(1), gpu(2)], "flags.migStrategy single offers whole GPUs"),
        (SINGLE, [gpu(0, "3g.40gb", "1g.10gb")], "flags.migStrategy single offers one profile on all GPUs"),
    ],
)
def test_an_odd_gpu_is_told_what_is_odd(config, machine, said):
    [isolated] = {unit.isolated for unit in units(inventory(*machine), config).units if unit.isolated}
    assert said in isolated


def test_an_empty_gpu_is_named():
    [remark] = units(inventory(gpu(3, mig=True)), MIXED).remarks
    assert remark == "GPU 3 (GPU-3, NVIDIA H100 80GB HBM3) is not offered: MIG is on, and it has no instances"


def test_the_gpu_for_the_screen_is_not_offered():
    found = units(inventory(gpu(0), gpu(1, model="NVIDIA DGX Display")), Config())
    assert [unit.uuid for unit in found.units] == ["GPU-0"]
    assert found.remarks == ("GPU 1 (GPU-1, NVIDIA DGX Display) is not offered: it is there for the screen",)


@pytest.mark.parametrize("entry", [1, "GPU-1", "0000:01:00.0", "*L40S", "NVIDIA L40S"])
def test_a_gpu_is_left_out_by_any_of_its_names(entry):
    config = Config(devices=Devices(exclude=(entry,)))
    found = units(inventory(gpu(0), gpu(1, model="NVIDIA L40S")), config)
    assert [unit.uuid for unit in found.units] == ["GPU-0"]
    assert found.remarks == (f"GPU 1 (GPU-1, NVIDIA L40S) is not offered: devices.exclude has {entry!r}",)


def test_a_gpu_that_is_left_out_has_no_say_in_the_layout():
    machine = inventory(gpu(0, "1g.10gb"), gpu(1), gpu(2))
    config = strategy("single", devices=Devices(exclude=(1, 2)))
    assert [(unit.uuid, unit.isolated, unit.position) for unit in units(machine, config).units] == [("MIG-0-0", "", 0)]


def test_a_filter_that_matches_nothing_is_told_of():
    found = units(inventory(gpu(0)), Config(devices=Devices(exclude=(7, "*T4"))))
    assert found.remarks == (
        "devices.exclude: 7 matches no GPU of this node",
        "devices.exclude: '*T4' matches no GPU of this node",
    )


LAYOUTS = st.lists(st.lists(st.sampled_from(["1g.10gb", "2g.20gb", "3g.40gb"]), max_size=3), max_size=6)


@given(LAYOUTS, st.sampled_from(["none", "single", "mixed"]))
def test_each_device_once_in_a_stable_order(layouts, name):
    machine = inventory(*(gpu(index, *profiles) for index, profiles in enumerate(layouts)))
    found = units(machine, strategy(name)).units
    assert found == units(machine, strategy(name)).units
    assert len({unit.uuid for unit in found}) == len(found)
    order = [(unit.position, unit.mig.index if unit.mig else -1) for unit in found]
    assert order == sorted(order)


@given(LAYOUTS)
def test_single_offers_one_kind_of_device_only(layouts):
    machine = inventory(*(gpu(index, *profiles) for index, profiles in enumerate(layouts)))
    usable = [unit for unit in units(machine, SINGLE).units if not unit.isolated]
    assert len({unit.mig.profile if unit.mig else "" for unit in usable}) <= 1


@given(LAYOUTS)
def test_mixed_offers_every_device_there_is(layouts):
    machine = inventory(*(gpu(index, *profiles) for index, profiles in enumerate(layouts)))
    found = units(machine, MIXED)
    assert len(found.units) == sum(max(1, len(profiles)) for profiles in layouts)
    assert not any(unit.isolated for unit in found.units)
