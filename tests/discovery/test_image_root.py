"""Images that bound libraries do not suit, told from their root folders."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # import mode importlib leaves it to us

import driver_files as made

from gpuplugin.discovery.image_root import unsuited
from gpuplugin.discovery.places import Place

BOUND = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")


def found(image: Path, machine: str = "x86_64") -> tuple[str, ...]:
    return unsuited(Place(image, "/"), machine, BOUND)


@pytest.fixture
def glibc(tmp_path: Path) -> Path:
    made.write(tmp_path, "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2")
    made.link(tmp_path, "/lib64", "usr/lib64")
    made.link(tmp_path, "/lib", "usr/lib")
    made.link(tmp_path, "/usr/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2")
    return tmp_path


def test_an_image_with_glibc_suits(glibc: Path) -> None:
    made.write(glibc, "/etc/ld.so.cache", made.loader_cache(["/lib/x86_64-linux-gnu/libcuda.so.1", "/lib64/libc.so.6"]))
    assert found(glibc) == ()


def test_musl_and_no_loader_at_all(tmp_path: Path) -> None:
    (nothing,) = found(tmp_path)
    assert "no /lib64/ld-linux-x86-64.so.2" in nothing
    made.write(tmp_path, "/lib/ld-musl-x86_64.so.1")
    (musl,) = found(tmp_path)
    assert "musl (/lib/ld-musl-x86_64.so.1)" in musl
    assert "/lib/ld-linux-aarch64.so.1" not in str(found(tmp_path, "riscv64"))


def test_another_libcuda_in_the_images_own_loader_cache(glibc: Path) -> None:
    made.write(glibc, "/etc/ld.so.cache", made.loader_cache(["/opt/cuda/libcuda.so.1", "/opt/libcudart.so.12"]))
    (reason,) = found(glibc)
    assert "cache has /opt/cuda/libcuda.so.1" in reason
    made.write(glibc, "/etc/ld.so.cache", b"garbage")
    assert found(glibc) == ()


def test_forward_compatibility_is_told_once(glibc: Path) -> None:
    made.write(glibc, "/usr/local/cuda-13.0/compat/libcuda.so.580.1")
    made.link(glibc, "/usr/local/cuda-13.0/compat/libcuda.so.1", "libcuda.so.580.1")
    made.link(glibc, "/usr/local/cuda", "cuda-13.0")
    (reason,) = found(glibc)
    assert "/usr/local/cuda-13.0/compat" in reason
    assert "--nvidia-cdi-hook-path" in reason
