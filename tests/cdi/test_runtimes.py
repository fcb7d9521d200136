"""Real runtimes start containers from our documents: the loader finds the libraries, and only what was asked for opens.

Device nodes have the numbers of a real driver's. Without one an open fails with ENXIO where the device cgroup lets it
through and with EPERM where not, so that is what "may be used" means here.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from cdi_facts import gpu, mig_gpu
from container_runtimes import CannotRunError, Runtime, containerd, podman

from cdi.build import Options, build
from cdi.conflicts import conflicts
from cdi.names import Naming, file_name, qualified_name
from cdi.spec import Spec, encode
from cdi.validate import validate
from cdi.writer import write
from cdi.yamltext import encode_yaml
from gpuplugin.discovery.driver_root import DriverRootSearch
from gpuplugin.discovery.places import Place

sys.path.append(str(Path(__file__).parents[1] / "discovery"))

import driver_files as made

pytestmark = pytest.mark.go

SPECS = Path("/var/run/cdi")
KIND = f"gpuplugin.io/test-{os.getpid()}"
USABLE = {"ok", "ENXIO"}
GPUS = (gpu(0), mig_gpu(1, 2))

LIBRARY = "int cuInit(unsigned flags) { return 42 + flags; }"
PROBE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
static const char *outcome(int result) { return result >= 0 ? "ok" : strerrorname_np(errno); }
int main(int count, char **probes) {
    for (int i = 1; i < count; i++) {
        char *what = probes[i], *value = strchr(what, ':') + 1;
        printf("%s ", what);
        if (!strncmp(what, "load:", 5)) {
            void *library = dlopen(value, RTLD_NOW);
            int (*init)(unsigned) = library ? (int (*)(unsigned))dlsym(library, "cuInit") : 0;
            printf("%d\n", init ? init(0) : -1);
        } else if (!strncmp(what, "open:", 5)) {
            printf("%s\n", outcome(open(value, strstr(value, "caps") ? O_RDONLY : O_RDWR)));
        } else if (!strncmp(what, "node:", 5)) {
            unsigned major, minor;
            sscanf(value, "%u:%u", &major, &minor);
            unlink("/dev/probe");
            int result = mknod("/dev/probe", S_IFCHR | 0666, makedev(major, minor));
            printf("%s\n", result ? "cannot be made" : outcome(open("/dev/probe", O_RDONLY)));
        } else if (!strncmp(what, "make:", 5)) {
            printf("%s\n", outcome(open(value, O_RDWR | O_CREAT, 0666)));
        } else {
            printf("%s\n", getenv(value) ? getenv(value) : "");
        }
    }
}
"""


def compiled(target: Path, source: str, *options: str) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-x", "c", "-o", target, "-", *options], input=source.encode(), check=True)
    return target


def entered(context: AbstractContextManager[Runtime]) -> Iterator[Runtime]:
    try:
        with context as runtime:
            yield runtime
    except CannotRunError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def _containerd() -> Iterator[Runtime]:
    yield from entered(containerd())


@pytest.fixture(params=["podman-runc", "podman-crun", pytest.param("containerd", marks=pytest.mark.cluster)])
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    if request.param == "containerd":
        yield request.getfixturevalue("_containerd")
    else:
        yield from entered(podman(request.param.partition("-")[2]))


@pytest.fixture(scope="module")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest image with a glibc: loader, C library and one program."""
    root = tmp_path_factory.mktemp("image")
    probe = compiled(root / "bin/probe", PROBE, "-ldl")
    listed = subprocess.run(["ldd", probe], check=True, capture_output=True, text=True).stdout
    for file in (Path(word) for word in listed.split() if word.startswith("/")):
        made.write(root, str(file), file.read_bytes()).chmod(0o755)
    for folder in ("proc", "sys", "dev", "tmp", "run", "etc"):
        (root / folder).mkdir(exist_ok=True)
    root.chmod(0o755)
    return root


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver's root of its own, with stand-ins for libraries and with nodes that have real numbers."""
    root = tmp_path_factory.mktemp("driver")
    for name in ("libcuda", "libnvidia-ml"):
        file = root / f"usr/lib64/{name}.so.{made.VERSION}"
        compiled(file, LIBRARY, "-shared", "-fPIC", f"-Wl,-soname,{name}.so.1")
    numbers = {"nvidiactl": (195, 255), "nvidia-uvm": (510, 0), "nvidia0": (195, 0), "nvidia1": (195, 1)}
    numbers |= {f"nvidia-caps/nvidia-cap{n}": (511, n) for n in (71, 72, 81, 82)}
    for name, (major, minor) in numbers.items():
        mknod(root / "dev" / name, major, minor, 0o444 if "caps" in name else 0o666)
    made.write(root, "/proc/driver/nvidia-caps/mig-minors", MINORS.encode())
    made.write(root, "/proc/devices", b"Character devices:\n195 nvidia\n510 nvidia-uvm\n511 nvidia-caps\n")
    return root


