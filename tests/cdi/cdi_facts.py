"""Small facts to build documents from."""

from __future__ import annotations

from dataclasses import replace

from gpuplugin.model.driver_root import Capability, DriNodes, DriverRoot, Library, Node
from gpuplugin.model.ids import GpuUuid, MigUuid, PciAddress
from gpuplugin.model.inventory import Gpu, MigDevice, MigMode

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


def mig_device(gpu_index: int, index: int, profile: str = "1g.10gb") -> MigDevice:
    return MigDevice(
        uuid=MigUuid(f"MIG-00000000-0000-0000-{gpu_index:04x}-{index:012x}"),
        index=index,
        gpu_instance=index + 7,
        compute_instance=0,
        profile=profile,
        placement=None,
        memory_bytes=None,
        multiprocessors=None,
        gpu_slices=None,
        compute_slices=None,
        copy_engines=None,
        decoders=None,
        encoders=None,
        jpegs=None,
        ofas=None,
    )


def mig_gpu(index: int, devices: int = 7, profile: str = "1g.10gb") -> Gpu:
    made = tuple(mig_device(index, number, profile) for number in range(devices))
    return replace(gpu(index), mig=MigMode(current=True, pending=True), mig_devices=made)


def with_capabilities(root: DriverRoot, *gpus: Gpu) -> DriverRoot:
    """The root of a driver that has made the nodes of these GPUs' MIG devices, two for each, from number 10 on."""
    caps = {}
    for one in gpus:
        for device in one.mig_devices:
            name = f"gpu{one.minor}/gi{device.gpu_instance}"
            first = 10 + 2 * len(caps)
            caps[device.uuid] = (Capability(f"{name}/access", first), Capability(f"{name}/ci0/access", first + 1))
    prefix = root.dev_root.rstrip("/")
    nodes = tuple(Node(c.path, prefix + c.path, (511, c.minor or 0)) for pair in caps.values() for c in pair)
    return replace(root, nodes=root.nodes + nodes, caps=caps)


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
