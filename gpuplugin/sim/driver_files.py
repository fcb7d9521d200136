"""What an NVIDIA driver leaves on a host: /proc entries, device nodes, libraries, programs, firmware."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplugin.sim import sysfs_files
from gpuplugin.sim.elf import shared_library

if TYPE_CHECKING:
    from gpuplugin.sim.machine import Machine, SimGpu
    from gpuplugin.sim.snapshot import Snapshot
    from gpuplugin.sim.tree import HostTree

NVIDIA_MAJOR, UVM_MAJOR, CAPS_MAJOR = 195, 510, 511
"""The first is fixed, the other two are dealt out by the kernel, and differ from one boot to the next."""

LIBRARY_FOLDER = "usr/lib/x86_64-linux-gnu"
_GPU_INSTANCES, _COMPUTE_INSTANCES, _FIRST_CAP = 15, 8, 3
_SONAME_SUFFIXES = {
    "libcuda": "1",
    "libcudadebugger": "1",
    "libnvcuvid": "1",
    "libnvidia-allocator": "1",
    "libnvidia-cfg": "1",
    "libnvidia-encode": "1",
    "libnvidia-ml": "1",
    "libnvidia-nvvm": "4",
    "libnvidia-opencl": "1",
    "libnvidia-ptxjitcompiler": "1",
    "libEGL_nvidia": "0",
    "libGLX_nvidia": "0",
    "vdpau/libvdpau_nvidia": "1",
    "libnvidia-glcore": "",
    "libnvidia-gpucomp": "",
    "libnvidia-tls": "",
}
"""By name: what follows ``.so.`` in the SONAME; empty where that is the driver's version."""

_LINKED = ("libcuda", "libnvidia-ml", "libnvcuvid", "libnvidia-encode")
"""Those that also have a plain ``.so`` to link against."""

_PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)


def write(tree: HostTree, machine: Machine) -> None:
    """Write everything that is there whatever GPUs there are."""
    version = machine.snapshot.driver.version
    _write_files(tree, version)
    tree.text("sys/module/nvidia/version", version)
    tree.text(
        "proc/driver/nvidia/version",
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (simulated)\n"
        "GCC version:  gcc version 12.2.0 (simulated)",
    )
    tree.text(
        "proc/devices",
        "Character devices:\n  1 mem\n"
        f"{NVIDIA_MAJOR} nvidia\n{NVIDIA_MAJOR} nvidia-modeset\n{NVIDIA_MAJOR} nvidiactl\n"
        f"{sysfs_files.DRM_MAJOR} drm\n{sysfs_files.VERBS_MAJOR} infiniband_verbs\n"
        f"{UVM_MAJOR} nvidia-uvm\n{CAPS_MAJOR} nvidia-caps\n\nBlock devices:\n259 blkext",
    )
    tree.text("proc/driver/nvidia-caps/mig-minors", _mig_minors(machine))
    for name, major, minor in (
        ("nvidiactl", NVIDIA_MAJOR, 255),
        ("nvidia-modeset", NVIDIA_MAJOR, 254),
        ("nvidia-uvm", UVM_MAJOR, 0),
        ("nvidia-uvm-tools", UVM_MAJOR, 1),
        ("nvidia-caps/nvidia-cap1", CAPS_MAJOR, 1),
        ("nvidia-caps/nvidia-cap2", CAPS_MAJOR, 2),
    ):
        tree.node(f"dev/{name}", major, minor)
    for number, nic in enumerate(machine.nics):
        minor = sysfs_files.FIRST_VERBS + number
        tree.node(f"dev/infiniband/{nic.facts.uverbs}", sysfs_files.VERBS_MAJOR, minor)
    if machine.nics:
        tree.node("dev/infiniband/rdma_cm", 10, 59)


