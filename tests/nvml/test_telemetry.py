"""A GPU's numbers through pynvml, over both doubles: what is told is in its unit, what is not is left out."""

import pytest

from gpuplugin.errors import GpuLost, NvmlUnavailable
from gpuplugin.model.telemetry import Quantity
from gpuplugin.sim import mig

EVERYTHING = frozenset(Quantity)
GPM = frozenset(
    {
        *(Quantity.GRAPHICS_ACTIVE, Quantity.SM_ACTIVE, Quantity.SM_OCCUPANCY, Quantity.TENSOR_ACTIVE),
        *(Quantity.DRAM_ACTIVE, Quantity.FP64_ACTIVE, Quantity.FP32_ACTIVE, Quantity.FP16_ACTIVE),
        *(Quantity.PCIE_TRANSMIT_RATE, Quantity.PCIE_RECEIVE_RATE),
        *(Quantity.NVLINK_TRANSMIT_RATE, Quantity.NVLINK_RECEIVE_RATE),
    }
)


def uuid(rig, index):
    return rig.state.snapshot.gpu(index).uuid


def look(rig, index, instances=None, wanted=EVERYTHING):
    return rig.nvml.telemetry(uuid(rig, index), instances or {}, wanted)


def sliced(rig, index):
    """Put a GPU into MIG mode with two instances; gives GPU instance id → slot."""

    def edit(now):
        now = mig.set_mode(now, index, enabled=True)
        for profile in ("1g.10gb", "3g.40gb"):
            now, _ = mig.create(now, index, profile)
        return now

    after = rig.state.change(edit)
    return {record.gi: record.slot for record in after.migs if record.gpu == index}


def test_a_whole_gpu_tells_everything_from_the_second_look_on(rig):
    first = look(rig, 3).whole
    assert first.keys() == EVERYTHING - GPM
    second = look(rig, 3).whole
    assert second.keys() == EVERYTHING
    assert second[Quantity.POWER] == pytest.approx(73.0)
    assert second[Quantity.ENERGY] == 73_000 * 3600
    assert second[Quantity.SM_CLOCK] == 1980
    assert (second[Quantity.GPU_UTILIZATION], second[Quantity.MEMORY_UTILIZATION]) == (30, 15)
    assert second[Quantity.NVLINK_RECEIVED] == 4000 * 1024
    assert second[Quantity.NVLINK_TOTAL] == 2 * 4000 * 1024
    assert second[Quantity.SM_ACTIVE] == pytest.approx(0.13)
    assert second[Quantity.PCIE_RECEIVE_RATE] == 13 * 1024**2
    assert second[Quantity.ROW_REMAP_FAILED] == 0
    total = rig.state.snapshot.gpu(3).memory
    memory = (Quantity.MEMORY_FREE, Quantity.MEMORY_USED, Quantity.MEMORY_RESERVED)
    assert sum(second[quantity] for quantity in memory) == total


def test_only_what_is_wanted_is_asked_and_given(rig):
    rig.state.fail("nvmlDeviceGetFieldValues", 999)
    rig.state.fail("nvmlGpmQueryDeviceSupport", 999)
    rig.state.fail("nvmlDeviceGetUtilizationRates", 999)
    assert look(rig, 0, wanted={Quantity.POWER}).whole == {Quantity.POWER: pytest.approx(70.0)}


def test_one_of_a_pair_comes_without_the_other(rig):
    assert look(rig, 1, wanted={Quantity.GPU_UTILIZATION}).whole == {Quantity.GPU_UTILIZATION: 10}
    assert look(rig, 1, wanted={Quantity.NVLINK_TOTAL}).whole == {Quantity.NVLINK_TOTAL: 2 * 2000 * 1024}


def test_a_call_that_fails_leaves_out_what_it_would_have_told(rig):
    rig.state.fail("nvmlDeviceGetPowerUsage", 999)
    look(rig, 0)
    assert look(rig, 0).whole.keys() == EVERYTHING - {Quantity.POWER}


def test_gpus_before_hopper_have_no_counters_of_their_units(make_rig):
    rig = make_rig("dgx-a100")
    rig.nvml.open()
    look(rig, 0)
    assert look(rig, 0).whole.keys() == EVERYTHING - GPM


def test_a_gpu_without_nvlinks_tells_nothing_of_them(make_rig):
    rig = make_rig("l40s-8")
    rig.nvml.open()
    assert not {quantity for quantity in look(rig, 0).whole if quantity.startswith("nvlink")}


def test_instances_of_mig_have_memory_and_counters_and_their_gpu_no_utilization(rig):
    instances = sliced(rig, 2)
    look(rig, 2, instances)
    found = look(rig, 2, instances)
    utilization = {
        *(Quantity.GPU_UTILIZATION, Quantity.MEMORY_UTILIZATION),
        *(Quantity.ENCODER_UTILIZATION, Quantity.DECODER_UTILIZATION),
    }
    assert found.whole.keys() == EVERYTHING - GPM - utilization
    memory = {Quantity.MEMORY_FREE, Quantity.MEMORY_USED, Quantity.MEMORY_RESERVED}
    assert {instance: values.keys() for instance, values in found.instances.items()} == dict.fromkeys(
        instances, GPM | memory
    )
    sizes = {record.gi: record.memory for record in rig.state.snapshot.migs if record.gpu == 2}
    for instance, values in found.instances.items():
        assert sum(values[quantity] for quantity in memory) == sizes[instance]
        assert values[Quantity.TENSOR_ACTIVE] == pytest.approx(0.12)


def test_an_instance_that_has_gone_leaves_the_others_theirs(rig):
    instances = sliced(rig, 2)
    look(rig, 2, instances)
    gone = min(instances)
    rig.state.change(lambda now: mig.destroy(now, 2, instances[gone]))
    found = look(rig, 2, instances)
    assert not found.instances[gone]
    assert found.instances[max(instances)].keys() >= GPM


def test_samples_start_afresh_when_nvml_is_opened_again(rig):
    look(rig, 0)
    rig.nvml.close()
    rig.nvml.open()
    assert not look(rig, 0).whole.keys() & GPM
    assert look(rig, 0).whole.keys() >= GPM


def test_a_lost_gpu_raises_and_the_others_are_read_on(rig):
    rig.state.lose(1)
    with pytest.raises(GpuLost):
        look(rig, 1)
    assert look(rig, 0).whole


def test_without_a_driver_it_is_unavailable(rig):
    rig.nvml.close()
    with pytest.raises(NvmlUnavailable):
        look(rig, 0)
