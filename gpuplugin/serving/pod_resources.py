"""What kubelet says that its pods have: asked before something changes owner, and every few seconds for metrics.

It is the only one who knows which pod got which device of a device plugin, and which claims its pods use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc.aio

from gpuplugin.errors import PodResourcesUnavailable
from gpuplugin.pb import podresources_v1_pb2 as api
from gpuplugin.pb import podresources_v1_pb2_grpc as rpc

if TYPE_CHECKING:
    from collections.abc import Iterator
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
class PodResources:
    """All that kubelet's pods have."""

    plugin_devices: tuple[PluginDevice, ...]
    claimed: tuple[ClaimedDevice, ...]


async def pod_resources(socket: Path) -> PodResources:
    """Ask kubelet. Raises PodResourcesUnavailable."""
    try:
        async with grpc.aio.insecure_channel(
            f"unix:{socket}", options=[("grpc.max_receive_message_length", LONGEST_ANSWER)]
        ) as channel:
            answer = await rpc.PodResourcesListerStub(channel).List(api.ListPodResourcesRequest(), timeout=ASK_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise PodResourcesUnavailable(socket, f"{error.code().name}: {error.details()}") from None
    return read(answer)


def read(answer: api.ListPodResourcesResponse) -> PodResources:
    """Take the answer apart."""
    plugin_devices = []
    claimed: list[ClaimedDevice] = []
    for pod in answer.pod_resources:
        for container in pod.containers:
            for entry in container.devices:
                plugin_devices += [
                    PluginDevice(pod.namespace, pod.name, entry.resource_name, device, container.name)
                    for device in entry.device_ids
                ]
            for claim in container.dynamic_resources:
                claimed += _claimed(pod, container, claim)
    return PodResources(tuple(dict.fromkeys(plugin_devices)), tuple(dict.fromkeys(claimed)))


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
