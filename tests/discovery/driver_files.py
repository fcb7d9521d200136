"""Driver roots as tests need them: a little ELF library, and the layouts of three distributions."""

from __future__ import annotations

import struct
from pathlib import Path

from gpuplugin.model.ids import GpuUuid, MigUuid, PciAddress
from gpuplugin.model.inventory import Gpu, MigDevice, MigMode

VERSION = "580.65.06"
SONAMES = {
    "libcuda": "libcuda.so.1",
    "libnvidia-ml": "libnvidia-ml.so.1",
    "libnvidia-ptxjitcompiler": "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-glcore": f"libnvidia-glcore.so.{VERSION}",
}
DEBIAN, REDHAT = "/usr/lib/x86_64-linux-gnu", "/usr/lib64"
STORE = "/nix/store/abc-nvidia-x11"


def shared_library(soname: str | None, machine: int = 62, bits: int = 2) -> bytes:
    """The smallest ELF file that has a SONAME: header, two segments, dynamic section, string table."""
    header, segment, strings = 64, 56, (soname or "").encode() + b"\0"
    dynamic_at = header + 2 * segment
    entries = [(14, 0)] if soname is not None else []
    entries += [(5, 0x10000 + dynamic_at + 16 * (len(entries) + 2)), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in entries)
    total = dynamic_at + len(dynamic) + len(strings)
    ident = b"\x7fELF" + bytes([bits, 1, 1]) + bytes(9)
    fields = (3, machine, 1, 0, header, 0, 0, header, segment, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x10000, 0x10000, total, total, 4096)
    described = struct.pack("<IIQQQQQQ", 2, 6, dynamic_at, 0x10000 + dynamic_at, 0, len(dynamic), len(dynamic), 8)
    return ident + struct.pack("<HHIQQQIHHHHHH", *fields) + load + described + dynamic + strings


def loader_cache(paths: list[str], *, old_format_before: bool = False) -> bytes:
    """An ld.so.cache in the format of glibc 2.2 and newer, after an (empty) old one if asked for."""
    head, at, entries, strings = 48, 48 + 24 * len(paths), b"", b""
    for path in paths:
        name_at = at + len(strings)
        strings += path.rpartition("/")[2].encode() + b"\0"
        entries += struct.pack("<iIIIQ", 0x303, name_at, at + len(strings), 0, 0)
        strings += path.encode() + b"\0"
    new = struct.pack("<20sII20x", b"glibc-ld.so.cache1.1", len(paths), len(strings)) + entries + strings
    assert len(entries) + head == at
    if not old_format_before:
        return new
    old = b"ld.so-1.7.0\0" + struct.pack("<I", 1) + bytes(12)
    return old + bytes(-len(old) % 8) + new


def write(root: Path, path: str, content: bytes = b"x") -> Path:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def link(root: Path, path: str, target: str) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.symlink_to(target)


def libraries(root: Path, folder: str, version: str = VERSION) -> None:
    for stem, usual in SONAMES.items():
        full, soname = f"{stem}.so.{version}", usual.replace(VERSION, version)
        write(root, f"{folder}/{full}", shared_library(soname))
        if soname != full:
            link(root, f"{folder}/{soname}", full)
            link(root, f"{folder}/{stem}.so", soname)


def debian(root: Path) -> str:
    libraries(root, DEBIAN)
    link(root, "/lib", "usr/lib")
    write(root, "/usr/bin/nvidia-smi")
    write(root, "/etc/OpenCL/vendors/nvidia.icd")
    write(root, "/usr/share/glvnd/egl_vendor.d/10_nvidia.json")
    return DEBIAN


def redhat(root: Path) -> str:
    libraries(root, REDHAT)
    write(root, f"/usr/lib/libcuda.so.{VERSION}", shared_library("libcuda.so.1", machine=3, bits=1))
    link(root, "/lib64", "usr/lib64")
    link(root, "/bin", "usr/bin")
    write(root, "/usr/bin/nvidia-smi")
    return REDHAT


def nixos(root: Path) -> str:
    """All is in the store, and what programs look for are links with absolute targets."""
    libraries(root, f"{STORE}/lib")
    link(root, "/nix/store/xyz-drivers/lib", f"{STORE}/lib")
    link(root, "/run/opengl-driver", "/nix/store/xyz-drivers")
    write(root, f"{STORE}/bin/nvidia-smi")
    link(root, "/run/current-system/sw/bin/nvidia-smi", f"{STORE}/bin/nvidia-smi")
    return f"{STORE}/lib"


LAYOUTS = {"debian": debian, "redhat": redhat, "nixos": nixos}


def gpu(pci: str, minor: int | None = 0, *instances: tuple[int, int]) -> Gpu:
    """A GPU; instances: of its MIG devices, (GPU instance, compute instance)."""
    nothing = dict.fromkeys(MigDevice.__dataclass_fields__)
    devices = [
        MigDevice(**nothing | {"uuid": MigUuid(f"MIG-{gi}-{ci}"), "gpu_instance": gi, "compute_instance": ci})
        for gi, ci in instances
    ]
    facts = dict.fromkeys(Gpu.__dataclass_fields__)
    known = {"index": 0, "uuid": GpuUuid(f"GPU-{pci}"), "pci": PciAddress(pci), "minor": minor}
    return Gpu(**facts | known | {"mig": MigMode(current=True, pending=True), "mig_devices": tuple(devices)})
