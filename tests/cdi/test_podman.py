"""A real runtime starts a container from our document: the loader finds the libraries, the GPU's node opens."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cdi_facts import gpu

from cdi.build import build
from cdi.names import file_name, qualified_name
from cdi.spec import encode
from cdi.validate import validate
from cdi.writer import write
from gpuplugin.discovery.driver_root import DriverRootSearch
from gpuplugin.discovery.places import Place

sys.path.append(str(Path(__file__).parents[1] / "discovery"))

import driver_files as made

MISSING = [tool for tool in ("podman", "runc", "gcc") if shutil.which(tool) is None]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="podman with device nodes needs root"),
]

SPECS = Path("/var/run/cdi")
KIND = f"gpuplugin.io/test-{os.getpid()}"
COMMAND = ["podman", "run", "--rm", "--runtime", "runc", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
COMMAND += ["--network", "none", "--read-only"]

CUDA = "int cuInit(unsigned flags) { return 42 + flags; }"
PROBE = r"""
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **names) {
    for (int i = 1; i < count; i++) {
        void *library = dlopen(names[i], RTLD_NOW);
        int (*init)(unsigned) = library ? (int (*)(unsigned))dlsym(library, "cuInit") : 0;
        printf("%s %d\n", names[i], init ? init(0) : -1);
    }
    for (int i = 0; i < 2; i++) {
        char path[32];
        snprintf(path, sizeof path, "/dev/nvidia%d", i);
        printf("%s %d\n", path, open(path, O_RDWR) >= 0);
    }
    printf("nvidiactl %d\nenv %s\n", open("/dev/nvidiactl", O_RDWR) >= 0, getenv("NVIDIA_VISIBLE_DEVICES"));
}
"""


def compiled(target: Path, source: str, *options: str) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-x", "c", "-o", target, "-", *options], input=source.encode(), check=True)
    return target


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    """The smallest image with a glibc: loader, C library and one program."""
    root = tmp_path / "rootfs"
    probe = compiled(root / "bin/probe", PROBE, "-ldl")
    listed = subprocess.run(["ldd", probe], check=True, capture_output=True, text=True).stdout
    for file in (Path(word) for word in listed.split() if word.startswith("/")):
        made.write(root, str(file), file.read_bytes()).chmod(0o755)
    for folder in ("proc", "sys", "dev", "tmp", "run", "etc"):
        (root / folder).mkdir(exist_ok=True)
    return root


@pytest.fixture
def search(tmp_path: Path) -> DriverRootSearch:
    """A driver that is as good as any until a GPU is asked to do something: its nodes are those of /dev/null."""
    root = tmp_path / "driver"
    compiled(root / f"usr/lib64/libcuda.so.{made.VERSION}", CUDA, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    (root / "dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"):
        os.mknod(root / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        (root / "dev" / name).chmod(0o666)
    place = Place(root, str(root))
    return DriverRootSearch(place, place, root / "sys", root / "proc")


@pytest.fixture
def published(search: DriverRootSearch) -> Iterator[list[str]]:
    """Qualified names of two GPUs in a document where podman looks; a kind of this test alone."""
    built = build([gpu(0), gpu(1)], search.look(made.VERSION, []), KIND)
    assert built.refused == {}
    assert built.spec is not None
    validate(built.spec)
    write(SPECS, file_name(KIND), encode(built.spec))
    yield [qualified_name(KIND, device.name) for device in built.spec.devices]
    (SPECS / file_name(KIND)).unlink()


def run(rootfs: Path, *devices: str) -> subprocess.CompletedProcess[str]:
    asked = [word for device in devices for word in ("--device", device)]
    command = [*COMMAND, *asked, "--rootfs", str(rootfs), "/bin/probe", "libcuda.so.1", "libcuda.so"]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_a_container_loads_cuda_and_opens_its_gpu_and_no_other(rootfs: Path, published: list[str]) -> None:
    done = run(rootfs, published[1])
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "libcuda.so.1 42",
        "libcuda.so 42",
        "/dev/nvidia0 0",
        "/dev/nvidia1 1",
        "nvidiactl 1",
        "env void",
    ]


def test_without_our_device_there_is_nothing(rootfs: Path) -> None:
    assert run(rootfs).stdout.splitlines() == [
        "libcuda.so.1 -1",
        "libcuda.so -1",
        "/dev/nvidia0 0",
        "/dev/nvidia1 0",
        "nvidiactl 0",
        "env (null)",
    ]


def test_a_device_that_was_refused_is_not_known_to_the_runtime(rootfs: Path, published: list[str]) -> None:
    done = run(rootfs, qualified_name(KIND, "GPU-unknown"))
    assert done.returncode != 0
    assert "unresolvable" in done.stderr
