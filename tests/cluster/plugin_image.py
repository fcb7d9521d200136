"""The daemon's image without a registry or a builder: the two layers that the Containerfile copies, and its words.

Only the stage that makes the layers is left to this machine, which runs the same program (image/rootfs.py) on the same
Debian; entry, user and environment are read from the Containerfile. Layers are kept outside the checkout under a key
of what they are made of, since Debian's packages and the wheels change seldom.
"""

from __future__ import annotations

import fcntl
import gzip
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

CHECKOUT: Final = Path(__file__).resolve().parents[2]
CONTAINERFILE: Final = CHECKOUT / "Containerfile"
BASE_SOURCES: Final = ("image", "requirements.lock")
APP_SOURCES: Final = (*BASE_SOURCES, "pyproject.toml", "README.md", "cdi", "dra", "gpuplugin")
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_PYTHON: Final = "3.11"


class ImageUnavailableError(Exception):
    """This machine cannot make the image; the text says what it lacks."""


@dataclass(frozen=True)
class Layers:
    """Two tar files that never change."""

    base: Path
    app: Path


def lacking() -> str:
    """What this machine lacks for making the image; empty where nothing."""
    release = Path("/etc/os-release").read_text() if Path("/etc/os-release").exists() else ""
    if 'VERSION_ID="12"' not in release or "debian" not in release:
        return "no Debian 12, of which the image is made"
    absent = [name for name in ("apt-get", "dpkg-deb", "ldconfig", "tar") if shutil.which(name) is None]
    if absent:
        return f"no {', '.join(absent)}"
    if platform.python_version_tuple()[:2] != tuple(_PYTHON.split(".")):
        return f"tests run by Python {platform.python_version()}, the image has {_PYTHON}: bytecode would not fit"
    return ""


def layers() -> Layers:
    """The layers of this checkout, made now where the cache has none. ImageUnavailableError."""
    if why := lacking():
        raise ImageUnavailableError(why)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuplugin"
    cache.mkdir(parents=True, exist_ok=True)
    base = cache / f"image-base-{_key(BASE_SOURCES)}.tar"
    app = cache / f"image-app-{_key(APP_SOURCES)}.tar"
    with (cache / "image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not base.exists() or not app.exists():
            with tempfile.TemporaryDirectory(dir=cache, prefix=".image-") as scratch:
                _make(Path(scratch), base, app)
        for stale in cache.glob("image-app-*.tar"):
            if stale != app:
                stale.unlink()
    return Layers(base, app)


def archive(tag: str, made: Layers, file: Path, *, label: str = "") -> None:
    """Write a docker archive of the layers as image `tag`. label: makes an image of its own, an upgrade for example."""
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    digests = [f"sha256:{sha256(layer.read_bytes()).hexdigest()}" for layer in (made.base, made.app)]
    config = image_config(CONTAINERFILE.read_text())
    if label:
        config["Labels"]["test"] = label
    image = {
        "architecture": architecture,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": digests},
    }
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": ["base.tar", "app.tar"]}]
    with tarfile.open(file, "w") as out:
        for name, value in (("config.json", image), ("manifest.json", manifest)):
            content = json.dumps(value).encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            out.addfile(entry, io.BytesIO(content))
        out.add(made.base, "base.tar")
        out.add(made.app, "app.tar")


def image_config(containerfile: str) -> dict[str, Any]:
    """What the last stage of a Containerfile says of a container: the OCI configuration's `config`."""
    stage = re.split(r"^FROM .*$", containerfile, flags=re.MULTILINE)[-1]
    config: dict[str, Any] = {"Env": [], "Labels": {}}
    for line in filter(None, map(str.strip, stage.splitlines())):
        word, _, rest = line.partition(" ")
        match word:
            case "ENV":
                config["Env"].append(rest)
            case "LABEL":
                name, _, value = rest.partition("=")
                config["Labels"][name] = value.strip('"')
            case "USER":
                config["User"] = rest
            case "ENTRYPOINT":
                config["Entrypoint"] = json.loads(rest)
            case "CMD":
                config["Cmd"] = json.loads(rest)
            case "COPY":
                pass
            case _:
                raise ValueError(f"the Containerfile's last stage says {word}, which is not known here")
    return config


def sizes(made: Layers) -> dict[str, float]:
    """MiB of each layer as it lies on a node, and compressed as it is pulled."""
    found = {}
    for name, layer in (("base", made.base), ("app", made.app)):
        content = layer.read_bytes()
        found[name] = round(len(content) / 2**20, 1)
        found[f"{name}, pulled"] = round(len(gzip.compress(content, 6)) / 2**20, 1)
    return found


def _make(scratch: Path, base: Path, app: Path) -> None:
    for name, arguments in (("base", []), ("app", ["--below", str(scratch / "base")])):
        folder = scratch / name
        folder.mkdir()
        _run([sys.executable, str(CHECKOUT / "image/rootfs.py"), name, str(folder), *arguments])
        pack(folder, scratch / f"{name}.tar")
    (scratch / "base.tar").rename(base)
    (scratch / "app.tar").rename(app)


def pack(folder: Path, file: Path) -> None:
    """Pack a root filesystem, the same bytes for the same files."""
    order = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]
    _run(["tar", "--create", *order, f"--file={file}", f"--directory={folder}", "."])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ImageUnavailableError(f"{' '.join(command[:3])} failed:\n{done.stderr[-3000:]}")


def _key(sources: tuple[str, ...]) -> str:
    digest = sha256(platform.machine().encode())
    for file in sorted(_files(sources)):
        digest.update(f"{file.relative_to(CHECKOUT)} {sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def _files(sources: tuple[str, ...]) -> list[Path]:
    found = []
    for source in (CHECKOUT / name for name in sources):
        found += [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
    return [path for path in found if "__pycache__" not in path.parts]
