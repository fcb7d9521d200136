"""Whether a device is offered has one place and one reason."""

from dataclasses import replace

import pytest

from gpuplugin.config import Config
from gpuplugin.config.settings import (
    Dra,
    GpuResource,
    MigResource,
    Mps,
    ReplicatedResource,
    Resources,
    Sharing,
    TimeSlicing,
)
from gpuplugin.model.health import HEALTHY, Level, XidEvent
from gpuplugin.model.ids import GpuUuid, MigUuid, ResourceName
from gpuplugin.plan.desired import Facts, all_units, desired, for_claims
from gpuplugin.plan.health import Health, after_xid
from gpuplugin.plan.mps import MpsFolders, MpsNotReady
from tests.plan.machine import gpu, inventory, strategy

NAME = ResourceName("nvidia.com/gpu")
FOLDERS = MpsFolders("/run/nvidia/mps/nvidia.com/gpu/pipe", "/run/nvidia/mps/shm")


def offered(machine, facts=None, config=None, earlier=()):
    return desired(all_units(machine, config or Config()), facts or Facts(Health()), earlier)


def offer(machine, facts=None, config=None):
    [resource] = offered(machine, facts, config)
    return resource


def xid(device, code=79, **instance):
    return after_xid(Health(), XidEvent(GpuUuid(device), code, **instance), f"XID {code}", 0)


def test_every_gpu_stays_in_the_list_whatever_its_health():
    machine = inventory(gpu(0), gpu(1), gpu(2, fault="GPU is lost"))
    resource = offer(machine, Facts(xid("GPU-1")))
    assert [d.id for d in resource.devices] == ["GPU-0", "GPU-1", "GPU-2"]
    assert [d.health.reason for d in resource.devices] == ["", "XID 79", "GPU is lost"]
    assert (resource.usable, resource.size) == (1, 3)


def test_a_gpu_that_no_container_could_open_is_not_handed_out():
    facts = Facts(Health(), {GpuUuid("GPU-0"): "/dev/nvidia0 is missing"})
    assert offer(inventory(gpu(0)), facts).devices[0].health.reason == "/dev/nvidia0 is missing"


def test_all_reasons_are_told_each_once():
    facts = Facts(xid("GPU-0"), {GpuUuid("GPU-0"): "no node"})
    assert offer(inventory(gpu(0)), facts).devices[0].health.reason == "XID 79; no node"


def test_what_is_held_keeps_back_an_instance_or_all_of_its_gpu():
    machine = inventory(gpu(0, "1g.10gb", "1g.10gb"), gpu(1, "1g.10gb"))
    held = {MigUuid("MIG-0-1"): "pod a has it", GpuUuid("GPU-1"): "a claim has it"}
    resource = offer(machine, Facts(Health(), held=held), strategy("mixed"))
    assert [device.health.reason for device in resource.devices] == ["", "pod a has it", "a claim has it"]


def test_what_a_look_found_is_told_until_a_probe_has_found_it_too():
    lost = inventory(gpu(0, fault="lost"))
    assert offer(lost, Facts(Health(), {})).devices[0].health.reason == "lost"
    assert offer(lost, Facts(xid("GPU-0"), {})).devices[0].health.reason == "XID 79"
    facts = Facts(xid("GPU-0"), {GpuUuid("GPU-0"): "XID 79"})
    assert offer(inventory(gpu(0, fault="XID 79")), facts).devices[0].health.reason == "XID 79"


def test_unknown_health_is_neither_healthy_nor_blamed_on_the_gpu():
    health = offer(inventory(gpu(0, fault="lost")), Facts(Health().with_unknown("NVML is stuck"))).devices[0].health
    assert (health.level, health.reason) == (Level.UNKNOWN, "NVML is stuck")


def test_an_unknown_numa_node_gives_no_hint():
    resource = offer(inventory(gpu(4), gpu(5, numa=None)))
    assert [d.numa for d in resource.devices] == [(1,), ()]
    assert all(d.health == HEALTHY for d in resource.devices)


