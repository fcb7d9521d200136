"""What is in the image: all that it needs, nothing to log in with, and a bill of materials that misses nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import plugin_image
import pytest
from plugin_image import CHECKOUT, ImageUnavailableError, Layers

pytestmark = pytest.mark.cluster
LIBRARIES = "usr/local/lib/python3.11/dist-packages"


@pytest.fixture(scope="module")
def layers() -> Layers:
    try:
        return plugin_image.layers()
    except ImageUnavailableError as error:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(str(error))
        pytest.skip(f"left out, the image and the DaemonSet: {error}")


@pytest.fixture(scope="module")
def root(layers: Layers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's files."""
    folder = tmp_path_factory.mktemp("image")
    for layer in (layers.base, layers.app):
        with tarfile.open(layer) as tar:
            tar.extractall(folder, filter="fully_trusted")
    return folder


def inside(root: Path, *command: str) -> str:
    """Run a program with the image as its root, as root: what it prints."""
    done = subprocess.run(["chroot", root, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_library_that_a_file_needs_is_there(root: Path):
    linked = [
        path for path in files(root) if path.name.endswith(".so") or path.parent.name == "bin" or ".so." in path.name
    ]
    listing = "\n".join(f"/{path.relative_to(root)}" for path in linked if path.read_bytes()[:4] == b"\x7fELF")
    script = (
        "import ctypes, sys\n"
        "for path in sys.argv[1].split():\n"
        "    if '.so' not in path: continue\n"
        "    try: ctypes.CDLL(path)\n"
        "    except OSError as error:\n"
        "        if 'undefined symbol' not in str(error): print(path, error)\n"
    )
    assert listing.count("\n") > 50
    assert inside(root, "/usr/bin/python3.11", "-c", script, listing) == ""


def test_everything_is_imported_and_libudev_found(root: Path):
    modules = "grpc.aio, msgspec, yaml, pyudev, pynvml, structlog, ssl, hashlib, lightkube, typer, rich"
    inside(root, "/usr/bin/python3.11", "-IBc", f"import {modules}")
    (root / "dev").mkdir(exist_ok=True)
    null = root / "dev/null"
    if not null.exists():
        os.mknod(null, 0o020666, os.makedev(1, 3))
    assert "libudev.so.1" in inside(
        root, "/usr/bin/python3.11", "-c", "import ctypes.util; print(ctypes.util.find_library('udev'))"
    )


def test_it_is_the_checkouts_gpuplugin_whole(root: Path):
    assert inside(root, "/usr/local/bin/gpuplugin", "machines").startswith("name")
    for package in ("gpuplugin", "cdi", "dra"):
        wanted = {path.relative_to(CHECKOUT) for path in (CHECKOUT / package).rglob("*.py")}
        assert wanted == {path.relative_to(root / LIBRARIES) for path in (root / LIBRARIES / package).rglob("*.py")}


def test_bytecode_is_there_for_every_module_and_never_looked_at_again(root: Path):
    lacking = [path for path in (root / LIBRARIES).rglob("*.py") if not _compiled(path).exists()]
    assert lacking == []
    flags = _compiled(root / LIBRARIES / "gpuplugin/__init__.py").read_bytes()[4:8]
    assert int.from_bytes(flags, "little") == 0b01  # made from a hash, unchecked


def test_nobody_logs_in_and_there_is_nothing_to_do_it_with(root: Path):
    shells = {line.split(":")[6] for line in (root / "etc/passwd").read_text().splitlines()}
    assert shells == {"/usr/sbin/nologin"}
    programs = {path.name for path in (root / "usr/bin").iterdir()} | {
        path.name for path in (root / "usr/sbin").iterdir()
    }
    assert not programs & {"sh", "bash", "dash", "busybox", "apt", "dpkg", "login", "su", "nologin"}
    risen = [path for path in files(root) if path.stat().st_mode & 0o6000]
    assert risen == []


def test_the_bill_of_materials_names_every_package(root: Path):
    bill = json.loads((root / "usr/share/gpuplugin/sbom.cdx.json").read_text())
    named = {component["purl"].partition("@")[0] for component in bill["components"]}
    installed = {
        f"pkg:pypi/{re.sub('[-_.]+', '-', path.name.split('-')[0]).lower()}"
        for path in (root / LIBRARIES).glob("*.dist-info")
    }
    packages = {f"pkg:deb/debian/{path.name}" for path in (root / "var/lib/dpkg/status.d").iterdir()}
    assert {name.replace("%2B", "+") for name in named} == (installed | packages) - {"pkg:pypi/gpuplugin"}


def test_nothing_tells_where_it_was_built(root: Path):
    notes = [*(root / LIBRARIES).glob("*.dist-info/RECORD"), *(root / LIBRARIES).glob("*.dist-info/direct_url.json")]
    assert [path for path in notes if "/tmp" in path.read_text() or "../bin/" in path.read_text()] == []


def test_sizes(layers: Layers):
    found = plugin_image.sizes(layers)
    print(f"\n  MiB: {found}")
    assert found["base"] + found["app"] < 150


@pytest.fixture
def builder(tmp_path: Path) -> list[str]:
    """A buildah of its own, with a Debian 12 made from packages in the place of the registry's."""
    if not os.environ.get("GPUPLUGIN_TEST_MORE"):
        pytest.skip("left out, the Containerfile itself: two minutes, with GPUPLUGIN_TEST_MORE=1")
    absent = [name for name in ("buildah", "debootstrap") if shutil.which(name) is None]
    if absent:
        pytest.skip(f"left out, the Containerfile itself: no {', '.join(absent)}")
    storage = [f"--root={tmp_path}/storage", f"--runroot={tmp_path}/run", "--storage-driver=vfs"]
    debian = tmp_path / "debian"
    sources = Path("/etc/apt/sources.list.d/debian.sources").read_text()
    mirror = re.findall(r"^URIs: (\S+)$", sources, re.MULTILINE)[0]
    subprocess.run(["debootstrap", "--variant=minbase", "bookworm", debian, mirror], check=True, capture_output=True)
    (debian / "etc/apt/sources.list").unlink(missing_ok=True)
    (debian / "etc/apt/sources.list.d/debian.sources").write_text(sources)
    certificates = os.environ.get("PIP_CERT")
    if certificates:
        shutil.copy(certificates, debian / "etc/pip-certificates.crt")
        (debian / "etc/pip.conf").write_text("[global]\ncert=/etc/pip-certificates.crt\n")
    buildah = ["buildah", *storage]
    container = run(*buildah, "from", "scratch")
    run(*buildah, "copy", "--quiet", container, str(debian), "/")
    run(*buildah, "commit", "--quiet", "--rm", container, "localhost/debian:12")
    return buildah


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=CHECKOUT)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def test_the_containerfile_builds_just_these_files(builder: list[str], root: Path):
    base = "--build-arg=BASE=localhost/debian:12"
    run(
        *builder,
        "build",
        "--isolation=chroot",
        "--network=host",
        base,
        "--file=Containerfile",
        "--tag=localhost/built",
        ".",
    )
    config = json.loads(run(*builder, "inspect", "--type=image", "localhost/built"))["OCIv1"]["config"]
    ours = plugin_image.image_config((CHECKOUT / "Containerfile").read_text())
    assert {name: config[name] for name in ours if name != "Labels"} == {
        name: value for name, value in ours.items() if name != "Labels"
    }
    container = run(*builder, "from", "localhost/built")
    built = Path(run(*builder, "mount", container))
    assert listing(built) == listing(root)
    run(*builder, "umount", container)


def listing(root: Path) -> set[str]:
    """All files and folders with their modes; not gpuplugin's modules, which may be edited while the builder builds."""
    own = tuple(f"{LIBRARIES}/{package}/" for package in ("gpuplugin", "cdi", "dra"))
    found = {str(path.relative_to(root)): path.lstat().st_mode for path in root.rglob("*")}
    return {f"{path} {mode:o}" for path, mode in found.items() if not path.startswith(own) and path != "dev/null"}


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]


def _compiled(source: Path) -> Path:
    return source.parent / "__pycache__" / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
