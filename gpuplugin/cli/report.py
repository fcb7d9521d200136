"""``gpuplugin report``: what a person needs to help with this node, in one file, with nothing secret in it."""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
import time
from pathlib import Path
from typing import IO

from gpuplugin.cli.daemon import ask
from gpuplugin.cli.output import show_json
from gpuplugin.daemon.support import versions
from gpuplugin.errors import NothingToExplain, ReportUnwritable
from gpuplugin.explain.questions import OfState

FOLDER = "gpuplugin-report"
STDOUT = "-"
TO_STDOUT = "kubectl exec -n NAMESPACE POD -- gpuplugin report --output - > report.tar.gz"
"""How to have it where the daemon's container has no folder to write to, nor `tar` for ``kubectl cp``."""
_MODE = 0o600


def show(output: str, *, as_json: bool) -> int:
    """Write the archive, or print all of it as JSON. Without a daemon it says so, and has what can be told without.

    output: a file that is not there yet, "" for one named by the time in the working folder, ``-`` for standard output.
    """
    to_stdout = output == STDOUT and not as_json
    if to_stdout and sys.stdout.isatty():
        raise ReportUnwritable(f"standard output is a terminal: send the archive on, as in `{TO_STDOUT}` (without -t)")
    try:
        files = ask(OfState(), dict[str, str])
    except NothingToExplain as error:
        files = {"versions.json": json.dumps(versions(), indent=2) + "\n", "no-daemon.txt": f"{error}\n"}
    if as_json:
        show_json(files)
        return 0
    path = Path(output or f"{FOLDER}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.tar.gz")
    if to_stdout:
        _send(files)
    else:
        try:
            write(path, files)
        except OSError as error:
            raise ReportUnwritable(
                f"{path}: {error.strerror}; say --output with a file that can be written, or - for standard output: "
                f"{TO_STDOUT}"
            ) from error
    told = sys.stderr if to_stdout else sys.stdout
    where = "standard output" if to_stdout else path
    print(f"{where}: {len(files)} files; look through them before you send them on", file=told)
    if "no-daemon.txt" in files:
        print(f"little is in it: {files['no-daemon.txt'].strip()}", file=told)
        return 1
    return 0


def write(path: Path, files: dict[str, str]) -> None:
    """Write a tar.gz that root alone can read, with all files in one folder. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
        _pack(file, files)


def _send(files: dict[str, str]) -> None:
    """Write the tar.gz to standard output. Raises ReportUnwritable where nobody reads it to its end."""
    archive = io.BytesIO()
    _pack(archive, files)
    try:
        sys.stdout.buffer.write(archive.getbuffer())
        sys.stdout.buffer.flush()
    except OSError as error:
        raise ReportUnwritable(f"standard output: {error.strerror}") from error


def _pack(file: IO[bytes], files: dict[str, str]) -> None:
    now = int(time.time())
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in files.items():
            content = text.encode()
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.size, member.mtime, member.mode = len(content), now, _MODE
            archive.addfile(member, io.BytesIO(content))