def test_models_may_have_resources_of_their_own_and_one_that_vanished_is_offered_empty():
    machine = inventory(gpu(0), gpu(1, model="NVIDIA L40S"))
    config = Config(resources=Resources(gpus=(GpuResource("*L40S", "nvidia.com/l40s"),)))
    found = offered(machine, config=config, earlier=[ResourceName("nvidia.com/a100")])
    assert [(r.name, [d.id for d in r.devices]) for r in found] == [
        ("nvidia.com/a100", []),
        (NAME, ["GPU-0"]),
        ("nvidia.com/l40s", ["GPU-1"]),
    ]


def test_mig_devices_have_their_parents_numa_node_and_indices():
    [resource] = offered(inventory(gpu(5, "3g.40gb", "3g.40gb")), config=strategy("mixed"))
    assert resource.name == "nvidia.com/mig-3g.40gb"
    assert [(d.id, d.gpu, d.index, d.numa) for d in resource.devices] == [
        ("MIG-5-0", "GPU-5", "5:0", (1,)),
        ("MIG-5-1", "GPU-5", "5:1", (1,)),
    ]


@pytest.mark.parametrize(
    ("event", "taken"),
    [
        ({}, ["MIG-0-0", "MIG-0-1"]),
        ({"gpu_instance": 2}, ["MIG-0-1"]),
        ({"gpu_instance": 2, "compute_instance": 0}, ["MIG-0-1"]),
        ({"gpu_instance": 2, "compute_instance": 1}, []),
        ({"gpu_instance": 9}, []),
    ],
)
def test_a_fault_takes_its_instance_or_all_of_the_gpu(event, taken):
    machine = inventory(gpu(0, "3g.40gb", "3g.40gb"), gpu(1, "3g.40gb"))
    resource = offer(machine, Facts(xid("GPU-0", **event)), strategy("mixed"))
    assert [d.id for d in resource.devices if not d.health.usable] == taken


def test_a_fault_of_an_instance_takes_a_whole_gpu():
    resource = offer(inventory(gpu(0), gpu(1)), Facts(xid("GPU-0", gpu_instance=2)))
    assert resource.usable == 1


def test_a_mig_device_without_its_capability_leaves_the_others():
    facts = Facts(Health(), {MigUuid("MIG-0-1"): "nvidia-cap3 is missing"})
    resource = offer(inventory(gpu(0, "3g.40gb", "3g.40gb")), facts, strategy("single"))
    assert [d.health.reason for d in resource.devices] == ["", "nvidia-cap3 is missing"]


def test_a_profile_may_be_renamed():
    config = strategy("mixed", resources=Resources(mig=(MigResource("1g.10gb*", "nvidia.com/small"),)))
    found = offered(inventory(gpu(0, "1g.10gb+me", "1g.10gb", "2g.20gb")), config=config)
    assert [(r.name, r.size) for r in found] == [("nvidia.com/mig-2g.20gb", 1), ("nvidia.com/small", 2)]


def mps(replicas=2):
    return Config(sharing=Sharing(mps=Mps(resources=(ReplicatedResource(str(NAME), replicas),))))


@pytest.mark.parametrize(
    ("state", "usable", "reason"),
    [
        ({}, 0, "its MPS control daemon has not been looked for yet"),
        ({NAME: MpsNotReady("no pipe")}, 0, "no pipe"),
        ({NAME: FOLDERS}, 2, ""),
    ],
)
def test_a_device_shared_by_mps_waits_for_its_control_daemon(state, usable, reason):
    resource = offer(inventory(gpu(0)), Facts(Health(), mps=state), mps())
    assert (resource.usable, resource.devices[0].health.reason) == (usable, reason)
    assert resource.mps == (FOLDERS if usable else None)


@pytest.mark.parametrize(("capability", "fits"), [((7, 0), True), ((6, 1), False), (None, False)])
def test_mps_takes_as_many_clients_as_the_architecture(capability, fits):
    machine = inventory(gpu(0, compute_capability=capability))
    resource = offer(machine, Facts(Health(), mps={NAME: FOLDERS}), mps(17))
    assert bool(resource.usable) == fits
    assert resource.devices[0].health.reason == (
        "" if fits else "MPS takes at most 16 clients on a NVIDIA H100 80GB HBM3, and 17 replicas are wanted"
    )


