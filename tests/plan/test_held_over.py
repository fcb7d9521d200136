"""What pods have as it was offered before is not given a second time, and nothing else is held back."""

import pytest

from gpuplugin.config import Config
from gpuplugin.config.settings import GpuResource, ReplicatedResource, Resources, Sharing, TimeSlicing
from gpuplugin.plan.desired import all_units
from gpuplugin.plan.held_over import Grant, changed, forms, held_over
from tests.plan.machine import gpu, inventory, strategy

GPU = "nvidia.com/gpu"
WHOLE = Config()
RENAMED = Config(resources=Resources(gpus=(GpuResource("*", "nvidia.com/h100"),)))


def sliced(**more) -> Config:
    return Config(sharing=Sharing(time_slicing=TimeSlicing((ReplicatedResource(GPU, 4, **more),))))


def units(config, *gpus):
    return all_units(inventory(*gpus), config).units


@pytest.mark.parametrize(
    ("config", "grant", "held"),
    [
        (WHOLE, (GPU, "GPU-0"), False),
        (RENAMED, ("nvidia.com/h100", "GPU-0"), False),
        (RENAMED, (GPU, "GPU-0"), True),
        (WHOLE, ("nvidia.com/h100", "GPU-0"), True),
        (sliced(), (GPU, "GPU-0"), True),
        (sliced(), (GPU, "GPU-0::1"), False),
        (sliced(), (GPU, "GPU-0::9"), False),
        (sliced(rename="nvidia.com/part"), (GPU, "GPU-0::1"), False),
        (sliced(devices=("1",)), (GPU, "GPU-0::1"), True),
        (WHOLE, (GPU, "GPU-0::1"), True),
        (WHOLE, (GPU, "GPU-7"), False),
        (WHOLE, ("other.com/nic", "mlx5_0"), False),
    ],
)
def test_whole_gpus_and_slices(config, grant, held):
    found = held_over(units(config, gpu(0), gpu(1)), [Grant(*grant, "team/pod")])
    assert found.keys() == ({"GPU-0"} if held else set())


def test_the_reason_names_the_pod_what_it_has_and_what_comes_after():
    pods = [Grant(GPU, "GPU-0", "team/b"), Grant(GPU, "GPU-0", "team/a")]
    assert held_over(units(RENAMED, gpu(0)), pods) == {
        "GPU-0": "pod team/a still has it as nvidia.com/gpu (GPU-0); it is handed out as nvidia.com/h100 once that has "
        "ended"
    }


def test_an_instance_is_held_back_by_itself_and_by_who_has_all_of_its_gpu():
    mixed, single = strategy("mixed"), strategy("single")
    split = gpu(0, "1g.10gb", "1g.10gb")
    uuids = [device.uuid for device in split.mig_devices]
    [name] = {unit.resource for unit in units(mixed, split)}
    assert held_over(units(mixed, split), [Grant(name, uuids[0], "team/pod")]) == {}
    assert held_over(units(single, split), [Grant(name, uuids[0], "team/pod")]).keys() == {uuids[0]}
    assert held_over(units(mixed, split), [Grant(GPU, "GPU-0", "team/pod")]).keys() == set(uuids)


def test_what_has_changed_is_what_was_there_before():
    before, now = forms(units(WHOLE, gpu(0))), forms(units(RENAMED, gpu(0), gpu(1)))
    assert changed(before, now) == {"GPU-0"}
    assert changed(now, now) == changed(frozenset(), now) == frozenset()
