"""What of the driver lies on the host, as facts: everything that a container could be given, and nothing decided.

A path in here is the host's own, with no link left in it that leads elsewhere inside the driver's root, so that a
runtime on the host can use it as it stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuplugin.model.ids import PciAddress


class FileKind(Enum):
    """What a file beside the libraries is good for."""

    BINARY = "binary"
    CONFIG = "config"
    FIRMWARE = "firmware"
    SOCKET = "socket"
    """A folder with a service's socket in it; the folder, because the socket is made anew with each service start."""


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
class DriverRoot:
    """What was found. Each tuple is sorted by path or name, and empty where nothing was found.

    root, dev_root: the host's paths of the folders that were searched · version: of the driver whose files were looked
    for · machine: as uname says it (``x86_64``) · nodes: common ones and ``/dev/nvidia<minor>`` · warnings: files that
    are there but of no use.
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

    def node(self, path: str) -> Node | None:
        """Give the node with that container path, where the host has it."""
        return next((node for node in self.nodes if node.path == path), None)

    def dri_of(self, pci: PciAddress) -> tuple[Node, ...]:
        """Give a GPU's DRI nodes, none where it has no display side."""
        return next((dri.nodes for dri in self.dri if dri.pci == pci), ())
