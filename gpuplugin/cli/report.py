"""``gpuplugin report``: what a person needs to help with this node, in one file, with nothing secret in it."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from pathlib import Path

from gpuplugin.cli.daemon import ask
from gpuplugin.cli.output import show_json
from gpuplugin.daemon.support import versions
from gpuplugin.errors import NothingToExplain, ReportUnwritable
from gpuplugin.explain.questions import OfState

FOLDER = "gpuplugin-report"
_MODE = 0o600


def show(output: str, *, as_json: bool) -> int:
    """Write the archive, or print all of it as JSON. Without a daemon it says so, and has what can be told without."""
    try:
        files = ask(OfState(), dict[str, str])
    except NothingToExplain as error:
        files = {"versions.json": json.dumps(versions(), indent=2) + "\n", "no-daemon.txt": f"{error}\n"}
    if as_json:
        show_json(files)
        return 0
    path = Path(output or f"{FOLDER}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.tar.gz")
    try:
        write(path, files)
    except OSError as error:
        raise ReportUnwritable(f"{path}: {error.strerror}; say --output with a file that can be written") from error
    print(f"{path}: {len(files)} files; look through them before you send them on")
    if "no-daemon.txt" in files:
        print(f"little is in it: {files['no-daemon.txt'].strip()}")
        return 1
    return 0


def write(path: Path, files: dict[str, str]) -> None:
    """Write a tar.gz that root alone can read, with all files in one folder. Raises OSError."""
    now = int(time.time())
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    with open(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:  # noqa: PTH123 - a descriptor
        for name, text in files.items():
            content = text.encode()
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.size, member.mtime, member.mode = len(content), now, _MODE
            archive.addfile(member, io.BytesIO(content))
