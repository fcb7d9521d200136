"""Builds the stand-in for nvidia-cuda-mps-control, once for each content of its source, outside the checkout.

The program has its real name and a folder to itself, so that the folder can be put on a PATH. Static, so that it runs
in any container and in a driver's root.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

PROGRAM = "nvidia-cuda-mps-control"
SOURCE = Path(__file__).parent / "nvidia_cuda_mps_control.c"
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-static")


class CompilerMissingError(Exception):
    """There is no gcc on the PATH."""

    def __init__(self) -> None:
        super().__init__("no gcc on the PATH: the stand-in for nvidia-cuda-mps-control cannot be built; install gcc")


def build_control() -> Path:
    """Return the program's path, built now unless the cache has it. Raises CompilerMissingError."""
    gcc = shutil.which("gcc")
    if gcc is None:
        raise CompilerMissingError
    key = hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuplugin"
    home = cache / f"mps-standin-{key}"
    if not (home / PROGRAM).exists():
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".mps-standin-") as scratch:
            fresh = Path(scratch) / PROGRAM
            subprocess.run([gcc, *FLAGS, "-o", str(fresh), str(SOURCE)], check=True)
            fresh.replace(home / PROGRAM)
    return home / PROGRAM