MINORS = "gpu1/gi7/access 71\ngpu1/gi7/ci0/access 72\ngpu1/gi8/access 81\ngpu1/gi8/ci0/access 82\n"


def mknod(path: Path, major: int, minor: int, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
    except PermissionError:
        pytest.skip("making device nodes needs root")
    path.chmod(mode)


@pytest.fixture(scope="module")
def spec(driver: Path) -> Spec:
    place = Place(driver, str(driver))
    found = DriverRootSearch(place, place, driver / "sys", driver / "proc").look(made.VERSION, GPUS)
    built = build(GPUS, found, KIND, Options(namings=(Naming.INDEX, Naming.UUID), everything=True))
    assert built.refused == {}
    assert built.spec is not None
    validate(built.spec)
    return built.spec


@pytest.fixture
def published(spec: Spec) -> Iterator[Path]:
    """The document, where runtimes look; its kind is this test's alone."""
    write(SPECS, file_name(KIND), encode(spec))
    yield SPECS / file_name(KIND)
    (SPECS / file_name(KIND)).unlink()


@pytest.fixture
def neighbour() -> Iterator[Path]:
    """Somebody else's file in the same folder."""
    path = SPECS / f"test-{os.getpid()}-neighbour.json"
    yield path
    path.unlink()


def run(runtime: Runtime, rootfs: Path, *probes: str, devices: tuple[str, ...] = (), user: str = "") -> dict[str, str]:
    named = tuple(qualified_name(KIND, device) for device in devices)
    done = runtime.run(rootfs, *probes, devices=named, user=user)
    assert done.returncode == 0, done.stderr
    return dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())


LIBRARIES = ("load:libcuda.so.1", "load:libcuda.so", "load:libnvidia-ml.so.1", f"load:libcuda.so.{made.VERSION}")


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize("user", ["", "1000:1000"])
def test_a_container_loads_the_libraries_and_opens_its_gpu_and_no_other(
    runtime: Runtime, rootfs: Path, user: str
) -> None:
    probes = (*LIBRARIES, "open:/dev/nvidia0", "open:/dev/nvidia1", "open:/dev/nvidiactl", "open:/dev/nvidia-uvm")
    said = run(runtime, rootfs, *probes, "make:/x", "env:NVIDIA_VISIBLE_DEVICES", devices=("0",), user=user)
    assert [said[library] for library in LIBRARIES] == ["42"] * len(LIBRARIES)
    assert said["open:/dev/nvidia1"] == "ENOENT"
    assert {said[f"open:/dev/{name}"] for name in ("nvidia0", "nvidiactl", "nvidia-uvm")} <= USABLE
    assert said["make:/x"] == "EROFS", "the root is read-only, so nothing was put into it by writing"
    assert said["env:NVIDIA_VISIBLE_DEVICES"] == "void"


