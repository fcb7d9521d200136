"""The driver's files are found in any layout, as seen from here, and named as the host does."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parent))  # import mode importlib leaves it to us

import driver_files as made

from gpuplugin.discovery import elf, ldcache
from gpuplugin.discovery.driver_root import DriverRootSearch
from gpuplugin.discovery.places import Place
from gpuplugin.model.driver_root import FileKind
from gpuplugin.model.ids import PciAddress

PCI = PciAddress("0000:1b:00.0")


def search(root: Path, host: str = "/", dev: Path | None = None, dev_host: str = "/") -> DriverRootSearch:
    return DriverRootSearch(Place(root, host), Place(dev or root, dev_host), root / "sys", root / "proc", "x86_64")


@pytest.mark.parametrize("host", ["/", "/run/nvidia/driver"])
@pytest.mark.parametrize("layout", sorted(made.LAYOUTS))
def test_each_layout_gives_the_same_libraries_under_the_hosts_names(tmp_path: Path, layout: str, host: str) -> None:
    folder = made.LAYOUTS[layout](tmp_path)
    looked = search(tmp_path, host)
    facts = looked.look(made.VERSION, [])
    prefix = host.rstrip("/")
    assert [(library.name, library.soname, library.host) for library in facts.libraries] == [
        (f"{stem}.so.{made.VERSION}", soname, f"{prefix}{folder}/{stem}.so.{made.VERSION}")
        for stem, soname in sorted(made.SONAMES.items())
    ]
    (smi,) = [file for file in facts.files if file.kind is FileKind.BINARY]
    assert smi.path == "/usr/bin/nvidia-smi"
    assert smi.host == prefix + (f"{made.STORE}/bin/nvidia-smi" if layout == "nixos" else "/usr/bin/nvidia-smi")
    assert facts.warnings == ()
    assert all(looked.exists(found.host) for found in (*facts.libraries, *facts.files))
    assert not looked.exists(f"{prefix}/usr/bin/missing")
    assert not looked.exists("elsewhere")


def test_an_arm_machine_takes_its_own_libraries_from_its_own_folders(tmp_path: Path) -> None:
    for folder, machine in (("/usr/lib/aarch64-linux-gnu", 183), ("/usr/lib64", 62)):
        content = made.shared_library("libcuda.so.1", machine=machine)
        made.write(tmp_path, f"{folder}/libcuda.so.{made.VERSION}", content)
    made.write(tmp_path, "/usr/share/vulkan/icd.d/nvidia_icd.aarch64.json")
    place = Place(tmp_path, "/")
    facts = DriverRootSearch(place, place, tmp_path / "sys", tmp_path / "proc", "aarch64").look(made.VERSION, [])
    assert [library.host for library in facts.libraries] == [f"/usr/lib/aarch64-linux-gnu/libcuda.so.{made.VERSION}"]
    assert [file.path for file in facts.files] == ["/usr/share/vulkan/icd.d/nvidia_icd.aarch64.json"]


def test_the_loader_cache_leads_to_folders_that_nobody_could_guess(tmp_path: Path) -> None:
    made.libraries(tmp_path, "/opt/vendor/gpu")
    assert search(tmp_path).look(made.VERSION, []).libraries == ()
    made.write(tmp_path, "/etc/ld.so.cache", made.loader_cache(["/lib/libc.so.6", "/opt/vendor/gpu/libcuda.so.1"]))
    assert len(search(tmp_path).look(made.VERSION, []).libraries) == len(made.SONAMES)


def test_other_versions_are_no_part_of_the_driver(tmp_path: Path) -> None:
    made.libraries(tmp_path, made.DEBIAN, "570.1")
    made.write(tmp_path, f"{made.DEBIAN}/libcuda.so.1{made.VERSION}", made.shared_library("libcuda.so.1"))
    assert search(tmp_path).look(made.VERSION, []).libraries == ()


def test_garbage_among_the_libraries_is_left_out_and_told(tmp_path: Path) -> None:
    made.debian(tmp_path)
    made.write(tmp_path, f"{made.DEBIAN}/libnvidia-bad.so.{made.VERSION}", b"\x7fELF garbage")
    (tmp_path / f"usr/lib/x86_64-linux-gnu/libnvidia-dir.so.{made.VERSION}").mkdir()
    made.link(tmp_path, f"{made.DEBIAN}/libnvidia-loop.so.{made.VERSION}", f"libnvidia-loop.so.{made.VERSION}")
    made.link(tmp_path, f"{made.DEBIAN}/libnvidia-gone.so.{made.VERSION}", "/gone")
    facts = search(tmp_path, "/host").look(made.VERSION, [])
    assert len(facts.libraries) == len(made.SONAMES)
    assert [warning.partition(" ")[0] for warning in facts.warnings] == [
        f"/host{made.DEBIAN}/libnvidia-bad.so.{made.VERSION}",
        f"/host{made.DEBIAN}/libnvidia-dir.so.{made.VERSION}",
    ]


def test_files_beside_the_libraries(tmp_path: Path) -> None:
    made.debian(tmp_path)
    made.write(
        tmp_path, f"{made.DEBIAN}/vdpau/libvdpau_nvidia.so.{made.VERSION}", made.shared_library("libvdpau_nvidia.so.1")
    )
    made.write(tmp_path, f"{made.DEBIAN}/libnvidia-egl-gbm.so.1.1.2", made.shared_library("libnvidia-egl-gbm.so.1"))
    made.link(tmp_path, f"{made.DEBIAN}/libnvidia-egl-gbm.so.1", "libnvidia-egl-gbm.so.1.1.2")
    made.write(
        tmp_path,
        f"{made.DEBIAN}/libnvidia-allocator.so.{made.VERSION}",
        made.shared_library("libnvidia-allocator.so.1"),
    )
    made.link(tmp_path, f"{made.DEBIAN}/gbm/nvidia-drm_gbm.so", f"../libnvidia-allocator.so.{made.VERSION}")
    made.write(tmp_path, f"/usr/lib/firmware/nvidia/{made.VERSION}/gsp_ga10x.bin")
    made.write(tmp_path, f"/usr/lib/firmware/nvidia/{made.VERSION}/README")
    made.write(tmp_path, "/run/nvidia-persistenced/socket")
    facts = search(tmp_path).look(made.VERSION, [])
    (vdpau,) = [library for library in facts.libraries if library.folder]
    assert (vdpau.folder, vdpau.soname) == ("vdpau", "libvdpau_nvidia.so.1")
    assert [library.name for library in facts.libraries if "egl" in library.name] == ["libnvidia-egl-gbm.so.1.1.2"]
    assert [(file.path, file.host) for file in facts.loader_files] == [
        ("gbm/nvidia-drm_gbm.so", f"{made.DEBIAN}/libnvidia-allocator.so.{made.VERSION}")
    ]
    assert [(file.kind, file.path) for file in facts.files] == [
        (FileKind.CONFIG, "/etc/OpenCL/vendors/nvidia.icd"),
        (FileKind.FIRMWARE, f"/lib/firmware/nvidia/{made.VERSION}/gsp_ga10x.bin"),
        (FileKind.SOCKET, "/run/nvidia-persistenced"),
        (FileKind.BINARY, "/usr/bin/nvidia-smi"),
        (FileKind.CONFIG, "/usr/share/glvnd/egl_vendor.d/10_nvidia.json"),
    ]


def test_a_services_socket_is_found_on_the_host_when_the_driver_is_in_a_container(tmp_path: Path) -> None:
    (tmp_path / "host/run/nvidia-fabricmanager").mkdir(parents=True)
    (tmp_path / "driver").mkdir()
    looked = search(tmp_path / "driver", "/run/nvidia/driver", tmp_path / "host", "/")
    (file,) = looked.look(made.VERSION, []).files
    assert (file.path, file.host) == ("/run/nvidia-fabricmanager", "/run/nvidia-fabricmanager")
    assert looked.exists(file.host)


def node(root: Path, path: str, major: int, minor: int) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mknod(file, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    except PermissionError:
        pytest.skip("making device nodes needs root")


def test_nodes_come_from_the_dev_root_with_their_numbers(tmp_path: Path) -> None:
    node(tmp_path, "/dev/nvidiactl", 195, 255)
    node(tmp_path, "/dev/nvidia3", 195, 3)
    node(tmp_path, "/dev/nvidia-nvswitch0", 195, 4)
    made.write(tmp_path, "/dev/nvidia-uvm")
    looked = DriverRootSearch(
        Place(Path("/nowhere"), "/drv"), Place(tmp_path, "/alt"), tmp_path / "sys", tmp_path / "proc", "x86_64"
    )
    facts = looked.look(made.VERSION, [])
    assert [(one.path, one.host, one.number) for one in facts.nodes] == [
        ("/dev/nvidia-uvm", "/alt/dev/nvidia-uvm", None),
        ("/dev/nvidia3", "/alt/dev/nvidia3", (195, 3)),
        ("/dev/nvidiactl", "/alt/dev/nvidiactl", (195, 255)),
    ]
    assert looked.exists("/alt/dev/nvidia3")
    assert not looked.exists("/alt/dev/nvidia4")


def test_a_link_that_leads_out_of_the_root_is_no_node(tmp_path: Path) -> None:
    made.link(tmp_path, "/dev/nvidia0", "/dev/null")
    (one,) = search(tmp_path, dev_host="/host").look(made.VERSION, []).nodes
    assert (one.path, one.host, one.number) == ("/dev/nvidia0", "/host/dev/nvidia0", None)


def test_dri_nodes_belong_to_the_gpu_that_sysfs_says(tmp_path: Path) -> None:
    for name, minor in (("card1", 1), ("renderD128", 128), ("card0", 0)):
        node(tmp_path, f"/dev/dri/{name}", 226, minor)
    for name in ("card1", "renderD128", "controlD64", "card9"):
        (tmp_path / f"sys/bus/pci/devices/{PCI}/drm/{name}").mkdir(parents=True)
    made.link(tmp_path, f"/dev/dri/by-path/pci-{PCI}-card", "../card1")
    made.link(tmp_path, f"/dev/dri/by-path/pci-{PCI}-render", "../card0")  # stale
    facts = search(tmp_path).look(made.VERSION, [made.gpu(PCI), made.gpu("0000:ff:00.0")])
    assert [(one.path, one.host, one.number) for one in facts.dri_of(PCI)] == [
        (f"/dev/dri/by-path/pci-{PCI}-card", "/dev/dri/card1", (226, 1)),
        ("/dev/dri/card1", "/dev/dri/card1", (226, 1)),
        ("/dev/dri/renderD128", "/dev/dri/renderD128", (226, 128)),
    ]
    assert facts.dri_of(PciAddress("0000:ff:00.0")) == ()


def test_an_empty_root_is_no_error(tmp_path: Path) -> None:
    facts = search(tmp_path / "missing").look(made.VERSION, [made.gpu(PCI)])
    assert (facts.nodes, facts.dri, facts.libraries, facts.files, facts.warnings) == ((), (), (), (), ())


def test_a_second_look_reads_no_library_until_something_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.debian(tmp_path)
    looked, reads = search(tmp_path), []
    real = elf.read
    monkeypatch.setattr(elf, "read", lambda path: reads.append(path) or real(path))
    first = looked.look(made.VERSION, [])
    assert len(reads) == len(made.SONAMES)
    assert looked.look(made.VERSION, []) == first
    assert len(reads) == len(made.SONAMES)

    library = tmp_path / made.DEBIAN.lstrip("/") / f"libcuda.so.{made.VERSION}"
    library.write_bytes(made.shared_library("libcuda.so.2"))
    assert "libcuda.so.2" in {found.soname for found in looked.look(made.VERSION, []).libraries}
    library.unlink()
    assert len(looked.look(made.VERSION, []).libraries) == len(made.SONAMES) - 1
    made.libraries(tmp_path, made.REDHAT, "590.1")
    assert len(looked.look("590.1", []).libraries) == len(made.SONAMES)


def test_links_never_lead_out_of_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    made.write(tmp_path, "/secret")
    made.write(root, "/secret", b"inner")
    made.link(root, "/up", "../../../secret")
    made.link(root, "/absolute", "/secret")
    made.link(root, "/folder", "/a/../.")
    made.link(root, "/loop", "loop")
    (root / "a").mkdir()
    place = Place(root, "/host")
    assert place.resolve("/up") == "/secret"
    assert place.resolve("/folder/absolute") == "/secret"
    assert place.resolve("/loop") is None
    assert place.resolve("/missing/x") is None
    (root / os.fsdecode(b"\xff")).touch()
    assert place.resolve("/" + os.fsdecode(b"\xff")) is None


def test_the_soname_of_real_libraries_is_what_the_loader_cache_lists() -> None:
    cache = Path("/etc/ld.so.cache")
    if not cache.exists():
        pytest.skip("no /etc/ld.so.cache here")
    listed = [Path(path) for path in ldcache.paths(cache.read_bytes()) if Path(path).name in {"libc.so.6", "libm.so.6"}]
    assert listed
    assert all(elf.read(path).soname == path.name for path in listed)


@given(st.binary())
def test_random_bytes_are_no_library(data: bytes) -> None:
    with pytest.raises(elf.NotElf):
        elf.parse(data)


@given(st.data())
def test_damaged_libraries_never_crash_the_reader(data: st.DataObject) -> None:
    whole = bytearray(made.shared_library("libcuda.so.1"))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, len(whole) - 1))
        whole[at : at + 8] = data.draw(st.binary(max_size=8))
    with suppress(elf.NotElf):
        assert elf.parse(bytes(whole)).machine


def test_every_cut_of_a_library_is_told(tmp_path: Path) -> None:
    whole = made.shared_library("libcuda.so.1")
    for length in range(len(whole)):
        with pytest.raises(elf.NotElf):
            elf.parse(whole[:length])
    assert elf.parse(whole) == elf.SharedLibrary("x86_64", "libcuda.so.1")
    assert elf.parse(made.shared_library(None)) == elf.SharedLibrary("x86_64", None)
    assert elf.read(made.write(tmp_path, "/a", made.shared_library("x", 183))) == elf.SharedLibrary("aarch64", "x")


@given(st.binary(), st.booleans())
def test_damaged_loader_caches_never_crash_the_reader(noise: bytes, cut: bool) -> None:  # noqa: FBT001
    cache = made.loader_cache(["/a/libcuda.so.1"])
    changed = cache[: -len(noise) or None] if cut else cache[:20] + noise + cache[20 + len(noise) :]
    for data in (noise, changed):
        with suppress(ValueError):
            assert isinstance(ldcache.paths(data), tuple)


def test_loader_caches_with_the_old_format_in_front() -> None:
    names = ["/a/libcuda.so.1", "/b/libc.so.6"]
    assert ldcache.paths(made.loader_cache(names)) == tuple(names)
    assert ldcache.paths(made.loader_cache(names, old_format_before=True)) == tuple(names)
