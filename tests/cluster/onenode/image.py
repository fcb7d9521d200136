"""The cluster's one image, made from the machine's static busybox: no registry is ever asked."""

from __future__ import annotations

import io
import json
import platform
import tarfile
from collections.abc import Mapping
from hashlib import sha256

_APPLETS = """
    sh env ls cat sleep true false echo id stat grep wget nc test mknod dd head tail wc sort kill touch
    mkdir rm cp mv ln readlink tr cut seq printf date od sed awk find df mount ps hostname
"""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

Entry = bytes | str | None  # a file's bytes, a link's target, or a folder


def archive(name: str, busybox: bytes) -> bytes:
    """A docker archive of one layer, `busybox` and its applets, that is imported as `name`."""
    applets = {f"bin/{applet}": "busybox" for applet in _APPLETS.split()}
    layer = _tar({"bin/busybox": busybox, **applets, "tmp": None, "etc": None})
    machine = platform.machine()
    config = {
        "architecture": _ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Cmd": ["sleep", "2147483647"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    return _tar(
        {
            "config.json": json.dumps(config).encode(),
            "layer.tar": layer,
            "manifest.json": json.dumps(manifest).encode(),
        }
    )


def _tar(entries: Mapping[str, Entry]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, body in entries.items():
            info = tarfile.TarInfo(path)
            info.mode = 0o755
            match body:
                case None:
                    info.type = tarfile.DIRTYPE
                    tar.addfile(info)
                case str():
                    info.type, info.linkname = tarfile.SYMTYPE, body
                    tar.addfile(info)
                case bytes():
                    info.size = len(body)
                    tar.addfile(info, io.BytesIO(body))
    return out.getvalue()
