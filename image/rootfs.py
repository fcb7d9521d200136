#!/usr/bin/env python3
"""The image's files, made from Debian packages and locked wheels: by the Containerfile, and by tests without a builder.

python3 image/rootfs.py base FOLDER   Debian's packages and the libraries of requirements.lock: changes seldom
python3 image/rootfs.py app FOLDER    gpuplugin itself, to be laid over it, with the bill of materials of both

Needs Debian 12 or what is made of it, with apt's lists, pip, and Python 3.11, whose bytecode is compiled ahead: the
image's root is read-only. What runs is what a package or wheel brought: nothing is run inside the new root.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Final

import sbom

PYTHON: Final = "python3.11"
CHECKOUT: Final = Path(__file__).resolve().parent.parent
LIBRARIES: Final = f"usr/local/lib/{PYTHON}/dist-packages"
NOTES: Final = "usr/share/gpuplugin"
MERGED: Final = ("bin", "lib", "lib64", "sbin")
MOUNT_POINTS: Final = ("dev", "driver-root", "proc", "run/cdi", "run/gpuplugin", "sys", "tmp", "var/lib/kubelet")
USERS: Final = "root:x:0:0:root:/:/usr/sbin/nologin\ngpuplugin:x:65532:65532:gpuplugin:/:/usr/sbin/nologin\n"
GROUPS: Final = "root:x:0:\ngpuplugin:x:65532:\n"
ENTRY: Final = f"""#!/usr/bin/{PYTHON} -IB
import sys
from gpuplugin.__main__ import main
sys.exit(main())
"""
SURPLUS: Final = (
    "usr/share/doc/*/[!c]*",
    "usr/share/doc/*/changelog*",
    "usr/share/doc-base",
    "usr/share/lintian",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/i18n",
    "usr/lib/*-linux-gnu/gconv/[!g]*",
    f"usr/lib/{PYTHON}/test",
    f"usr/lib/{PYTHON}/lib2to3",
    f"usr/lib/{PYTHON}/ensurepip",
    f"usr/lib/{PYTHON}/pydoc_data",
    *(f"usr/lib/{PYTHON}/lib-dynload/{name}.*.so" for name in ("_curses*", "_dbm", "_sqlite3", "nis", "readline")),
)
"""What nothing here reads, and Python's modules for libraries that are left out."""


def base(root: Path) -> None:
    """Fill `root` with all that is not gpuplugin itself."""
    for name in MERGED:
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    with tempfile.TemporaryDirectory() as scratch:
        packages = _debian_packages(root, Path(scratch))
        wheels = _wheels(root / LIBRARIES, Path(scratch))
    for pattern in SURPLUS:
        for path in root.glob(pattern):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for name in MOUNT_POINTS:
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / "etc/passwd").write_text(USERS)
    (root / "etc/group").write_text(GROUPS)
    _compile(root, f"usr/lib/{PYTHON}")
    _compile(root, LIBRARIES)
    subprocess.run(["ldconfig", "-r", str(root)], check=True)  # libudev is found by its cache
    (root / "var/cache/ldconfig/aux-cache").unlink(missing_ok=True)
    notes = root / NOTES
    notes.mkdir(parents=True)
    (notes / "components.json").write_text(json.dumps([*packages, *wheels], indent=1, sort_keys=True))


def app(root: Path, below: Path) -> None:
    """Fill `root` with gpuplugin. below: the folder that `base` has filled."""
    with tempfile.TemporaryDirectory() as scratch:
        wheel = _own_wheel(Path(scratch))
        _pip("install", "--no-deps", "--no-compile", "--no-index", "--target", str(root / LIBRARIES), str(wheel))
    _forget_builder(root / LIBRARIES)
    _compile(root, LIBRARIES)
    entry = root / "usr/local/bin/gpuplugin"
    entry.parent.mkdir(parents=True)
    entry.write_text(ENTRY)
    entry.chmod(0o755)
    notes = root / NOTES
    notes.mkdir(parents=True)
    components = json.loads((below / NOTES / "components.json").read_text())
    (notes / "sbom.cdx.json").write_text(sbom.document(wheel.name.split("-")[1], components))


def lock(*, build: bool, text: str | None = None) -> str:
    """Give the entries of requirements.lock that build the wheel, or those that run."""
    entries = re.split(r"\n(?=\S)", text if text is not None else (CHECKOUT / "requirements.lock").read_text())
    return "\n".join(entry for entry in entries if entry.startswith("setuptools==") is build)


