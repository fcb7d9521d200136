"""Builds Kubernetes and containerd from their Go modules, once for every change of what they are made of.

Eight minutes of two cores from nothing: so the result lives outside the checkout, under a key of all that goes into
it (the files here, the Go, the flags; never a modification time), appears whole or not at all, and is built once
where two processes want it at the same time.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from onenode.errors import BuildError, MachineLacksError
from onenode.machine import Missing

GO_FOLDER: Final = Path(__file__).resolve().parent.parent / "go"
# No debug data and a lazy collector take a sixth off the processor time and the cache.
FLAGS: Final = ("-trimpath", "-tags=no_btrfs no_devmapper no_zfs", "-gcflags=all=-dwarf=false")
ENVIRONMENT: Final = {"CGO_ENABLED": "0", "GOGC": "400"}
_MANIFEST: Final = "manifest.json"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Part:
    """One Go module, the packages to build in it, and the names that its program is also called by."""

    name: str
    module: str
    packages: tuple[str, ...]
    version_variables: Mapping[str, str]
    aliases: tuple[str, ...] = ()


_CONTAINERD: Final = "github.com/containerd/containerd/v2"
_BASE_VERSION: Final = "k8s.io/component-base/version"
PARTS: Final = (
    Part(
        name="k8s",
        module="k8s.io/kubernetes",
        packages=(".",),
        version_variables={
            f"{_BASE_VERSION}.gitVersion": "v{major}.{minor}.{patch}",
            f"{_BASE_VERSION}.gitMajor": "{major}",
            f"{_BASE_VERSION}.gitMinor": "{minor}",
        },
        aliases=("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"),
    ),
    Part(
        name="containerd",
        module=_CONTAINERD,
        packages=tuple(f"{_CONTAINERD}/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")),
        version_variables={f"{_CONTAINERD}/version.Version": "{major}.{minor}.{patch}"},
    ),
)


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/gpuplugin, or ~/.cache/gpuplugin."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuplugin"


def key(source: Path = GO_FOLDER, *, go_version: str | None = None) -> str:
    """Sixteen hexadecimal digits over everything that the binaries are made of."""
    parts = [go_version if go_version is not None else _go_version(), json.dumps([FLAGS, ENVIRONMENT])]
    parts += [
        f"{file.relative_to(source)} {sha256(file.read_bytes()).hexdigest()}"
        for file in sorted(source.rglob("*"))
        if file.is_file()
    ]
    return sha256("\n".join(parts).encode()).hexdigest()[:16]


def binaries(say: Say = print) -> Path:
    """The folder of the binaries, built where they are missing or damaged.

    Raises MachineLacksError without Go, BuildError where Go cannot build.
    """
    return build_once(cache_folder(), f"cluster-{key()}", _build_parts, say) / "bin"


def build_once(cache: Path, name: str, build: Callable[[Path, Say], None], say: Say) -> Path:
    """`cache/name`, made by `build` (which is given an empty folder) unless it is there and whole.

    A second process that wants it waits for the first; one that is killed leaves nothing that looks built.
    """
    made = cache / name
    if is_whole(made):
        return made
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / "cluster.lock", say):
        if is_whole(made):
            return made
        for stale in [made, *cache.glob("cluster-*.building")]:
            shutil.rmtree(stale, ignore_errors=True)
        building = cache / f"{name}.building"
        (building / "bin").mkdir(parents=True)
        build(building / "bin", say)
        _seal(building)
        building.rename(made)
    return made


def is_whole(made: Path) -> bool:
    """Whether every file that was built is there with the length that it was built with."""
    try:
        sizes: dict[str, int] = json.loads((made / _MANIFEST).read_text())
        return all((made / "bin" / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def _seal(folder: Path) -> None:
    sizes = {}
    for file in sorted((folder / "bin").iterdir()):
        sizes[file.name] = file.stat().st_size
        with file.open("rb") as opened:  # on the disk before the name that vouches for it
            os.fsync(opened.fileno())
    (folder / _MANIFEST).write_text(json.dumps(sizes, indent=1))


@contextmanager
def _locked(path: Path, say: Say) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process builds the cluster's binaries: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _go_version() -> str:
    try:
        # Asked inside a module: there it is the toolchain that the module's go.mod makes Go fetch.
        command = subprocess.run(["go", "version"], cwd=GO_FOLDER / "k8s", check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise MachineLacksError([Missing("no Go", "install it from https://go.dev/dl")]) from None
    return command.stdout.strip()


def _build_parts(into: Path, say: Say) -> None:
    for part in PARTS:
        began = time.monotonic()
        source = GO_FOLDER / part.name
        command = ["go", "build", *FLAGS, f"-ldflags=-s -w {_version_flags(part)}", "-o", f"{into}/", *part.packages]
        say(f"building {part.name} ({part.module}); minutes where Go's own cache is cold")
        done = subprocess.run(
            command,
            cwd=source,
            env={**os.environ, **ENVIRONMENT},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise BuildError(part.name, done.stdout[-4000:])
        for alias in part.aliases:
            (into / alias).symlink_to(part.name)
        size = (into / part.name).stat().st_size >> 20
        say(f"{part.name} built in {time.monotonic() - began:.0f} s, {size} MiB")


def _version_flags(part: Part) -> str:
    numbers = re.search(rf"^\s*(?:require )?{part.module} v(\d+)\.(\d+)\.(\d+)", _go_mod(part), re.MULTILINE)
    if numbers is None:
        raise BuildError(part.name, f"go.mod does not require {part.module}")
    words = dict(zip(("major", "minor", "patch"), numbers.groups(), strict=True))
    return " ".join(f"-X {name}={form.format(**words)}" for name, form in part.version_variables.items())


def _go_mod(part: Part) -> str:
    return (GO_FOLDER / part.name / "go.mod").read_text()
