"""From decisions to kubelet's messages: pure, so that each answer can be tested as a value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplugin.errors import DeviceUnavailable, UnknownDevice
from gpuplugin.pb import deviceplugin_v1beta1_pb2 as api

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gpuplugin.plan.desired import OfferedDevice, OfferedResource

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"


def device_list(resource: OfferedResource) -> api.ListAndWatchResponse:
    """Build the whole list. Kubelet counts every device, and hands out only the healthy ones."""
    return api.ListAndWatchResponse(devices=[_device(device) for device in resource.devices])


def _device(device: OfferedDevice) -> api.Device:
    message = api.Device(ID=device.id, health=HEALTHY if device.health.usable else UNHEALTHY)
    if device.numa:
        message.topology.nodes.extend(api.NUMANode(ID=node) for node in device.numa)
    return message


def container_response(
    resource: OfferedResource, ids: Sequence[str], strategies: Collection[str], cdi_kind: str
) -> api.ContainerAllocateResponse:
    """Say how a container gets its devices, in the order of the GPUs' indices whatever order kubelet asks in.

    strategies: ``cdi-cri`` (qualified names, which the runtime resolves) and ``envvar`` (the variable that NVIDIA's
    runtime reads), one or both. Raises UnknownDevice and DeviceUnavailable; nothing is given unless all can be.
    """
    chosen = sorted(_lookup(resource, ids), key=lambda device: (device.gpu_index, device.id))
    response = api.ContainerAllocateResponse()
    if "cdi-cri" in strategies:
        response.cdi_devices.extend(api.CDIDevice(name=f"{cdi_kind}={device.id}") for device in chosen)
    if "envvar" in strategies:
        response.envs[VISIBLE_DEVICES] = ",".join(device.id for device in chosen)
    return response


def _lookup(resource: OfferedResource, ids: Sequence[str]) -> list[OfferedDevice]:
    offered = {device.id: device for device in resource.devices}
    found = []
    for name in dict.fromkeys(ids):
        device = offered.get(name)  # type: ignore[call-overload]  # kubelet's strings are ids until proven otherwise
        if device is None:
            raise UnknownDevice(resource.name, name)
        if not device.health.usable:
            raise DeviceUnavailable(resource.name, name, device.health.reason)
        found.append(device)
    return found
