"""What of the driver lies on the host, as facts: everything that a container could be given, and nothing decided.

A path in here is the host's own, with no link left in it that leads elsewhere inside the driver's root, so that a
runtime on the host can use it as it stands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplugin.model.ids import MigUuid, PciAddress


class FileKind(Enum):
    """What a file beside the libraries is good for."""

    BINARY = "binary"
    CONFIG = "config"
    FIRMWARE = "firmware"
    SOCKET = "socket"
    """A folder with a service's socket in it; the folder, because the socket is made anew with each service start."""
    DATA = "data"
    """A folder that is read as a whole."""


@dataclass(frozen=True, slots=True)
class Node:
    """A device node. path: where the driver's programs look for it (``/dev/nvidia0``) · host: where the host has it.

    number: (major, minor) of the character device, None where something else stands at `host`.
    """

    path: str
    host: str
    number: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class DriNodes:
    """One GPU's nodes under ``/dev/dri``; links by PCI path are nodes of their own with the same `host`."""

    pci: PciAddress
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Capability:
    """What the driver checks before it lets a process use a MIG instance: that it can open this node.

    name: as the driver calls it (``gpu0/gi1/ci0/access``) · minor: of its node, None where the driver does not tell.
    """

    name: str
    minor: int | None

    @property
    def path(self) -> str:
        """The node's place, in containers too."""
        return f"/dev/nvidia-caps/nvidia-cap{self.minor}"


@dataclass(frozen=True, slots=True)
class Library:
    """A shared library of the driver. name: ``libcuda.so.580.65.06`` · soname: what programs load (``libcuda.so.1``).

    folder: below the loader's folder (``vdpau``), most often empty. soname is None where the file has none.
    """

    name: str
    soname: str | None
    folder: str
    host: str

    @property
    def stem(self) -> str:
        """What the linker asks for: ``libcuda.so``."""
        return f"{self.name.partition('.so.')[0]}.so"


@dataclass(frozen=True, slots=True)
class HostFile:
    """A file or folder that goes into a container as it is. path: its place there · host: its place on the host."""

    path: str
    host: str
    kind: FileKind


@dataclass(frozen=True, slots=True)
class LoaderFile:
    """A file whose place is below the loader's folders: `path` is relative to them (``gbm/nvidia-drm_gbm.so``)."""

    path: str
    host: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What containers shall get beside GPUs, each where the host has it.

    imex_required: that no GPU is given without the IMEX channels · mps: the folder of pipes of an MPS control daemon
    that somebody else runs, where CUDA looks for it · hook: the host's path of a program that containers' hooks run,
    without which no GPU is given either.
    """

    gdrcopy: bool = False
    gds: bool = False
    mofed: bool = False
    imex_channels: tuple[int, ...] = ()
    imex_required: bool = False
    mps: bool = False
    hook: str | None = None


NOTHING_ELSE: Final = Wanted()


@dataclass(frozen=True, slots=True)
class Extra:
    """One of what is wanted. missing: what of it the host lacks and what to do, None where all is there."""

    name: str
    nodes: tuple[Node, ...]
    files: tuple[HostFile, ...] = ()
    missing: str | None = None
    required: bool = False


@dataclass(frozen=True, slots=True)
class DriverRoot:
    """What was found. Each tuple is sorted by path or name, and empty where nothing was found.

    root, dev_root: the host's paths of the folders that were searched · version: of the driver whose files were looked
    for · machine: as uname says it (``x86_64``) · nodes: common ones, ``/dev/nvidia<minor>`` and MIG capabilities ·
    warnings: files that are there but of no use · caps: for each MIG device those of its GPU instance and its compute
    instance · majors: numbers that the kernel has dealt out to character devices, by their names in ``/proc/devices``.
    """

    root: str
    dev_root: str
    version: str
    machine: str
    nodes: tuple[Node, ...]
    dri: tuple[DriNodes, ...]
    libraries: tuple[Library, ...]
    loader_files: tuple[LoaderFile, ...]
    files: tuple[HostFile, ...]
    warnings: tuple[str, ...] = ()
    caps: Mapping[MigUuid, tuple[Capability, ...]] = field(default_factory=dict)
    majors: Mapping[str, int] = field(default_factory=dict)
    extras: tuple[Extra, ...] = ()

    def node(self, path: str) -> Node | None:
        """Give the node with that container path, where the host has it."""
        return next((node for node in self.nodes if node.path == path), None)

    def dri_of(self, pci: PciAddress) -> tuple[Node, ...]:
        """Give a GPU's DRI nodes, none where it has no display side."""
        return next((dri.nodes for dri in self.dri if dri.pci == pci), ())
