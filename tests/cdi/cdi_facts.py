"""Small facts to build documents from."""

from __future__ import annotations

from gpuplugin.model.driver_root import DriNodes, DriverRoot, Library, Node
from gpuplugin.model.ids import GpuUuid, PciAddress
from gpuplugin.model.inventory import Gpu

VERSION = "580.65.06"
COMMON = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl")


def gpu(index: int) -> Gpu:
    return Gpu(
        index=index,
        uuid=GpuUuid(f"GPU-00000000-0000-0000-0000-{index:012x}"),
        pci=PciAddress(f"0000:{0x10 + index:02x}:00.0"),
        minor=index,
        model="NVIDIA H100 80GB HBM3",
        architecture="hopper",
        memory_bytes=80 << 30,
        compute_capability=(9, 0),
        mig=None,
        mig_devices=(),
        fabric=None,
        numa=None,
        pcie=None,
    )


def driver_root(gpus: int = 2, dev_root: str = "/", *, dri: bool = False) -> DriverRoot:
    prefix = dev_root.rstrip("/")
    paths = [*COMMON, *(f"/dev/nvidia{minor}" for minor in range(gpus))]
    folder = "/usr/lib/x86_64-linux-gnu"
    return DriverRoot(
        root="/",
        dev_root=dev_root,
        version=VERSION,
        machine="x86_64",
        nodes=tuple(Node(path, prefix + path, (195, 0)) for path in sorted(paths)),
        dri=tuple(_dri(gpu(index), index) for index in range(gpus)) if dri else (),
        libraries=(Library(f"libcuda.so.{VERSION}", "libcuda.so.1", "", f"{folder}/libcuda.so.{VERSION}"),),
        loader_files=(),
        files=(),
    )


def _dri(one: Gpu, card: int) -> DriNodes:
    node = f"/dev/dri/card{card}"
    link = f"/dev/dri/by-path/pci-{one.pci}-card"
    return DriNodes(one.pci, (Node(link, node, (226, card)), Node(node, node, (226, card))))
