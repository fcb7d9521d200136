"""Long lists: 8 GPUs of 7 MIG devices each, each offered 16 times, and the longest that a configuration may ask for.

Run from the repository root: ``python bench/lists.py``. The daemon writes a CDI document of 56 devices beside it; what
kubelet's own part takes is not in the figures.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import grpc.aio
from memory import resident_mib
from rig import report
from rig.node import QUICK, RECOVER_AT_ONCE, Node, Way, count, ways

from gpuplugin.config import Config
from gpuplugin.config.settings import Flags, ReplicatedResource, Sharing, TimeSlicing
from gpuplugin.deviceplugin.response import Delivery, container_response, device_list
from gpuplugin.model.health import XidEvent
from gpuplugin.model.ids import DeviceId, GpuUuid, MigUuid
from gpuplugin.pb import deviceplugin_v1beta1_pb2 as api
from gpuplugin.pb import deviceplugin_v1beta1_pb2_grpc as rpc
from gpuplugin.plan.desired import Facts, all_units, desired
from gpuplugin.plan.health import Health, after_xid
from gpuplugin.sim import driver_files, mig
from gpuplugin.sim.tree import HostTree
from gpuplugin.topology.allocate import Tables
from gpuplugin.topology.choice import Chooser, Place
from tests.plan.machine import gpu, inventory

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuplugin.model.inventory import Gpu

GPU = "nvidia.com/gpu"
PROFILE, MIG_DEVICES, REPLICAS = "1g.10gb", 7, 16
SETTLE_SECONDS = 0.5 if QUICK else 5.0
BUDGET_MIB = 80


def timed(what: Callable[[], object], rounds: int) -> list[float]:
    """Milliseconds of each round."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        what()
        times.append((time.perf_counter() - began) * 1000)
    return times


def config(strategy: str, replicas: int) -> Config:
    entry = ReplicatedResource(GPU, replicas)
    return Config(
        flags=Flags(mig_strategy=strategy),
        sharing=Sharing(time_slicing=TimeSlicing(resources=(entry,))),
    )


def in_process(title: str, mig_devices: int, gpus: int, replicas: int, rounds: int) -> None:
    """What each step takes by itself: decide, build, serialize, choose one, answer one."""
    profiles = [PROFILE] * mig_devices
    machine = inventory(*(gpu(index, *profiles) for index in range(gpus)))
    machine = replace(machine, gpus=tuple(map(_with_long_names, machine.gpus)))
    settings = config("single", replicas)
    health = after_xid(Health(), XidEvent(machine.gpus[0].uuid, 79), "XID 79", 0.0)
    units = all_units(machine, settings)
    [resource] = desired(units, Facts(health))
    message = device_list(resource)
    report.title(f"{title}: {resource.size} in a list of {message.ByteSize() / 1024:.0f} KiB")
    report.times("decide what is offered", timed(lambda: desired(units, Facts(health)), rounds))
    report.times("build the message", timed(lambda: device_list(resource), rounds))
    report.times("serialize it", timed(message.SerializeToString, rounds))
    places = {
        one.id: Place(one.position, one.mig is None, one.share.replicas if one.share else 0) for one in resource.devices
    }
    chooser = Chooser(resource.name, Tables.build(machine), places)
    free = [DeviceId(one.ID) for one in message.devices if one.health == "Healthy"]
    report.times("choose one of all that are free", timed(lambda: chooser.choose(free, [], 1), rounds))
    report.times(
        "answer Allocate", timed(lambda: container_response(resource, [free[0]], Delivery()), rounds), (1.0, 5.0)
    )


def _with_long_names(one: Gpu) -> Gpu:
    """Give names as long as real ones."""
    devices = tuple(
        replace(device, uuid=MigUuid(f"MIG-{one.index:018}{device.index:018}")) for device in one.mig_devices
    )
    return replace(one, uuid=GpuUuid(f"GPU-{one.index:036}"), mig_devices=devices)


def divide(node: Node) -> None:
    """Put every GPU of a node that has not started into MIG mode, with all the instances it can have."""
    tree, before = HostTree(node.host, real_nodes=True), node.state.snapshot
    after = before
    for one in before.gpus:
        after = mig.set_mode(after, one.index, enabled=True)
        for _ in range(MIG_DEVICES):
            after, _ = mig.create(after, one.index, PROFILE)
    node.state.change(lambda _: after)
    driver_files.write_caps(tree, before, after)


async def whole_daemon() -> None:
    """The daemon with such a list: from the XID to the list on the wire, what a pod's admission takes, memory."""
    with Node(way=Way.LIBRARY, mig_strategy="single", **RECOVER_AT_ONCE) as node:
        file = node.folder / "config.yaml"
        file.write_text(f"sharing: {{timeSlicing: {{resources: [{{name: {GPU}, replicas: {REPLICAS}}}]}}}}")
        node.command += [f"--config-file={file}", f"--paths-proc={node.host / 'proc'}"]
        divide(node)
        everything = 8 * MIG_DEVICES * REPLICAS
        async with node.kubelet:
            try:
                await node.start()
                await node.offered(everything)
                await asyncio.sleep(SETTLE_SECONDS)
                report.title(f"the daemon with {everything} in its list")
                report.value("resident memory", resident_mib(node.pid), "MiB", BUDGET_MIB)
                await admissions(node)
                await health(node, everything)
                report.value("resident memory after that", resident_mib(node.pid), "MiB", BUDGET_MIB)
            finally:
                await node.stop()


async def admissions(node: Node) -> None:
    """What kubelet asks for a pod, over the socket."""
    free = [device.id for device in node.kubelet.devices(GPU)]
    preferred, allocated = [], []
    async with grpc.aio.insecure_channel(f"unix:{node.socket}") as channel:
        stub = rpc.DevicePluginStub(channel)
        for _ in range(count(200)):
            wish = api.PreferredAllocationRequest()
            wish.container_requests.add(available_deviceIDs=free, allocation_size=1)
            began = time.perf_counter()
            answer = await stub.GetPreferredAllocation(wish)
            preferred.append((time.perf_counter() - began) * 1000)
            request = api.AllocateRequest()
            request.container_requests.add(devices_ids=answer.container_responses[0].deviceIDs)
            began = time.perf_counter()
            await stub.Allocate(request)
            allocated.append((time.perf_counter() - began) * 1000)
    report.times("GetPreferredAllocation, one of all", preferred)
    report.times("Allocate", allocated, (1.0, 5.0))


async def health(node: Node, everything: int) -> None:
    """From an XID's being written until kubelet has the list without that GPU's devices."""
    times, known = [], node.kubelet
    lost = MIG_DEVICES * REPLICAS
    for number in range(count(20)):
        began = time.perf_counter()
        node.state.xid(number % 8, 79)
        await known.until(lambda: known.allocatable(GPU) == everything - lost, 10, "the list without the GPU")
        times.append((time.perf_counter() - began) * 1000)
        await known.until(lambda: known.allocatable(GPU) == everything, 10, "the GPU back")
    report.times("XID to the list at kubelet", times, (50.0, 50.0))


async def main() -> None:
    in_process("8 GPUs of 7 MIG devices, 16 replicas", MIG_DEVICES, 8, REPLICAS, count(200))
    in_process("16 GPUs, 3871 replicas", 0, 16, 3871, count(5, 1))
    if Way.LIBRARY in ways():
        await whole_daemon()


if __name__ == "__main__":
    asyncio.run(main())