def _debian_packages(root: Path, scratch: Path) -> list[sbom.Component]:
    names = [line for line in (CHECKOUT / "image/packages.txt").read_text().splitlines() if line[:1] != "#"]
    subprocess.run(["apt-get", "download", "--quiet", *names], cwd=scratch, check=True, stdout=sys.stderr)
    found = []
    for package in sorted(scratch.glob("*.deb")):
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as content:
            unpack = ["tar", "--extract", "--keep-directory-symlink", "--no-same-owner", f"--directory={root}"]
            subprocess.run(unpack, stdin=content.stdout, check=True)
        if content.returncode != 0:
            raise SystemExit(f"{package.name} cannot be read")
        fields = subprocess.run(["dpkg-deb", "--field", package], check=True, capture_output=True, text=True).stdout
        status = root / "var/lib/dpkg/status.d" / package.name.partition("_")[0]  # where scanners of images look
        status.parent.mkdir(parents=True, exist_ok=True)
        status.write_text(fields)
        found.append(sbom.debian(fields, package))
    if len(found) != len(names):
        raise SystemExit(f"{len(names)} packages were asked for and {len(found)} came")
    return found


def _wheels(libraries: Path, scratch: Path) -> list[sbom.Component]:
    wanted = scratch / "requirements.txt"
    wanted.write_text(lock(build=False))
    report = scratch / "report.json"
    _pip(
        *("install", "--require-hashes", "--no-deps", "--no-compile", "--only-binary=:all:"),
        *("--target", str(libraries), "--report", str(report), "--requirement", str(wanted)),
    )
    _forget_builder(libraries)
    return [sbom.wheel(installed) for installed in json.loads(report.read_text())["install"]]


def _forget_builder(libraries: Path) -> None:
    """Remove what tells where this was built: programs with the builder's Python in their first line, and notes."""
    shutil.rmtree(libraries / "bin", ignore_errors=True)
    for notes in libraries.glob("*.dist-info"):
        (notes / "direct_url.json").unlink(missing_ok=True)
        record = notes / "RECORD"
        kept = [
            line
            for line in record.read_text().splitlines(keepends=True)
            if not line.startswith(("../../bin/", f"{notes.name}/direct_url.json,"))
        ]
        record.write_text("".join(kept))


def _own_wheel(scratch: Path) -> Path:
    """Build in a copy, so that a checkout stays as it was, with the locked setuptools."""
    wanted, tools, source = scratch / "build.txt", scratch / "tools", scratch / "source"
    wanted.write_text(lock(build=True))
    _pip("install", "--require-hashes", "--no-deps", "--target", str(tools), "--requirement", str(wanted))
    source.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(CHECKOUT / name, source)
    for name in ("gpuplugin", "cdi", "dra"):
        shutil.copytree(CHECKOUT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    arguments = ("wheel", "--no-deps", "--no-build-isolation", "--no-index", f"--wheel-dir={scratch}", str(source))
    _pip(*arguments, PYTHONPATH=str(tools))
    return next(scratch.glob("gpuplugin-*.whl"))


def _pip(*arguments: str, **environment: str) -> None:
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    command = [sys.executable, "-m", "pip", arguments[0], *quiet, *arguments[1:]]
    subprocess.run(command, check=True, stdout=sys.stderr, env={**os.environ, **environment})


def _compile(root: Path, folder: str) -> None:
    """Compile ahead; never compared with the sources again, which saves a stat for each import."""
    done = compileall.compile_dir(
        root / folder,
        quiet=2,
        stripdir=str(root),
        prependdir="/",
        maxlevels=20,
        invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
    )
    if not done:
        raise SystemExit(f"{folder} does not compile")


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layer", choices=("base", "app"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--below", type=Path, help="for app: the folder with base")
    wanted = parser.parse_args()
    if f"python{sys.version_info.major}.{sys.version_info.minor}" != PYTHON:
        raise SystemExit(f"run this with {PYTHON}: bytecode is compiled for the image's Python")
    os.umask(0o022)
    if wanted.layer == "base":
        base(wanted.folder)
    elif wanted.below is None:
        parser.error("app needs --below")
    else:
        app(wanted.folder, wanted.below)


if __name__ == "__main__":
    main()
