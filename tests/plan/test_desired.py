"""Whether a GPU is offered has one place and one reason."""

from dataclasses import replace

from gpuplugin.model.health import HEALTHY, Level, XidEvent
from gpuplugin.model.ids import GpuUuid, NumaId, PciAddress, ResourceName
from gpuplugin.model.inventory import Driver, Gpu, Inventory
from gpuplugin.model.links import NvLinks
from gpuplugin.plan.desired import whole_gpus
from gpuplugin.plan.health import Health, after_xid

NAME = ResourceName("nvidia.com/gpu")


def gpu(index, numa=0, fault=None):
    return Gpu(
        index=index,
        uuid=GpuUuid(f"GPU-{index}"),
        pci=PciAddress(f"0000:{index:02x}:00.0"),
        minor=index,
        model="NVIDIA H100",
        architecture="hopper",
        memory_bytes=None,
        compute_capability=(9, 0),
        mig=None,
        mig_devices=(),
        fabric=None,
        numa=None if numa is None else NumaId(numa),
        pcie=None,
        fault=fault,
    )


def inventory(*gpus):
    links = NvLinks(tuple((0,) * len(gpus) for _ in gpus), (0,) * len(gpus))
    return Inventory(1, Driver("580", "13", (13, 0)), tuple(gpus), (), links, (), ())


def offer(*args):
    [resource] = whole_gpus(*args, lambda model: NAME)
    return resource


def test_every_gpu_stays_in_the_list_whatever_its_health():
    health = after_xid(Health(), XidEvent(GpuUuid("GPU-1"), 79), "XID 79", 0)
    offered = offer(inventory(gpu(0), gpu(1), gpu(2, fault="GPU is lost")), health, {})
    assert [d.id for d in offered.devices] == ["GPU-0", "GPU-1", "GPU-2"]
    assert [d.health.reason for d in offered.devices] == ["", "XID 79", "GPU is lost"]
    assert offered.usable == 1


def test_a_gpu_that_no_container_could_open_is_not_handed_out():
    offered = offer(inventory(gpu(0)), Health(), {GpuUuid("GPU-0"): "/dev/nvidia0 is missing"})
    assert offered.devices[0].health.reason == "/dev/nvidia0 is missing"


def test_all_reasons_are_told():
    health = after_xid(Health(), XidEvent(GpuUuid("GPU-0"), 79), "XID 79", 0)
    offered = offer(inventory(gpu(0, fault="lost")), health, {GpuUuid("GPU-0"): "no node"})
    assert offered.devices[0].health.reason == "lost; XID 79; no node"


def test_unknown_health_is_neither_healthy_nor_blamed_on_the_gpu():
    offered = offer(inventory(gpu(0, fault="lost")), Health().with_unknown("NVML is stuck"), {})
    assert (offered.devices[0].health.level, offered.devices[0].health.reason) == (Level.UNKNOWN, "NVML is stuck")


def test_an_unknown_numa_node_gives_no_hint():
    offered = offer(inventory(gpu(0, numa=1), gpu(1, numa=None)), Health(), {})
    assert [d.numa for d in offered.devices] == [(1,), ()]
    assert all(d.health == HEALTHY for d in offered.devices)


def test_models_may_have_resources_of_their_own_and_one_that_vanished_is_offered_empty():
    other = ResourceName("nvidia.com/l40s")
    machine = inventory(gpu(0), replace(gpu(1), model="NVIDIA L40S"))
    by_model = {"NVIDIA H100": NAME, "NVIDIA L40S": other}
    offered = whole_gpus(machine, Health(), {}, by_model.__getitem__, [ResourceName("nvidia.com/a100")])
    assert [(r.name, [d.id for d in r.devices]) for r in offered] == [
        ("nvidia.com/a100", []),
        (NAME, ["GPU-0"]),
        (other, ["GPU-1"]),
    ]


def test_one_reason_is_told_once():
    health = after_xid(Health(), XidEvent(GpuUuid("GPU-0"), 79), "GPU is lost", 0)
    assert offer(inventory(gpu(0, fault="GPU is lost")), health, {}).devices[0].health.reason == "GPU is lost"
