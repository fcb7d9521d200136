"""A snapshot as series: what each device shows, whose it is, and that nothing is counted twice."""

from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.metrics import registry
from gpuplugin.metrics.collect import Holding, Observed, families
from gpuplugin.metrics.exposition import Exposition
from gpuplugin.model.health import HEALTHY, DeviceHealth, Level
from gpuplugin.model.telemetry import Quantity, Telemetry
from gpuplugin.topology.numa import alignment
from tests.metrics.promtool import promtool
from tests.metrics.test_exposition import read_labels
from tests.plan.machine import gpu, inventory

EVERYTHING = MappingProxyType({quantity: index + 0.5 for index, quantity in enumerate(Quantity)})
OF_MIG = MappingProxyType({Quantity.MEMORY_USED: 3 << 30, Quantity.SM_ACTIVE: 0.25})


def measured(machine):
    return {
        one.uuid: Telemetry(EVERYTHING, {mig.gpu_instance: OF_MIG for mig in one.mig_devices}) for one in machine.gpus
    }


def series(observed, name, **labels):
    """The samples of a series with those labels, as (labels, value)."""
    samples = [sample for family in families(observed) if family.series.name == name for sample in family.samples]
    found = [(read_labels(sample.labels), sample.value) for sample in samples]
    return [(have, value) for have, value in found if have.items() >= labels.items()]


def holding(index, pod="a", instance=None, container="main", **more):
    return Holding(f"GPU-{index}", instance, "nvidia.com/gpu", "default", pod, container, **more)


def test_a_gpu_has_the_labels_of_dcgm_exporter():
    machine = inventory(gpu(3))
    [(labels, value)] = series(Observed(machine, "node-1", measured(machine), (holding(3),)), "DCGM_FI_DEV_POWER_USAGE")
    assert labels == {
        "gpu": "3",
        "UUID": "GPU-3",
        "pci_bus_id": "00000000:03:00.0",
        "device": "nvidia3",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": "node-1",
        "DCGM_FI_DRIVER_VERSION": "580",
        "namespace": "default",
        "pod": "a",
        "container": "main",
    }
    assert value == EVERYTHING[Quantity.POWER]