def test_mps_is_not_for_mig_devices():
    config = replace_sharing(strategy("single"), mps().sharing)
    resource = offer(inventory(gpu(0, "3g.40gb")), Facts(Health(), mps={NAME: FOLDERS}), config)
    assert resource.devices[0].health.reason.startswith("MPS on MIG devices is not offered")


def replace_sharing(config, sharing):
    return Config(flags=config.flags, sharing=sharing)


def test_the_ids_of_replicas_count_from_zero():
    resource = offer(inventory(gpu(0), gpu(1)), Facts(Health(), mps={NAME: FOLDERS}), mps(3))
    assert [list(d.ids) for d in resource.devices] == [
        ["GPU-0::0", "GPU-0::1", "GPU-0::2"],
        ["GPU-1::0", "GPU-1::1", "GPU-1::2"],
    ]
    assert resource.size == 6


def test_facts_do_not_change_order_or_names():
    machine = inventory(gpu(0, "1g.10gb", "2g.20gb"), gpu(1), gpu(2, "1g.10gb"))
    well = offered(machine, config=strategy("mixed"))
    sick = offered(replace(machine), Facts(xid("GPU-0")), strategy("mixed"))
    assert [(r.name, [d.id for d in r.devices]) for r in well] == [(r.name, [d.id for d in r.devices]) for r in sick]


def test_gpu_of_claims_is_not_the_device_plugins_and_one_that_a_claim_still_has_is_withheld():
    config = Config(dra=Dra(gpus=("GPU-1",)))
    facts = Facts(Health(), held={GpuUuid("GPU-0"): "still held by claim team/train"})
    resource = offer(inventory(gpu(0), gpu(1), gpu(2)), facts, config)
    assert [d.id for d in resource.devices] == ["GPU-0", "GPU-2"]
    assert [d.health.reason for d in resource.devices] == ["still held by claim team/train", ""]


def test_what_shall_go_to_claims_and_is_not_here_is_told_of():
    named = Dra(gpus=("al", "GPU-1", "*H100*", "GPU-7", "*"))
    remarks = all_units(inventory(gpu(0), gpu(1)), Config(dra=named)).remarks
    assert remarks == ("dra.gpus: 'al' matches no GPU of this node", "dra.gpus: 'GPU-7' matches no GPU of this node")
    assert all_units(inventory(), Config(dra=Dra(gpus=("*",)))).remarks == ()


def test_resource_whose_devices_claims_hand_out_is_offered_empty():
    """Kubelet and the Node may still count what a device plugin before us has offered."""
    machine = inventory(gpu(0), gpu(1, "1g.10gb"))
    everything = Dra(gpus=("*",))
    assert sized(offered(machine, config=strategy("mixed", dra=everything))) == {
        "nvidia.com/gpu": 0,
        "nvidia.com/mig-1g.10gb": 0,
    }
    assert sized(offered(machine, config=strategy("mixed", dra=Dra(gpus=("GPU-0",))))) == {
        "nvidia.com/gpu": 0,
        "nvidia.com/mig-1g.10gb": 1,
    }
    shares = Sharing(time_slicing=TimeSlicing((ReplicatedResource(NAME, 4, rename="nvidia.com/part"),)))
    assert sized(offered(inventory(gpu(0)), config=Config(dra=everything, sharing=shares))) == {"nvidia.com/part": 0}


def sized(resources):
    return {resource.name: resource.size for resource in resources}


def test_gpu_of_claims_has_every_reason_for_which_it_must_not_be_given():
    facts = Facts(xid("GPU-0"), {GpuUuid("GPU-0"): "no node"})
    assert for_claims(gpu(0), facts, "held").reason == "XID 79; no node; held"
    assert for_claims(gpu(1), facts, "") == HEALTHY
    assert for_claims(gpu(1), Facts(Health().with_unknown("NVML is stuck")), "").level is Level.UNKNOWN
