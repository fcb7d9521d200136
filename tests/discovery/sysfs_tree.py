"""A sysfs written by hand: a GPU and two functions of a NIC below one PCIe switch."""

from __future__ import annotations

import os
from pathlib import Path

from gpuplugin.discovery.sysfs import Sysfs

GPU = "devices/pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:00.0/0000:1b:00.0"
NIC = "devices/pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:01.0/0000:1c:00.0"
VF = "devices/pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:01.0/0000:1c:00.2"
GPU_BRIDGES = ("0000:17:01.0", "0000:18:00.0", "0000:19:00.0")
NIC_BRIDGES = ("0000:17:01.0", "0000:18:00.0", "0000:19:01.0")


class Tree:
    """A sysfs written by hand."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sysfs = Sysfs(root)

    def file(self, path: str, content: str | bytes) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists():
            file.unlink()
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    def link(self, path: str, target: str) -> None:
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(self.root / target, link.parent))

    def device(self, path: str, numa: str | None = "0\n") -> None:
        (self.root / path).mkdir(parents=True, exist_ok=True)
        self.link(f"bus/pci/devices/{Path(path).name}", path)
        if numa is not None:
            self.file(f"{path}/numa_node", numa)

    def nic(self, name: str, device: str, uverbs: str | None = None, netdev: str | None = None) -> None:
        self.device(device)
        self.link(f"class/infiniband/{name}/device", device)
        self.file(f"class/infiniband/{name}/node_guid", "0c42:a103:0065:0f3a\n")
        self.file(f"class/infiniband/{name}/ports/1/link_layer", "InfiniBand\n")
        self.file(f"class/infiniband/{name}/ports/1/rate", "400 Gb/sec (4X NDR)\n")
        self.file(f"class/infiniband/{name}/ports/1/state", "4: ACTIVE\n")
        if uverbs:
            self.link(f"class/infiniband_verbs/{uverbs}/device", device)
        if netdev:
            (self.root / device / "net" / netdev).mkdir(parents=True)


def warned(tree: Tree) -> str:
    return "\n".join(tree.sysfs.take_warnings())
