"""Which device nodes kubelet is to give a container, where it shall (`passDeviceSpecs`): pure, from what was found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuplugin.model.driver_root import DriverRoot, Node
    from gpuplugin.model.ids import DeviceUuid
    from gpuplugin.model.inventory import Inventory

COMMON = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


@dataclass(frozen=True, slots=True)
class DeviceNodes:
    """common: nodes that come with any device (NVIDIA's own, IMEX channels and the like) · own: those of each."""

    common: tuple[Node, ...]
    own: Mapping[DeviceUuid, tuple[Node, ...]]

    def of(self, devices: Iterable[DeviceUuid]) -> tuple[Node, ...]:
        """Give what a container with these devices needs, each node once."""
        nodes = [*self.common, *(node for device in devices for node in self.own.get(device, ()))]
        return tuple({node.path: node for node in nodes}.values())


def device_nodes(inventory: Inventory, root: DriverRoot) -> DeviceNodes:
    """Take those that are there; a device that lacks one of its own is not offered for that reason, see `injection`."""
    extras = tuple(node for extra in root.extras for node in extra.nodes)
    own: dict[DeviceUuid, tuple[Node, ...]] = {}
    for gpu in inventory.gpus:
        parent = f"/dev/nvidia{gpu.minor}"
        own[gpu.uuid] = _found(root, [parent])
        for device in gpu.mig_devices:
            own[device.uuid] = _found(root, [parent, *(one.path for one in root.caps.get(device.uuid, ()))])
    return DeviceNodes((*_found(root, COMMON), *extras), own)


def _found(root: DriverRoot, paths: Iterable[str]) -> tuple[Node, ...]:
    return tuple(node for path in paths if (node := root.node(path)) is not None)