def write_gpu(tree: HostTree, machine: Machine, gpu: SimGpu) -> None:
    """Write a GPU's /proc entry and device nodes."""
    record = gpu.record
    tree.text(
        f"proc/driver/nvidia/gpus/{gpu.pci}/information",
        f"Model: \t\t {record.name}\nGPU UUID: \t {record.uuid}\nBus Type: \t PCIe\nBus Location: \t {gpu.pci}\n"
        f"Device Minor: \t {record.minor}\nGPU Excluded:\t No",
    )
    tree.node(f"dev/nvidia{record.minor}", NVIDIA_MAJOR, record.minor or 0)
    for name, minor in sysfs_files.drm_nodes(machine, gpu).items():
        tree.node(f"dev/dri/{name}", sysfs_files.DRM_MAJOR, minor)
        tree.link(_by_path(gpu, name), f"dev/dri/{name}")


def remove_gpu(tree: HostTree, machine: Machine, gpu: SimGpu) -> None:
    """Remove what `write_gpu` wrote."""
    names = sysfs_files.drm_nodes(machine, gpu)
    tree.remove(*(_by_path(gpu, name) for name in names), *(f"dev/dri/{name}" for name in names))
    tree.remove(f"dev/nvidia{gpu.record.minor}", f"proc/driver/nvidia/gpus/{gpu.pci}")


def write_caps(tree: HostTree, before: Snapshot, after: Snapshot) -> None:
    """Bring capability files and nodes from the MIG devices of one state to those of another."""
    old, new = _caps(before), _caps(after)
    for path, cap in old.items():
        if path not in new:
            tree.remove(f"proc/driver/nvidia/capabilities/{path}", f"dev/nvidia-caps/nvidia-cap{cap}")
    for path, cap in new.items():
        tree.text(
            f"proc/driver/nvidia/capabilities/{path}",
            f"DeviceFileMinor: {cap}\nDeviceFileMode: 292\nDeviceFileModify: 1",
        )
        tree.node(f"dev/nvidia-caps/nvidia-cap{cap}", CAPS_MAJOR, cap)


def cap_minor(gpu_minor: int, gi: int, ci: int | None = None) -> int:
    """Give the minor number of an instance's capability node; it follows from the GPU's minor number and the ids."""
    per_instance = 1 + _COMPUTE_INSTANCES
    base = _FIRST_CAP + (gpu_minor * _GPU_INSTANCES + gi) * per_instance
    return base if ci is None else base + 1 + ci


def _caps(snapshot: Snapshot) -> dict[str, int]:
    caps = {}
    minors = {gpu.index: gpu.minor or 0 for gpu in snapshot.gpus}
    for record in snapshot.migs:
        gpu = minors[record.gpu]
        folder = f"gpu{gpu}/mig/gi{record.gi}"
        caps[f"{folder}/access"] = cap_minor(gpu, record.gi)
        caps[f"{folder}/ci{record.ci}/access"] = cap_minor(gpu, record.gi, record.ci)
    return caps


def _mig_minors(machine: Machine) -> str:
    lines = ["config 1", "monitor 2"]
    for minor in sorted(gpu.record.minor or 0 for gpu in machine.gpus):
        for gi in range(_GPU_INSTANCES):
            lines.append(f"gpu{minor}/gi{gi}/access {cap_minor(minor, gi)}")
            lines += (f"gpu{minor}/gi{gi}/ci{ci}/access {cap_minor(minor, gi, ci)}" for ci in range(_COMPUTE_INSTANCES))
    return "\n".join(lines)


def _by_path(gpu: SimGpu, name: str) -> str:
    return f"dev/dri/by-path/pci-{gpu.pci}-{'card' if name.startswith('card') else 'render'}"


def _write_files(tree: HostTree, version: str) -> None:
    for name, suffix in _SONAME_SUFFIXES.items():
        base = f"{LIBRARY_FOLDER}/{name}.so"
        soname = f"{name.rpartition('/')[2]}.so.{suffix or version}"
        tree.data(f"{base}.{version}", shared_library(soname))
        if suffix:
            tree.link(f"{base}.{suffix}", f"{base}.{version}")
        if name in _LINKED:
            tree.link(base, f"{base}.{suffix}")
    for name in _PROGRAMS:
        text = f"#!/bin/sh\necho '{name} {version} of a simulated machine'\n"
        tree.data(f"usr/bin/{name}", text.encode(), 0o755)
    for name in ("gsp_ga10x.bin", "gsp_tu10x.bin"):
        tree.data(f"usr/lib/firmware/nvidia/{version}/{name}", b"simulated\n")
