"""What kubelet says that its pods have: asked before something changes owner, and every few seconds for metrics.

It is the only one who knows which pod got which device of a device plugin, and which claims its pods use.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import grpc.aio

from gpuplugin.errors import PodResourcesUnavailable
from gpuplugin.model.kubelet import MemoryBlock
from gpuplugin.pb import podresources_v1_pb2 as api
from gpuplugin.pb import podresources_v1_pb2_grpc as rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

ASK_SECONDS: Final = 10.0
LONGEST_ANSWER: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class PluginDevice:
    """A device of a device plugin that a pod has; id: as the plugin called it."""

    namespace: str
    pod: str
    resource: str
    id: str
    container: str = ""


@dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """A device of a claim that a pod has; cdi: what the container runtime was given for it, qualified names."""

    namespace: str
    pod: str
    claim: str
    driver: str
    pool: str
    device: str
    container: str = ""
    cdi: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnCpus:
    """CPUs that a container has for itself."""

    namespace: str
    pod: str
    container: str
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OwnMemory:
    """Memory and huge pages that a container has for itself."""

    namespace: str
    pod: str
    container: str
    blocks: tuple[MemoryBlock, ...]


@dataclass(frozen=True, slots=True)
class PodResources:
    """All that kubelet's pods have."""

    plugin_devices: tuple[PluginDevice, ...]
    claimed: tuple[ClaimedDevice, ...]
    own_cpus: tuple[OwnCpus, ...] = ()
    own_memory: tuple[OwnMemory, ...] = ()


@dataclass(frozen=True, slots=True)
class Allocatable:
    """What kubelet could give if no pod had anything.

    devices: healthy ones of every device plugin, resource and id, with their NUMA nodes · cpus: those that a container
    may have for itself, none where its CPU manager does not do that · memory: bytes by NUMA node and resource, likewise
    of its memory manager.
    """

    devices: dict[tuple[str, str], frozenset[int]]
    cpus: tuple[int, ...]
    memory: dict[int, dict[str, int]] = field(default_factory=dict)


async def pod_resources(socket: Path) -> PodResources:
    """Ask kubelet. Raises PodResourcesUnavailable."""
    async with _lister(socket) as kubelet:
        answer = await kubelet.List(api.ListPodResourcesRequest(), timeout=ASK_SECONDS)
    return read(answer)


async def allocatable(socket: Path) -> Allocatable:
    """Ask kubelet what it has. Raises PodResourcesUnavailable."""
    async with _lister(socket) as kubelet:
        answer = await kubelet.GetAllocatableResources(api.AllocatableResourcesRequest(), timeout=ASK_SECONDS)
    devices = {
        (entry.resource_name, device): frozenset(node.ID for node in entry.topology.nodes)
        for entry in answer.devices
        for device in entry.device_ids
    }
    memory: dict[int, dict[str, int]] = {}
    for entry in answer.memory:
        for node in entry.topology.nodes:
            memory.setdefault(node.ID, {})[entry.memory_type] = entry.size
    return Allocatable(devices, tuple(answer.cpu_ids), memory)


@asynccontextmanager
async def _lister(socket: Path) -> AsyncIterator[rpc.PodResourcesListerStub]:
    options = [("grpc.max_receive_message_length", LONGEST_ANSWER)]
    try:
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
            yield rpc.PodResourcesListerStub(channel)
    except grpc.aio.AioRpcError as error:
        raise PodResourcesUnavailable(socket, f"{error.code().name}: {error.details()}") from None


def read(answer: api.ListPodResourcesResponse) -> PodResources:
    """Take the answer apart."""
    plugin_devices = []
    claimed: list[ClaimedDevice] = []
    own_cpus, own_memory = [], []
    for pod in answer.pod_resources:
        for container in pod.containers:
            if container.cpu_ids:
                own_cpus.append(OwnCpus(pod.namespace, pod.name, container.name, tuple(container.cpu_ids)))
            if container.memory:
                own_memory.append(OwnMemory(pod.namespace, pod.name, container.name, _blocks(container)))
            for entry in container.devices:
                plugin_devices += [
                    PluginDevice(pod.namespace, pod.name, entry.resource_name, device, container.name)
                    for device in entry.device_ids
                ]
            for claim in container.dynamic_resources:
                claimed += _claimed(pod, container, claim)
    return PodResources(
        tuple(dict.fromkeys(plugin_devices)), tuple(dict.fromkeys(claimed)), tuple(own_cpus), tuple(own_memory)
    )


def _blocks(container: api.ContainerResources) -> tuple[MemoryBlock, ...]:
    return tuple(
        MemoryBlock(block.memory_type, tuple(node.ID for node in block.topology.nodes), block.size)
        for block in container.memory
    )


def _claimed(
    pod: api.PodResources, container: api.ContainerResources, claim: api.DynamicResource
) -> Iterator[ClaimedDevice]:
    """Take a claim apart. Kubelet tells with each device also what those before it in the claim were given."""
    told: set[str] = set()
    for device in claim.claim_resources:
        names = tuple(given.name for given in device.cdi_devices)
        yield ClaimedDevice(
            claim.claim_namespace,
            pod.name,
            claim.claim_name,
            device.driver_name,
            device.pool_name,
            device.device_name,
            container.name,
            tuple(name for name in names if name not in told) or names,
        )
        told.update(names)
