"""What of the driver lies on the host, looked for in the driver's own root and never by running anything of it.

The root may be the host's ``/`` or a driver container's folder, of any distribution. Nothing here fails: what is not
there is left out, and what is there but of no use becomes a warning. Whether something that is missing matters is
decided where the document is built.
"""

from __future__ import annotations

import os
import platform
import re
import stat
from typing import TYPE_CHECKING, Final

from gpuplugin.discovery import elf, ldcache
from gpuplugin.discovery.device_nodes import NodeSearch, names_in
from gpuplugin.model.driver_root import NOTHING_ELSE, DriverRoot, Extra, FileKind, HostFile, Library, LoaderFile, Wanted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from gpuplugin.discovery.places import Place
    from gpuplugin.model.inventory import Gpu

LIBRARY_FOLDERS: Final = (
    "/usr/lib/{machine}-linux-gnu",
    "/lib/{machine}-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
    "/run/opengl-driver/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
)
"""Debian, Red Hat, Arch, NixOS and Container-Optimized OS; the root's ld.so.cache may add more."""

BINARY_FOLDERS: Final = (
    "/usr/bin",
    "/bin",
    "/usr/sbin",
    "/sbin",
    "/run/current-system/sw/bin",
    "/usr/local/nvidia/bin",
)
BINARIES: Final = (
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-persistenced",
    "nvidia-smi",
)
CONFIGS: Final = (
    "OpenCL/vendors/nvidia.icd",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/20_nvidia_xcb.json",
    "egl/egl_external_platform.d/20_nvidia_xlib.json",
    "glvnd/egl_vendor.d/10_nvidia.json",
    "nvidia/nvoptix.bin",
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_icd.{machine}.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
)
FIRMWARE_FOLDERS: Final = ("/lib/firmware/nvidia", "/usr/lib/firmware/nvidia")
SOCKET_FOLDERS: Final = ("nvidia-fabricmanager", "nvidia-persistenced")
LOADER_FILES: Final = ("gbm/nvidia-drm_gbm.so",)

_FIRMWARE: Final = re.compile(r"gsp.*\.bin")
_OWN_VERSION: Final = re.compile(r"libnvidia-(api|egl-(gbm|wayland2?|xcb|xlib))\.so\.[0-9.]+")
"""Libraries of the driver's package that do not carry the driver's version."""

_Stamp = tuple[str, int, int, int, int] | tuple[str]
_Libraries = tuple[tuple[Library, ...], tuple[LoaderFile, ...], tuple[str, ...]]


