"""Builds the C stand-in for libnvidia-ml.so.1.

Once for each content of the sources, compiler and flags, outside the checkout: `$XDG_CACHE_HOME/gpuplugin` (by default
`~/.cache/gpuplugin`). The file has a folder to itself, so that the folder can be an LD_LIBRARY_PATH. It has no SONAME:
with one, a process that has loaded it by its path would be given it for the driver's own library too.

As a program it prints where the library is.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LIBRARY = "libnvidia-ml.so.1"
FOLDER = Path(__file__).parent
SOURCES = ("libnvidia_ml.c", "state.c", "abi.h", "state.h")
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread")


class CompilerMissingError(Exception):
    """There is no gcc on the PATH."""

    def __init__(self) -> None:
        super().__init__("no gcc on the PATH: the NVML stand-in cannot be built; install gcc, or leave its checks out")


class CompileError(Exception):
    """gcc refused the sources; the text is what it said."""


def build_standin() -> Path:
    """Return the path of libnvidia-ml.so.1, built now unless the cache has it. Any number of processes may ask at once.

    Raises CompilerMissingError where there is no gcc, CompileError with the compiler's words.
    """
    gcc = shutil.which("gcc")
    if gcc is None:
        raise CompilerMissingError
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuplugin"
    home = cache / f"nvml-standin-{_key(gcc)}"
    if not (home / LIBRARY).exists():
        cache.mkdir(parents=True, exist_ok=True)
        _compile(gcc, home)
    return home / LIBRARY


def _key(gcc: str) -> str:
    version = subprocess.run([gcc, "--version"], check=True, capture_output=True).stdout
    digest = hashlib.sha256(version + " ".join(FLAGS).encode())
    for name in SOURCES:
        digest.update((FOLDER / name).read_bytes())
    return digest.hexdigest()[:16]


def _compile(gcc: str, home: Path) -> None:
    """Compile beside `home` and rename into it, so that a half-written library is never found."""
    home.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".nvml-standin-") as scratch:
        fresh = Path(scratch) / LIBRARY
        sources = [str(FOLDER / name) for name in SOURCES if name.endswith(".c")]
        done = subprocess.run([gcc, *FLAGS, "-o", str(fresh), *sources], check=False, capture_output=True, text=True)
        if done.returncode:
            raise CompileError(done.stderr)
        fresh.chmod(0o755)
        fresh.replace(home / LIBRARY)


if __name__ == "__main__":
    try:
        print(build_standin())
    except (CompilerMissingError, CompileError) as error:
        sys.exit(str(error))
