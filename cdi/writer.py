"""Puts documents where runtimes look, so that a runtime sees the old one or the new one and never a part of one.

A runtime may read the folder at any moment, a node may lose power at any moment, and the folder belongs to others too.
So: a temporary file that no runtime reads, on disk before it is renamed; nothing written that is there already; nothing
removed that is not ours.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdi.names import CLAIM_PREFIX, FILE_PREFIX, file_name
from cdi.spec import encode
from cdi.validate import validate
from gpuplugin.durable import TEMPORARY, replace, sync_folder
from gpuplugin.errors import CdiUnwritable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from cdi.spec import Spec

FOLDER_MODE: Final = 0o755
FILE_MODE: Final = 0o644
ABANDONED: Final = 60.0
"""Seconds after which a temporary file is taken for the leftover of a daemon that was killed."""

_ADVICE: Final = {
    errno.EROFS: "mount the host's folder into the daemon read-write",
    errno.ENOSPC: "free space on that file system; the next try is made by itself",
    errno.EDQUOT: "raise the quota or free space; the next try is made by itself",
    errno.EACCES: "run the daemon as root, or give it write access to that folder",
    errno.EPERM: "run the daemon as root, or give it write access to that folder",
    errno.ENOTDIR: "remove what stands in the place of a folder",
    errno.EEXIST: "remove what stands in the place of a folder",
    errno.EISDIR: "remove the folder that stands in the place of the file",
}


@dataclass(frozen=True, slots=True)
class Published:
    """What a call changed: both empty when everything was as it should be."""

    written: tuple[Path, ...]
    pruned: tuple[Path, ...]


def publish(folder: Path, specs: Iterable[Spec], prefix: str = FILE_PREFIX) -> Published:
    """Make the folder hold these documents, one file a kind, and no other document of ours.

    All are checked before the first is written. Raises CdiInvalid for a document that runtimes would refuse, and
    CdiUnwritable; a file that was there is then as it was.

    prefix: of the file names that count as ours, see `prune`; narrower where another part keeps documents there.
    """
    contents: dict[str, bytes] = {}
    for spec in specs:
        name = file_name(spec.kind)
        validate(spec, f"CDI document for {folder / name}")
        contents[name] = encode(spec)
    written = [folder / name for name, content in contents.items() if write(folder, name, content)]
    return Published(tuple(written), prune(folder, contents, prefix))


def write(folder: Path, name: str, content: bytes) -> bool:
    """Write a file atomically and durably, unless it is there with that content; tell whether it was written.

    The folder is made where it is missing. Raises CdiUnwritable; no temporary file is then left.
    """
    path = folder / name
    try:
        if _holds(path, content):
            return False
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(FOLDER_MODE)
        replace(path, content, FILE_MODE)
        _sync_folder(path.parent)
    except OSError as error:
        raise _unwritable(path, error) from error
    return True


def remove(folder: Path, name: str) -> bool:
    """Remove a file durably; tells whether there was one. Raises CdiUnwritable."""
    try:
        (folder / name).unlink()
        _sync_folder(folder)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unwritable(folder / name, error) from error
    return True


def prune(folder: Path, keep: Collection[str], prefix: str = FILE_PREFIX) -> tuple[Path, ...]:
    """Remove documents of ours that are not in `keep`, and temporary files of ours that were abandoned.

    Ours is what has a name that starts with `prefix` and ends in .json, as a regular file. Claims' files are spared
    unless `prefix` is theirs: they come and go with claims alone. A folder that is not there is clean.
    Raises CdiUnwritable. Returns the documents that were removed.
    """
    removed: list[Path] = []
    try:
        with os.scandir(folder) as entries:
            ours = sorted(
                (entry for entry in entries if _is_ours(entry.name.removeprefix("."), prefix)),
                key=lambda one: one.name,
            )
        for entry in ours:
            if not entry.is_file(follow_symlinks=False):
                continue
            document = entry.name.startswith(prefix) and entry.name.endswith(".json")
            if document and entry.name not in keep:
                removed.append(folder / entry.name)
            elif not _is_abandoned(entry):
                continue
            (folder / entry.name).unlink(missing_ok=True)
        if removed:
            _sync_folder(folder)
    except FileNotFoundError:
        return tuple(removed)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return tuple(removed)


def _is_ours(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and (prefix.startswith(CLAIM_PREFIX) or not name.startswith(CLAIM_PREFIX))


def _holds(path: Path, content: bytes) -> bool:
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or stat.S_IMODE(status.st_mode) != FILE_MODE:
            return False
        return status.st_size == len(content) and path.read_bytes() == content
    except (FileNotFoundError, PermissionError):
        return False


def _sync_folder(folder: Path) -> None:
    """Make a rename or removal outlive a loss of power, on file systems that know how."""
    try:
        sync_folder(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    if not (entry.name.startswith(".") and entry.name.endswith(TEMPORARY)):
        return False
    return time.time() - entry.stat(follow_symlinks=False).st_mtime > ABANDONED


def _unwritable(path: Path, error: OSError) -> CdiUnwritable:
    why = error.strerror or str(error)
    return CdiUnwritable(
        path, why, _ADVICE.get(error.errno or 0, "see to it on the host; the next try is made by itself")
    )