def test_units_are_those_of_dcgm_exporter():
    machine = inventory(gpu(0, "1g.10gb"))
    observed = Observed(machine, telemetry=measured(machine))
    assert series(observed, "DCGM_FI_DEV_FB_USED", GPU_I_ID="1")[0][1] == 3 << 10
    [(_, total)] = series(observed, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL")
    assert total == pytest.approx(EVERYTHING[Quantity.NVLINK_TOTAL] / 1024)


def test_a_mig_device_has_its_own_series_with_profile_and_instance():
    machine = inventory(gpu(0, "1g.10gb", "3g.40gb"))
    observed = Observed(machine, telemetry=measured(machine), holdings=(holding(0, "sliced", instance=2),))
    ours = series(observed, "DCGM_FI_PROF_SM_ACTIVE", GPU_I_ID="2")
    assert [(labels["GPU_I_PROFILE"], labels["pod"], value) for labels, value in ours] == [("3g.40gb", "sliced", 0.25)]
    assert "pod" not in series(observed, "DCGM_FI_PROF_SM_ACTIVE", GPU_I_ID="1")[0][0]
    power = series(observed, "DCGM_FI_DEV_POWER_USAGE")
    assert len(power) == 1
    assert "pod" not in power[0][0], "the power is of the GPU, not of who has a slice"


def test_compute_instances_of_one_gpu_instance_are_one_device():
    machine = inventory(gpu(0, "1c.3g.40gb"))
    labels = [labels for labels, _ in series(Observed(machine), "DCGM_FI_DEV_XID_ERRORS")]
    assert [(one.get("GPU_I_ID"), one.get("GPU_I_PROFILE")) for one in labels] == [(None, None), ("1", "3g.40gb")]


def test_a_shared_gpu_is_one_series_of_nobody_and_has_an_allocation_for_each():
    machine = inventory(gpu(0))
    observed = Observed(machine, telemetry=measured(machine), holdings=(holding(0, "a"), holding(0, "b")))
    [(labels, _)] = series(observed, "DCGM_FI_DEV_POWER_USAGE")
    assert not labels.keys() & set(registry.HOLDER_LABELS)
    allocations = series(observed, "gpuplugin_allocation_info")
    assert [(labels["UUID"], labels["pod"], value) for labels, value in allocations] == [
        ("GPU-0", "a", 1),
        ("GPU-0", "b", 1),
    ]


def test_containers_of_one_pod_share_its_name_and_pods_of_one_claim_share_the_claims():
    machine = inventory(gpu(0), gpu(1))
    claim = {"claim_namespace": "default", "claim": "both", "device": "gpu-1"}
    observed = Observed(
        machine,
        holdings=(
            holding(0, "a", container="one"),
            holding(0, "a", container="two"),
            holding(1, "a", **claim),
            holding(1, "b", **claim),
        ),
    )
    of = {labels["gpu"]: labels for labels, _ in series(observed, "DCGM_FI_DEV_XID_ERRORS")}
    assert (of["0"].get("pod"), of["0"].get("container")) == ("a", None)
    assert (of["1"].get("pod"), of["1"].get("dra_claim_name"), of["1"]["dra_device_name"]) == (None, "both", "gpu-1")


def test_replicas_of_one_device_in_one_container_are_one_allocation():
    observed = Observed(inventory(gpu(0)), holdings=(holding(0), holding(0)))
    assert len(series(observed, "gpuplugin_allocation_info")) == 1


def test_what_is_held_and_is_no_longer_there_is_left_out():
    assert not series(Observed(inventory(gpu(0)), holdings=(holding(7),)), "gpuplugin_allocation_info")


def test_a_gpu_that_cannot_be_measured_has_no_numbers_and_is_still_told_of():
    machine = inventory(gpu(0), gpu(1))
    telemetry = measured(machine)
    del telemetry["GPU-1"]
    sick = DeviceHealth(Level.UNHEALTHY, "XID 79: GPU has fallen off the bus")
    observed = Observed(machine, telemetry=telemetry, health={("GPU-0", None): HEALTHY, ("GPU-1", None): sick})
    assert [labels["gpu"] for labels, _ in series(observed, "DCGM_FI_DEV_POWER_USAGE")] == ["0"]
    assert [value for _, value in series(observed, "gpuplugin_device_healthy")] == [1, 0]
    [(labels, value)] = series(observed, "gpuplugin_device_fault_info")
    assert (labels["UUID"], labels["state"], labels["reason"], value) == ("GPU-1", "unhealthy", sick.reason, 1)
    assert series(observed, "gpuplugin_gpus_measured", measured="no")[0][1] == 1


def test_the_last_xid_is_of_the_instance_that_had_it():
    machine = inventory(gpu(0, "1g.10gb"))
    observed = Observed(machine, last_xids={("GPU-0", 1): 94})
    values = {labels.get("GPU_I_ID"): value for labels, value in series(observed, "DCGM_FI_DEV_XID_ERRORS")}
    assert values == {None: 0, "1": 94}


def test_fragmentation_is_told_by_node_and_as_what_still_fits():
    machine = inventory(*map(gpu, range(8)))
    observed = Observed(machine, free={"device_plugin": alignment(machine, {0, 1, 4, 5, 6})})
    assert [(labels["numa_node"], n) for labels, n in series(observed, "gpuplugin_free_gpus")] == [("0", 2), ("1", 3)]
    assert series(observed, "gpuplugin_largest_aligned_request_gpus")[0][1] == 3


def test_kubelets_silence_is_told():
    assert series(Observed(inventory(), pods_known=False), "gpuplugin_pod_resources_up")[0][1] == 0
    assert series(Observed(inventory()), "gpuplugin_pod_resources_up")[0][1] == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.sampled_from(["one", "two"])), max_size=12))
def test_no_series_is_there_twice_whoever_holds_what(held):
    machine = inventory(gpu(0), gpu(1, "1g.10gb", "1g.10gb"), gpu(2), gpu(3))
    holdings = tuple(holding(index, pod, container=container) for index, pod, container in held)
    lines = (
        Exposition(lambda: families(Observed(machine, "n", measured(machine), holdings))).plain.decode().splitlines()
    )
    names = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert len(names) == len(set(names))


def test_all_of_it_is_in_the_registry_with_its_labels():
    machine = inventory(gpu(0, "1g.10gb"))
    for family in families(Observed(machine, "n", measured(machine), (holding(0),), health={("GPU-0", None): HEALTHY})):
        assert registry.REGISTRY[family.series.name] == family.series
        for sample in family.samples:
            assert read_labels(sample.labels).keys() <= set(family.series.labels)


def test_promtool_takes_it_and_finds_fault_only_with_names_that_are_dcgm_exporters():
    machine = inventory(gpu(0, "1g.10gb"), gpu(1))
    sick = DeviceHealth(Level.UNKNOWN, 'nothing is known: "\\" odd\ntext')
    observed = Observed(
        machine,
        "n",
        measured(machine),
        (holding(0, instance=1), holding(1)),
        health={("GPU-0", 1): HEALTHY, ("GPU-1", None): sick},
        resources=(("nvidia.com/gpu", 1, 1),),
        free={"claims": alignment(machine, {1})},
    )
    status, said = promtool("check", "metrics", text=Exposition(lambda: families(observed)).plain.decode())
    assert "error while linting" not in said
    assert status in (0, 3), said
    assert [line for line in said.splitlines() if line and not line.startswith("DCGM_FI_")] == []
