"""Which devices are offered several times, and under which name."""

import pytest

from gpuplugin.config.settings import Config, Mps, ReplicatedResource, Sharing, TimeSlicing
from gpuplugin.plan.desired import all_units
from gpuplugin.plan.mps import groups
from gpuplugin.plan.sharing import Kind, Share
from tests.plan.machine import gpu, inventory, strategy

GPU = "nvidia.com/gpu"
FOUR = [gpu(index) for index in range(4)]


def sliced(*entries, machine=FOUR, config=None, **section):
    flags = (config or Config()).flags
    sharing = Sharing(time_slicing=TimeSlicing(resources=entries, **section))
    return all_units(inventory(*machine), Config(flags=flags, sharing=sharing))


def names(found):
    return [(unit.resource.removeprefix("nvidia.com/"), unit.share.replicas if unit.share else 1) for unit in found]


@pytest.mark.parametrize(
    ("entry", "section", "expected"),
    [
        ({}, {}, [("gpu", 4)] * 4),
        ({}, {"rename_by_default": True}, [("gpu.shared", 4)] * 4),
        ({"rename": "nvidia.com/slice"}, {}, [("slice", 4)] * 4),
        ({"rename": "nvidia.com/slice"}, {"rename_by_default": True}, [("slice", 4)] * 4),
        ({"devices": 2}, {}, [("gpu", 4), ("gpu", 4), ("gpu", 1), ("gpu", 1)]),
        ({"devices": 1, "rename": "nvidia.com/slice"}, {}, [("slice", 4), *[("gpu", 1)] * 3]),
        ({"devices": (1, "GPU-3")}, {}, [("gpu", 1), ("gpu", 4), ("gpu", 1), ("gpu", 4)]),
        ({"devices": ("3", "gpu-3")}, {}, [*[("gpu", 1)] * 3, ("gpu", 4)]),
    ],
)
def test_selection_and_names(entry, section, expected):
    assert names(sliced(ReplicatedResource(GPU, 4, **entry), **section).units) == expected


@pytest.mark.parametrize(
    ("devices", "remark"),
    [
        (5, "sharing.timeSlicing.resources[0].devices: 5 of nvidia.com/gpu shall be shared, but this node has 4"),
        ((0, 9), "sharing.timeSlicing.resources[0].devices: no nvidia.com/gpu of this node is '9'"),
        (("0:1", 1), "sharing.timeSlicing.resources[0].devices: no nvidia.com/gpu of this node is '0:1'"),
    ],
)
def test_what_a_selection_does_not_find_is_told_and_the_rest_is_shared(devices, remark):
    found = sliced(ReplicatedResource(GPU, 4, devices=devices))
    assert found.remarks == (remark,)
    assert any(unit.share for unit in found.units)


def test_mig_devices_are_selected_by_index_and_uuid():
    entry = ReplicatedResource("nvidia.com/mig-1g.10gb", 2, devices=("0:1", "MIG-1-0"))
    machine = [gpu(0, "1g.10gb", "1g.10gb"), gpu(1, "1g.10gb", "3g.40gb")]
    found = sliced(entry, machine=machine, config=strategy("mixed")).units
    assert [(unit.index, bool(unit.share)) for unit in found] == [
        ("0:0", False),
        ("0:1", True),
        ("1:0", True),
        ("1:1", False),
    ]


def test_rules_of_a_section_are_on_each_share():
    entry = ReplicatedResource(GPU, 4, spread="required")
    [share] = {unit.share for unit in sliced(entry, fail_requests_greater_than_one=True).units}
    assert share == Share(Kind.TIME_SLICING, 4, one_each=True, spread=True)


def mps(machine, replicas=4, **section):
    sharing = Sharing(mps=Mps(resources=(ReplicatedResource(GPU, replicas),), **section))
    config = Config(sharing=sharing)
    return groups(all_units(inventory(*machine), config).units, config)


def test_mps_divides_a_gpu_among_its_clients():
    [group] = mps(FOUR[:2])
    assert (group.resource, group.gpus, group.clients) == (GPU, ("GPU-0", "GPU-1"), 4)
    assert group.thread_percentage == 25
    assert group.memory == {"GPU-0": 20 << 30, "GPU-1": 20 << 30}


def test_the_limits_of_mps_can_be_set():
    [group] = mps(FOUR[:1], default_active_thread_percentage=60, default_pinned_device_memory_limit="10G")
    assert (group.thread_percentage, group.memory) == (60, {"GPU-0": 10 << 30})


def test_mps_limits_no_memory_where_its_size_is_not_known():
    [group] = mps([gpu(0, memory_bytes=None)])
    assert group.memory == {}


def test_a_gpu_with_too_many_clients_is_in_no_group():
    [group] = mps([gpu(0), gpu(1, compute_capability=(6, 0))], 20)
    assert group.gpus == ("GPU-0",)


def test_without_mps_no_control_daemon_is_asked_for():
    assert groups(sliced(ReplicatedResource(GPU, 4)).units, Config()) == ()