class DriverRootSearch:
    """Looks at the driver's files. A second look costs a few stat calls unless something has changed.

    root: where the driver's files are · dev_root: the folder whose ``dev`` has the device nodes · sys, proc: those of
    the host, as seen from here · machine: as uname says it; libraries of others are left out. Blocks; call it on one
    thread at a time.
    """

    def __init__(self, root: Place, dev_root: Place, sys: Path, proc: Path, machine: str | None = None) -> None:
        self.root, self.dev_root = root, dev_root
        self.nodes = NodeSearch(dev_root, sys, proc)
        self.machine = machine or platform.machine()
        self._cache: tuple[_Stamp, tuple[str, ...]] | None = None
        self._known: tuple[str, tuple[_Stamp, ...], _Libraries] | None = None

    def look(self, version: str, gpus: Iterable[Gpu], wanted: Wanted = NOTHING_ELSE) -> DriverRoot:
        """Find everything. version: of the driver that is loaded · gpus: whose own nodes are looked for."""
        gpus = sorted(gpus, key=lambda gpu: gpu.pci)
        libraries, loader_files, warnings = self._libraries(version)
        caps = self.nodes.capabilities(gpus)
        extras = self._extras(wanted)
        lacking = (extra.missing for extra in extras if extra.missing is not None and not extra.required)
        return DriverRoot(
            root=self.root.host,
            dev_root=self.dev_root.host,
            version=version,
            machine=self.machine,
            nodes=(*self.nodes.of_gpus(), *self.nodes.nodes_of(cap for some in caps.values() for cap in some)),
            dri=tuple(dri for gpu in gpus if (dri := self.nodes.dri(gpu.pci)) is not None),
            libraries=libraries,
            loader_files=loader_files,
            files=tuple(sorted(self._files(version), key=lambda file: file.path)),
            warnings=(*warnings, *lacking),
            caps=caps,
            majors=self.nodes.majors(),
            extras=extras,
        )

    def exists(self, host_path: str) -> bool:
        """Whether something is at a path of the host that a look has given."""
        for place, below in ((self.dev_root, "/dev/"), (self.root, "/"), (self.dev_root, "/")):
            prefix = place.on_host(below)
            if host_path.startswith(prefix):
                return os.access(place.text(below + host_path.removeprefix(prefix)), os.F_OK)
        return False

    def _extras(self, wanted: Wanted) -> tuple[Extra, ...]:
        return (*self.nodes.extras(wanted), *self._hook(wanted.hook))

    def _hook(self, program: str | None) -> Iterator[Extra]:
        if program is not None and not self._is_program(program):
            advice = "install NVIDIA's container toolkit, or name no program for hooks: none is needed"
            missing = f"{program} is no program on the host that could be seen from here; {advice}"
            yield Extra("hooks", (), (), missing, required=True)

    def _is_program(self, path: str) -> bool:
        for place in (self.root, self.dev_root):
            prefix = place.on_host("/")
            found = place.resolve(path.removeprefix(prefix)) if path.startswith(prefix) else None
            if found is not None and os.access(place.text(found), os.X_OK) and stat.S_ISREG(_mode(place.see(found))):
                return True
        return False

    def stamp(self, wanted: Wanted = NOTHING_ELSE) -> tuple[object, ...]:
        """Give something that differs once another look would find other nodes or libraries; a fraction of its cost.

        May be called on another thread than `look`.
        """
        known = self._known
        libraries = self._stamps(self._library_folders(), known[2]) if known else ()
        return (*self.nodes.stamp(), libraries, self._stamp("/etc/ld.so.cache"), self._extras(wanted))

    def _libraries(self, version: str) -> _Libraries:
        folders = self._library_folders()
        if self._known is not None:
            known_version, stamps, found = self._known
            if known_version == version and stamps == self._stamps(folders, found):
                return found
        found = self._read_libraries(version, folders)
        self._known = version, self._stamps(folders, found), found
        return found

    def _library_folders(self) -> tuple[str, ...]:
        standard = [folder.format(machine=self.machine) for folder in LIBRARY_FOLDERS]
        resolved = (self.root.resolve(folder) for folder in [*standard, *self._cached_folders()])
        return tuple(dict.fromkeys(folder for folder in resolved if folder is not None))

    def _cached_folders(self) -> tuple[str, ...]:
        """Give the folders that the root's loader cache has drivers' libraries in; parsed again when it has changed."""
        stamp = self._stamp("/etc/ld.so.cache")
        if self._cache is None or self._cache[0] != stamp:
            self._cache = stamp, _drivers_folders(self.root.see("/etc/ld.so.cache"))
        return self._cache[1]

    def _stamps(self, folders: Iterable[str], found: _Libraries) -> tuple[_Stamp, ...]:
        below = [f"{folder}{sub}" for folder in folders for sub in ("", "/vdpau", "/gbm")]
        hosts = [*(library.host for library in found[0]), *(file.host for file in found[1])]
        prefix = self.root.host.rstrip("/")
        return tuple(map(self._stamp, [*below, *(host.removeprefix(prefix) for host in hosts)]))

    def _stamp(self, path: str) -> _Stamp:
        try:
            status = os.stat(self.root.text(path))  # noqa: PTH116 - hundreds of them with each look
        except OSError:
            return (path,)
        return path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def _read_libraries(self, version: str, folders: Iterable[str]) -> _Libraries:
        libraries: dict[tuple[str, str], Library] = {}
        loader_files: dict[str, LoaderFile] = {}
        warnings: list[str] = []
        for folder in folders:
            for below in ("", "vdpau"):
                for name, path in self._candidates(f"{folder}/{below}".rstrip("/"), version):
                    host = self.root.on_host(path)
                    try:
                        read = elf.read(self.root.see(path))
                    except (OSError, elf.NotElf) as error:
                        warnings.append(f"{host} is left out: {error}")
                        continue
                    if read.machine == self.machine:
                        libraries.setdefault((below, name), Library(name, read.soname, below, host))
            for file in LOADER_FILES:
                found = self.root.resolve(f"{folder}/{file}")
                if found is not None:
                    loader_files.setdefault(file, LoaderFile(file, self.root.on_host(found)))
        return tuple(libraries[key] for key in sorted(libraries)), tuple(loader_files.values()), tuple(warnings)

    def _candidates(self, folder: str, version: str) -> Iterator[tuple[str, str]]:
        """Names of the driver's libraries in a folder, each with the path that it leads to."""
        for name in names_in(self.root.see(folder)):
            own_version = _OWN_VERSION.fullmatch(name) is not None
            if not (own_version or name.endswith(f".so.{version}")):
                continue
            path = self.root.resolve(f"{folder}/{name}")
            if path is not None and not (own_version and not path.endswith(f"/{name}")):
                yield name, path

    def _files(self, version: str) -> Iterator[HostFile]:
        for name in BINARIES:
            candidates = [f"{folder}/{name}" for folder in BINARY_FOLDERS]
            yield from self._first(FileKind.BINARY, f"/usr/bin/{name}", candidates)
        for pattern in CONFIGS:
            name = pattern.format(machine=self.machine)
            yield from self._first(FileKind.CONFIG, f"/etc/{name}", [f"/etc/{name}"])
            yield from self._first(
                FileKind.CONFIG, f"/usr/share/{name}", [f"/usr/share/{name}", f"/run/opengl-driver/share/{name}"]
            )
        folder = next(filter(None, (self.root.resolve(f"{one}/{version}") for one in FIRMWARE_FOLDERS)), None)
        for name in names_in(self.root.see(folder)) if folder else ():
            if _FIRMWARE.fullmatch(name):
                path = f"{FIRMWARE_FOLDERS[0]}/{version}/{name}"
                yield from self._first(FileKind.FIRMWARE, path, [f"{folder}/{name}"])
        for name in SOCKET_FOLDERS:
            yield from self._first(FileKind.SOCKET, f"/run/{name}", [f"/run/{name}", f"/var/run/{name}"])

    def _first(self, kind: FileKind, path: str, candidates: Iterable[str]) -> Iterator[HostFile]:
        """Give the first candidate that is there, as a file or, for sockets, as a folder.

        A service's socket may be in the host's own root although the driver is in a container's.
        """
        wanted = stat.S_ISDIR if kind is FileKind.SOCKET else stat.S_ISREG
        places = (self.root, self.dev_root) if kind is FileKind.SOCKET else (self.root,)
        for place in places:
            for candidate in candidates:
                found = place.resolve(candidate)
                if found is not None and wanted(_mode(place.see(found))):
                    yield HostFile(path, place.on_host(found), kind)
                    return


def _drivers_folders(cache: Path) -> tuple[str, ...]:
    try:
        paths = ldcache.paths(cache.read_bytes())
    except (OSError, ValueError):
        return ()
    split = (path.rpartition("/") for path in paths)
    return tuple(dict.fromkeys(folder for folder, _, name in split if name.startswith(("libcuda.so", "libnvidia-"))))


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError:
        return 0
