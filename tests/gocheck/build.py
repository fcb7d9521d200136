"""Builds the small Go programs that tests compare ours with.

Python cannot link what the kubelet links, so facts about Kubernetes' Go types come out of programs beside this module.
A build is slow and a test run is frequent: a binary is made once for each content of its folder and Go version, and is
kept outside the checkout, under `$XDG_CACHE_HOME/gpuplugin` (by default `~/.cache/gpuplugin`).

`python tests/gocheck/build.py FOLDER` builds and prints where the binary is.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = ("*.go", "go.mod", "go.sum")
FLAGS = (
    "-mod=readonly",
    "-trimpath",
    "-buildvcs=false",
    "-tags=no_btrfs no_devmapper no_zfs",
    "-gcflags=all=-dwarf=false",
)
ENVIRONMENT = {"CGO_ENABLED": "0", "GOGC": "400"}
"""As tests/cluster builds Kubernetes: what both are made of is then compiled once."""


class GoMissingError(Exception):
    """There is no `go` on the PATH, so nothing can be built."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"no go on the PATH: {folder.name} cannot be built; install Go, or leave its checks out")
        self.folder = folder


class GoBuildError(Exception):
    """`go build` failed; `output` is what it said."""

    def __init__(self, folder: Path, output: str) -> None:
        super().__init__(f"go build in {folder} failed:\n{output}")
        self.folder = folder
        self.output = output


def build(folder: Path) -> Path:
    """Return the binary of the Go main package in `folder`, built now unless the cache has it.

    What counts is content, never time stamps: the key is made of all Go files below the folder, go.mod, go.sum, the
    flags and what `go version` says. Any number of processes may ask at once; one at a time builds, over all folders.

    Raises GoMissingError where there is no Go, and GoBuildError with the compiler's words.
    """
    go = shutil.which("go")
    if go is None:
        raise GoMissingError(folder)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuplugin"
    cache.mkdir(parents=True, exist_ok=True)
    binary = cache / f"{folder.name}-{_key(go, folder)}"
    if not binary.exists():
        with (cache / "build.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not binary.exists():
                _compile(go, folder, binary)
    return binary


def _key(go: str, folder: Path) -> str:
    version = subprocess.run([go, "version"], cwd=folder, check=True, capture_output=True).stdout
    digest = hashlib.sha256(version + repr((FLAGS, ENVIRONMENT)).encode())
    for source in sorted(path for pattern in SOURCES for path in folder.rglob(pattern)):
        content = hashlib.sha256(source.read_bytes()).hexdigest()
        digest.update(f"{source.relative_to(folder)} {content}\n".encode())
    return digest.hexdigest()


def _compile(go: str, folder: Path, binary: Path) -> None:
    """Build beside the binary and rename into place, so that a half-written one is never found."""
    with tempfile.TemporaryDirectory(dir=binary.parent, prefix=f".{folder.name}-") as scratch:
        fresh = Path(scratch) / folder.name
        command = [go, "build", *FLAGS, "-ldflags=-s -w", "-o", str(fresh), "."]
        environment = {**os.environ, **ENVIRONMENT}
        done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
        if done.returncode:
            raise GoBuildError(folder, done.stderr)
        fresh.rename(binary)


if __name__ == "__main__":
    print(build(Path(sys.argv[1]).resolve()))
