"""From decisions to kubelet's messages: pure, so that each answer can be tested as a value."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdi.names import KIND, qualified_name
from gpuplugin.errors import DeviceUnavailable, UnknownDevice, UnsatisfiableRequest
from gpuplugin.model.ids import without_replica
from gpuplugin.pb import deviceplugin_v1beta1_pb2 as api
from gpuplugin.plan.sharing import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpuplugin.config import Config
    from gpuplugin.plan.desired import OfferedDevice, OfferedResource
    from gpuplugin.plan.nodes import DeviceNodes

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
IMEX_CHANNELS: Final = "NVIDIA_IMEX_CHANNELS"
MOUNTS_FOLDER: Final = "/var/run/nvidia-container-devices"
MPS_PIPES: Final = "CUDA_MPS_PIPE_DIRECTORY"
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - where the CUDA library of an MPS client looks
ANNOTATION: Final = "gpuplugin_"
"""Start of the part of our annotations' keys that is ours to choose."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """How containers get their devices.

    strategies: ``cdi-cri`` and ``cdi-annotations`` (qualified names, which the runtime resolves), ``envvar`` (the
    variable that NVIDIA's runtime reads) and ``volume-mounts`` (mounts that it reads), in any combination · by_index:
    whether devices are called ``0`` and ``0:1`` instead of by UUID · also: variables for NVIDIA's runtime · nodes: what
    kubelet is to give on its own, None for nothing.
    """

    strategies: frozenset[str] = frozenset({"cdi-cri"})
    by_index: bool = False
    annotation_prefix: str = "cdi.k8s.io/"
    imex_channels: tuple[int, ...] = ()
    also: tuple[str, ...] = ()
    nodes: DeviceNodes | None = None

    @classmethod
    def of(cls, config: Config, nodes: DeviceNodes | None = None) -> Delivery:
        """Take it from the configuration. nodes: those found on the host, used where they are wanted."""
        flags, plugin = config.flags, config.flags.plugin
        wanted = {
            "NVIDIA_GDRCOPY": flags.gdrcopy_enabled,
            "NVIDIA_GDS": flags.gds_enabled,
            "NVIDIA_MOFED": flags.mofed_enabled,
        }
        return cls(
            strategies=frozenset(plugin.device_list_strategy),
            by_index=plugin.device_id_strategy == "index",
            annotation_prefix=plugin.cdi_annotation_prefix,
            imex_channels=config.imex.channel_ids,
            also=tuple(name for name, on in wanted.items() if on),
            nodes=nodes if plugin.pass_device_specs else None,
        )

    def name(self, device: OfferedDevice) -> str:
        """What the container runtime calls a device."""
        return device.index if self.by_index else device.uuid


def device_list(resource: OfferedResource) -> api.ListAndWatchResponse:
    """Build the whole list. Kubelet counts every device, and hands out only the healthy ones."""
    return api.ListAndWatchResponse(devices=[message for device in resource.devices for message in _messages(device)])


def _messages(device: OfferedDevice) -> Iterator[api.Device]:
    topology = api.TopologyInfo(nodes=[api.NUMANode(ID=node) for node in device.numa]) if device.numa else None
    health = HEALTHY if device.health.usable else UNHEALTHY
    return (api.Device(ID=name, health=health, topology=topology) for name in device.ids)


def container_response(
    resource: OfferedResource, ids: Sequence[str], delivery: Delivery
) -> api.ContainerAllocateResponse:
    """Say how a container gets its devices, in the order of the GPUs' indices whatever order kubelet asks in.

    Raises UnknownDevice, DeviceUnavailable and UnsatisfiableRequest; nothing is given unless all can be. A device of
    which several replicas are asked for is given once.
    """
    chosen = _lookup(resource, ids)
    devices = list(dict.fromkeys(sorted(chosen, key=lambda one: (one.gpu_index, one.mig_index or 0))))
    response = api.ContainerAllocateResponse()
    _name_for_cdi(response, [delivery.name(device) for device in devices], delivery)
    _name_for_nvidia_runtime(response, [delivery.name(device) for device in devices], delivery)
    if delivery.nodes is not None and delivery.strategies & {"envvar", "volume-mounts"}:
        for node in delivery.nodes.of(device.uuid for device in devices):
            response.devices.add(container_path=node.path, host_path=node.host, permissions="rw")
    if resource.mps is not None and any(device.share and device.share.kind is Kind.MPS for device in devices):
        pipes = f"/mps/{resource.name}/pipe"
        response.envs[MPS_PIPES] = pipes
        response.mounts.add(container_path=pipes, host_path=resource.mps.pipe)
        response.mounts.add(container_path=SHARED_MEMORY, host_path=resource.mps.shm)
    return response


def _name_for_cdi(response: api.ContainerAllocateResponse, names: list[str], delivery: Delivery) -> None:
    qualified = [qualified_name(KIND, name) for name in names]
    if "cdi-cri" in delivery.strategies:
        response.cdi_devices.extend(api.CDIDevice(name=name) for name in qualified)
    if "cdi-annotations" in delivery.strategies:
        value = ",".join(qualified)
        key = hashlib.sha256(value.encode()).hexdigest()[:16]
        response.annotations[f"{delivery.annotation_prefix}{ANNOTATION}{key}"] = value


def _name_for_nvidia_runtime(response: api.ContainerAllocateResponse, names: list[str], delivery: Delivery) -> None:
    """Name devices in the variable, or by mounts; never both, since the runtime would take the variable alone."""
    by_mounts = "volume-mounts" in delivery.strategies
    if not by_mounts and "envvar" not in delivery.strategies:
        return
    response.envs.update(dict.fromkeys(delivery.also, "enabled"))
    channels = list(map(str, delivery.imex_channels))
    if not by_mounts:
        response.envs[VISIBLE_DEVICES] = ",".join(names)
        if channels:
            response.envs[IMEX_CHANNELS] = ",".join(channels)
        return
    response.envs[VISIBLE_DEVICES] = MOUNTS_FOLDER
    for name in (*names, *(f"imex/{channel}" for channel in channels)):
        response.mounts.add(container_path=f"{MOUNTS_FOLDER}/{name}", host_path="/dev/null")


def _lookup(resource: OfferedResource, ids: Sequence[str]) -> list[OfferedDevice]:
    offered = {device.id: device for device in resource.devices}
    found = []
    for name in dict.fromkeys(ids):
        base, replica = without_replica(name)
        device = offered.get(base)
        if device is None or not device.has(replica):
            raise UnknownDevice(resource.name, name)
        if not device.health.usable:
            raise DeviceUnavailable(resource.name, name, device.health.reason)
        found.append(device)
    _check_shares(resource, found)
    return found


def _check_shares(resource: OfferedResource, devices: Iterable[OfferedDevice]) -> None:
    """Hold a container to the rules of what it shares; `devices` has one entry for each replica asked for."""
    asked = list(devices)
    shares = [device.share for device in asked if device.share]
    strict = next((share for share in shares if share.one_each), None)
    if strict is not None and len(asked) > 1:
        raise UnsatisfiableRequest(
            f"{resource.name}: {len(asked)} asked for, but a container may have only 1 of a shared device "
            f"(sharing.{strict.kind.value}.failRequestsGreaterThanOne): more slices give no more of a GPU"
        )
    if any(share.spread for share in shares) and len({device.gpu for device in asked}) < len(asked):
        raise UnsatisfiableRequest(
            f"{resource.name}: {len(asked)} asked for, each on a GPU of its own (spread: required), but kubelet chose "
            f"{', '.join(device.id for device in asked)}: not enough GPUs have one to give"
        )
