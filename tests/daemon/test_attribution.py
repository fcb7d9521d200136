"""Whose a device is, how it is, and what is free: from what kubelet, the plan and the plugins say."""

from dataclasses import replace

from gpuplugin.config.settings import Dra
from gpuplugin.daemon.attribution import free, health, holdings
from gpuplugin.metrics.collect import Holding
from gpuplugin.model.health import XidEvent
from gpuplugin.model.ids import MigUuid
from gpuplugin.plan.desired import Facts, all_units, desired
from gpuplugin.plan.health import Health, after_xid
from gpuplugin.serving.pod_resources import ClaimedDevice, PluginDevice, PodResources
from tests.plan.machine import gpu, inventory, strategy

NO_CLAIMS = Dra()


def offered(machine, config, facts):
    return desired(all_units(machine, config), facts)


def test_devices_replicas_mig_devices_and_claims_are_told_by_their_place():
    machine = inventory(gpu(0), gpu(1, "1g.10gb", "3g.40gb"), gpu(2))
    pods = PodResources(
        (
            PluginDevice("team", "a", "nvidia.com/gpu", "GPU-0::3", "main"),
            PluginDevice("team", "b", "nvidia.com/mig-3g.40gb", "MIG-1-1", "main"),
            PluginDevice("team", "c", "example.com/fpga", "GPU-7", "main"),
        ),
        (
            ClaimedDevice("team", "d", "mine", "gpu.nvidia.com", "n", "gpu-2", "main", ("k.io/gpu=GPU-2", "k.io/c=x")),
            ClaimedDevice("team", "e", "theirs", "other.example", "n", "gpu-2", "main", ("other.example/gpu=0",)),
        ),
    )
    assert holdings(pods, machine) == (
        Holding("GPU-0", None, "nvidia.com/gpu", "team", "a", "main"),
        Holding("GPU-1", 2, "nvidia.com/mig-3g.40gb", "team", "b", "main"),
        Holding("GPU-2", None, "", "team", "d", "main", "team", "mine", "gpu-2"),
    )


def test_health_is_of_each_device_that_is_handed_out_and_of_no_other():
    machine = inventory(gpu(0), gpu(1, "1g.10gb", "1g.10gb"))
    facts = Facts(after_xid(Health(), XidEvent(machine.gpus[1].uuid, 95, 2, 0), "XID 95", 0.0))
    levels = health(machine, offered(machine, strategy("mixed"), facts), facts, NO_CLAIMS)
    assert {place: level.usable for place, level in levels.items()} == {
        ("GPU-0", None): True,
        ("GPU-1", 1): True,
        ("GPU-1", 2): False,
    }


def test_of_compute_instances_of_one_instance_the_worst_counts():
    one = gpu(0, "1c.2g.20gb", "1c.2g.20gb")
    first, second = one.mig_devices
    second = replace(second, gpu_instance=first.gpu_instance, compute_instance=1, uuid=MigUuid("MIG-0-1"))
    machine = inventory(replace(one, mig_devices=(first, second)))
    for sick in (0, 1):
        facts = Facts(after_xid(Health(), XidEvent(machine.gpus[0].uuid, 95, 1, sick), "XID 95", 0.0))
        levels = health(machine, offered(machine, strategy("mixed"), facts), facts, NO_CLAIMS)
        assert [level.usable for level in levels.values()] == [False]


def test_free_are_whole_healthy_gpus_that_nobody_has_by_who_hands_them_out():
    machine = inventory(*map(gpu, range(7)), gpu(7, "1g.10gb"))
    dra = Dra(gpus=("GPU-5", "GPU-6"))
    facts = Facts(after_xid(Health(), XidEvent(machine.gpus[0].uuid, 95), "XID 95", 0.0))
    resources = offered(machine, strategy("mixed", dra=dra), facts)
    levels = health(machine, resources, facts, dra)
    held = (Holding("GPU-1", None, "nvidia.com/gpu", "team", "a", "main"), Holding("GPU-6", None, "", "t", "b", "m"))
    found = free(machine, resources, held, levels, dra)
    assert {by: dict(alignment.free) for by, alignment in found.items()} == {
        "device_plugin": {0: 2, 1: 1},
        "claims": {0: 0, 1: 1},
    }
    assert found["device_plugin"].largest == 2


def test_without_gpus_of_an_owner_nothing_is_said_of_it():
    machine = inventory(gpu(0))
    facts = Facts(Health())
    resources = offered(machine, strategy("none"), facts)
    assert free(machine, resources, (), health(machine, resources, facts, NO_CLAIMS), NO_CLAIMS).keys() == {
        "device_plugin"
    }
