"""The driver's device nodes on the host, and what the kernel says their numbers must be.

Numbers of most of them are dealt out anew with each boot. So a node is found by its name, and what the kernel says now
is kept beside it: a node that was left behind with an earlier number can then be told from a good one.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Final

from gpuplugin.model.driver_root import Capability, DriNodes, Extra, FileKind, HostFile, Node, Wanted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from gpuplugin.discovery.places import Place
    from gpuplugin.model.ids import MigUuid, PciAddress
    from gpuplugin.model.inventory import Gpu

COMMON_NODES: Final = ("nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidiactl")
MIG_MINORS: Final = "driver/nvidia-caps/mig-minors"
MPS_PIPES: Final = "/tmp/nvidia-mps"  # noqa: S108 - the place that CUDA has for it
CAPABILITIES: Final = "driver/nvidia/capabilities"

_GPU_NODE: Final = re.compile(r"nvidia[0-9]+")
_DRM_NODE: Final = re.compile(r"(card|renderD)[0-9]+")
_GDS_NODE: Final = re.compile(r"nvidia-fs[0-9]*")
_UVERBS: Final = re.compile(r"uverbs[0-9]+")
_UMAD: Final = re.compile(r"umad[0-9]+")
_BY_PATH: Final = {"card": "card", "renderD": "render"}
_FILE_MINOR: Final = re.compile(r"^DeviceFileMinor:\s*(\d+)\s*$", re.MULTILINE)
_CONNECTIONS: Final = "/dev/infiniband/rdma_cm"
_CHANNELS: Final = "/dev/nvidia-caps-imex-channels"


class NodeSearch:
    """Looks below the folder whose ``dev`` has the nodes; sys, proc: those of the host, as seen from here."""

    def __init__(self, dev_root: Place, sys: Path, proc: Path) -> None:
        self._dev_root, self._sys, self._proc = dev_root, sys, proc

    def of_gpus(self) -> Iterator[Node]:
        """Give the nodes that all GPUs share and those of each GPU."""
        names = (name for name in self._names("/dev") if name in COMMON_NODES or _GPU_NODE.fullmatch(name))
        return self._found(f"/dev/{name}" for name in names)

    def dri(self, pci: PciAddress) -> DriNodes | None:
        """Give a GPU's nodes under ``/dev/dri``, None where it has none."""
        nodes: list[Node] = []
        for name in names_in(self._sys / "bus/pci/devices" / pci / "drm"):
            match = _DRM_NODE.fullmatch(name)
            node = self.node(f"/dev/dri/{name}") if match is not None else None
            if match is None or node is None:
                continue
            nodes.append(node)
            link = self.node(f"/dev/dri/by-path/pci-{pci}-{_BY_PATH[match[1]]}")
            if link is not None and link.host == node.host:
                nodes.append(link)
        return DriNodes(pci, tuple(sorted(nodes, key=lambda node: node.path))) if nodes else None

    def capabilities(self, gpus: Iterable[Gpu]) -> dict[MigUuid, tuple[Capability, ...]]:
        """Give, for each MIG device, the capabilities of its GPU instance and of its compute instance."""
        with_mig = [gpu for gpu in gpus if gpu.mig_devices and gpu.minor is not None]
        minors = self._mig_minors() if with_mig else {}
        found: dict[MigUuid, tuple[Capability, ...]] = {}
        for gpu in with_mig:
            for device in gpu.mig_devices:
                instance = f"gi{device.gpu_instance}"
                names = (f"{instance}/access", f"{instance}/ci{device.compute_instance}/access")
                found[device.uuid] = tuple(
                    Capability(f"gpu{gpu.minor}/{name}", self._cap_minor(f"gpu{gpu.minor}", name, minors))
                    for name in names
                )
        return found

    def nodes_of(self, capabilities: Iterable[Capability]) -> Iterator[Node]:
        """Give the nodes of capabilities, each once, where they are."""
        return self._found(dict.fromkeys(one.path for one in capabilities if one.minor is not None))

    def majors(self) -> dict[str, int]:
        """Give the numbers of character devices' drivers, from ``/proc/devices``; none where it cannot be read."""
        lines = _text(self._proc / "devices").partition("Block devices:")[0].splitlines()
        pairs = (line.split() for line in lines)
        return {pair[1]: int(pair[0]) for pair in pairs if len(pair) == 2 and pair[0].isdecimal()}  # noqa: PLR2004

    def extras(self, wanted: Wanted) -> Iterator[Extra]:
        """Look for what is wanted beside GPUs."""
        if wanted.gdrcopy:
            yield self._extra("gdrcopy", ["/dev/gdrdrv"], "load the kernel module gdrdrv")
        if wanted.gds:
            yield self._gds()
        if wanted.mofed:
            names = [name for name in self._names("/dev/infiniband") if _UVERBS.fullmatch(name)]
            paths = [*(f"/dev/infiniband/{name}" for name in names or ("uverbs0",)), _CONNECTIONS]
            yield self._extra("mofed", paths, "load the kernel modules ib_uverbs and rdma_ucm")
        pipes = self._dev_root.resolve(MPS_PIPES) if wanted.mps else None
        if pipes is not None:
            yield Extra("mps", (), (HostFile(MPS_PIPES, self._dev_root.on_host(pipes), FileKind.SOCKET),))
        for channel in wanted.imex_channels:
            path = f"{_CHANNELS}/channel{channel}"
            major = self.majors().get("nvidia-caps-imex-channels", "MAJOR")
            advice = f"make it there with: mknod {path} c {major} {channel} (MAJOR: see /proc/devices)"
            yield self._extra(f"imex-channel{channel}", [path], advice, wanted.imex_required)

    def nic(self, name: str) -> Extra:
        """Give a NIC's nodes, as they are at this moment: their numbers change when a NIC's driver starts again.

        name: of the RDMA device (``mlx5_0``). A NIC needs its verbs and the connection manager; management datagrams
        come along where there are any.
        """
        verbs = self._by_device("infiniband_verbs", _UVERBS, name) or ["uverbs of it"]
        datagrams = self._by_device("infiniband_mad", _UMAD, name)
        needed = [*(f"/dev/infiniband/{one}" for one in verbs), _CONNECTIONS]
        advice = f"look whether {name} has a driver, and load the kernel modules ib_uverbs and rdma_ucm"
        return self._extra(name, needed, advice, also=[f"/dev/infiniband/{one}" for one in datagrams])

    def node(self, path: str) -> Node | None:
        """Give one node, None where nothing is there. What stands there but is no node has no number."""
        found = self._dev_root.resolve(path)
        if found is None:
            dangling = self._dev_root.see(path).is_symlink()
            return Node(path, self._dev_root.on_host(path), None) if dangling else None
        try:
            status = os.stat(self._dev_root.text(found))  # noqa: PTH116 - there are hundreds of nodes
        except OSError:
            return None
        device = (os.major(status.st_rdev), os.minor(status.st_rdev)) if stat.S_ISCHR(status.st_mode) else None
        return Node(path, self._dev_root.on_host(found), device)

    def stamp(self) -> tuple[object, ...]:
        """Give something that differs once nodes, their numbers, MIG instances or the driver's version do."""
        names = (name for name in self._names("/dev") if name in COMMON_NODES or _GPU_NODE.fullmatch(name))
        capabilities = f"{self._proc}/{CAPABILITIES}"
        instances = [
            (gpu, instance, *names_in(f"{capabilities}/{gpu}/mig/{instance}"))
            for gpu in names_in(capabilities)
            for instance in names_in(f"{capabilities}/{gpu}/mig")
        ]
        return (
            _text(self._proc / "driver/nvidia/version"),
            _text(self._proc / "devices"),
            [(name, _number(self._dev_root.text(f"/dev/{name}"))) for name in names],
            self._names("/dev/nvidia-caps"),
            instances,
        )

    def _gds(self) -> Extra:
        names = [name for name in self._names("/dev") if _GDS_NODE.fullmatch(name)]
        files = [
            HostFile(path, self._dev_root.on_host(found), kind)
            for path, kind in (("/etc/cufile.json", FileKind.CONFIG), ("/run/udev", FileKind.DATA))
            if (found := self._dev_root.resolve(path)) is not None
        ]
        paths = [f"/dev/{name}" for name in names or ("nvidia-fs0",)]
        return self._extra("gds", paths, "load the kernel module nvidia-fs", files=files)

    def _extra(
        self,
        name: str,
        paths: Iterable[str],
        advice: str,
        required: bool = False,  # noqa: FBT001, FBT002 - a fact handed on
        *,
        files: Iterable[HostFile] = (),
        also: Iterable[str] = (),
    ) -> Extra:
        found = {path: self.node(path) for path in paths}
        gone = ", ".join(self._dev_root.on_host(path) for path, node in found.items() if node is None)
        missing = f"{name}: {gone} is not on the host; {advice}" if gone else None
        nodes = (*(node for node in found.values() if node is not None), *self._found(also))
        return Extra(name, nodes, tuple(files), missing, required)

    def _by_device(self, subsystem: str, pattern: re.Pattern[str], nic: str) -> list[str]:
        folder = self._sys / "class" / subsystem
        names = (name for name in names_in(folder) if pattern.fullmatch(name))
        return [name for name in names if _text(folder / name / "ibdev").strip() == nic]

    def _mig_minors(self) -> dict[str, int]:
        lines = _text(self._proc / MIG_MINORS).splitlines()
        pairs = (line.split() for line in lines)
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}  # noqa: PLR2004

    def _cap_minor(self, gpu: str, name: str, minors: dict[str, int]) -> int | None:
        """Take the number from the table of all instances, or else from the instance's own file."""
        known = minors.get(f"{gpu}/{name}")
        if known is not None:
            return known
        match = _FILE_MINOR.search(_text(self._proc / CAPABILITIES / gpu / "mig" / name))
        return int(match[1]) if match else None

    def _found(self, paths: Iterable[str]) -> Iterator[Node]:
        return (node for path in paths if (node := self.node(path)) is not None)

    def _names(self, folder: str) -> list[str]:
        return names_in(self._dev_root.see(folder))


def names_in(folder: Path | str) -> list[str]:
    """Names in a folder, sorted; none where it is not there or cannot be read."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208  # names alone: folders of libraries have thousands
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _number(path: str) -> int | None:
    try:
        return os.stat(path).st_rdev  # noqa: PTH116 - as above
    except OSError:
        return None