@pytest.mark.usefixtures("published")
def test_the_device_cgroup_lets_only_the_asked_for_through(runtime: Runtime, rootfs: Path) -> None:
    said = run(runtime, rootfs, "node:195:0", "node:195:255", "node:510:0", "node:195:1", "node:511:71", devices=("0",))
    assert {said["node:195:0"], said["node:195:255"], said["node:510:0"]} <= USABLE
    assert (said["node:195:1"], said["node:511:71"]) == ("EPERM", "EPERM")


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize("user", ["", "1000:1000"])
def test_a_mig_device_brings_its_own_capabilities_and_not_its_neighbours(
    runtime: Runtime, rootfs: Path, user: str
) -> None:
    caps = {number: f"open:/dev/nvidia-caps/nvidia-cap{number}" for number in (71, 72, 81, 82)}
    device = GPUS[1].mig_devices[0].uuid
    said = run(runtime, rootfs, *caps.values(), "open:/dev/nvidia1", *LIBRARIES, devices=(device,), user=user)
    assert {said[caps[71]], said[caps[72]], said["open:/dev/nvidia1"]} <= USABLE
    assert {said[caps[81]], said[caps[82]]} == {"ENOENT"}
    assert said["load:libcuda.so.1"] == "42"
    if not user:
        said = run(runtime, rootfs, "node:511:72", "node:511:81", devices=("1:0",))
        assert said["node:511:72"] in USABLE
        assert said["node:511:81"] == "EPERM"


@pytest.mark.usefixtures("published")
def test_all_is_every_gpu_and_mig_device(runtime: Runtime, rootfs: Path) -> None:
    paths = ["nvidia0", "nvidia1", *(f"nvidia-caps/nvidia-cap{n}" for n in (71, 72, 81, 82))]
    said = run(runtime, rootfs, *(f"open:/dev/{path}" for path in paths), devices=("all",))
    assert set(said.values()) <= USABLE


@pytest.mark.usefixtures("published")
def test_without_a_device_there_is_nothing(runtime: Runtime, rootfs: Path) -> None:
    said = run(runtime, rootfs, "load:libcuda.so.1", "open:/dev/nvidia0", "open:/dev/nvidiactl", "node:195:0")
    assert list(said.values()) == ["-1", "ENOENT", "ENOENT", "EPERM"]


@pytest.mark.usefixtures("published")
def test_a_device_that_was_refused_is_not_known_to_the_runtime(runtime: Runtime, rootfs: Path) -> None:
    done = runtime.run(rootfs, devices=(qualified_name(KIND, "GPU-unknown"),))
    assert done.returncode != 0
    assert "unresolvable" in done.stderr


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'{"cdiVersion": "0.1.0", "kind": "broken.org/gpu", "devices": []}',
        b"cdiVersion: '0.5.0'\nkind: nvidia.com/gpu\ndevices: [{name: '0', unknown: 1}]",
        json.dumps(
            {
                "cdiVersion": "0.5.0",
                "kind": "nvidia.com/gpu",
                "devices": [{"name": "0", "containerEdits": {"env": ["A=1"]}}],
            }
        ).encode(),
    ],
    ids=["no JSON", "breaks rules", "unknown field", "the toolkit's own"],
)
def test_a_neighbour_broken_or_whole_does_no_harm(
    runtime: Runtime, rootfs: Path, published: Path, neighbour: Path, content: bytes
) -> None:
    neighbour.write_bytes(content)
    assert run(runtime, rootfs, "load:libcuda.so.1", "open:/dev/nvidia0", devices=("0",))["load:libcuda.so.1"] == "42"
    said = [text for text in conflicts([SPECS], published, KIND, ["0"]) if str(neighbour) in text]
    assert len(said) == (0 if b"A=1" in content else 1)


def test_a_neighbour_with_our_names_disables_them_as_we_say_it_does(
    runtime: Runtime, rootfs: Path, spec: Spec, published: Path, neighbour: Path
) -> None:
    neighbour.write_bytes(encode(spec))
    done = runtime.run(rootfs, devices=(qualified_name(KIND, "0"),))
    assert done.returncode != 0
    assert KIND in done.stderr
    (said,) = [text for text in conflicts([SPECS], published, KIND, ["0"]) if str(neighbour) in text]
    assert "disables it for runtimes" in said or "disables them for runtimes" in said


def test_yaml_is_read_as_well(runtime: Runtime, rootfs: Path, spec: Spec) -> None:
    file = SPECS / f"test-{os.getpid()}.yaml"
    write(SPECS, file.name, encode_yaml(spec))
    try:
        assert run(runtime, rootfs, "load:libcuda.so.1", devices=("1:1",))["load:libcuda.so.1"] == "42"
    finally:
        file.unlink()
