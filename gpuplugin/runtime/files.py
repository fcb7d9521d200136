"""The only writer: puts a decided edit on a host, so that a crash at any moment leaves the old file or the new one.

A host's root may be mounted somewhere; its links are then followed as the host itself would, never by our kernel, which
would leave the mount.
"""

from __future__ import annotations

import glob
import os
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuplugin.durable import sync_folder
from gpuplugin.errors import RuntimeConfigRefused
from gpuplugin.runtime.document import Source

if TYPE_CHECKING:
    from datetime import datetime

    from gpuplugin.runtime.document import Edit

BACKUP: Final = ".gpuplugin-backup-"
FILE_MODE: Final = 0o644
_LINKS_AT_MOST: Final = 40  # as the kernel


@dataclass(frozen=True, slots=True)
class Written:
    """A file as it was written, and where the one before it is; None where there was none. Paths are the host's."""

    path: Path
    backup: Path | None


class HostFiles:
    """A host's files, by the paths that they have on the host.

    root: where the host's `/` is here.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def read(self, path: Path) -> Source:
        """A file's text, None where there is none. Raises RuntimeConfigRefused where it cannot be read."""
        try:
            text = self.here(path).read_bytes().decode()
        except FileNotFoundError:
            return Source(path, None)
        except UnicodeDecodeError as error:
            raise RuntimeConfigRefused(path, f"not UTF-8 text at byte {error.start}", "Mend the file.") from None
        except OSError as error:
            raise _refused(path, error) from None
        return Source(path, text)

    def matching(self, pattern: Path) -> list[Path]:
        """Files that match a shell pattern, sorted by name in each folder; the path itself where it is no pattern."""
        if not glob.has_magic(str(pattern)):
            return [pattern]
        found = [Path("/")]
        for part in pattern.parts[1:]:
            found = [folder / name for folder in found for name in self._names(folder, part)]
        return [path for path in found if not self.here(path).is_dir()]

    def below(self, folder: Path) -> list[Path]:
        """Every file in a folder and its subfolders, in the order of names; none where there is no such folder."""
        found = []
        for name in self._names(folder, "*"):
            path = folder / name
            found += self.below(path) if self.here(path).is_dir() else [path]
        return found

    def write(self, edit: Edit, now: datetime) -> Written:
        """Back up what is there, then replace it, keeping mode, owner and labels.

        Raises RuntimeConfigRefused: the file has changed since it was read, is kept elsewhere by a link, or the file
        system refuses.
        """
        target = self._target(edit.path)
        try:
            if self.read(edit.path).text != edit.before:
                raise RuntimeConfigRefused(edit.path, "it was changed since it was read", "Run this again.")
            self._make_folder(target.parent)
            backup = self._back_up(target, now) if edit.before is not None else None
            _replace(target, edit.after.encode())
        except OSError as error:
            raise _refused(edit.path, error) from error
        return Written(edit.path, self._host(backup) if backup else None)

    def here(self, path: Path) -> Path:
        """Where a path of the host is on this machine, all links followed inside the root.

        Raises RuntimeConfigRefused for links that go round in a circle.
        """
        parts = list(reversed(path.parts[1:]))
        resolved, followed = self.root, 0
        while parts:
            part = parts.pop()
            if part == "..":
                resolved = resolved.parent if resolved != self.root else resolved
                continue
            step = resolved / part
            if not step.is_symlink():
                resolved = step
                continue
            followed += 1
            if followed > _LINKS_AT_MOST:
                raise RuntimeConfigRefused(path, "its links go round in a circle", "Mend the links.")
            link = step.readlink()
            if link.is_absolute():
                resolved = self.root
            parts.extend(part for part in reversed(link.parts) if part != "/")
        return resolved

    def _names(self, folder: Path, part: str) -> list[str]:
        if not glob.has_magic(part):
            return [part] if os.path.lexists(self.here(folder) / part) else []
        try:
            return sorted(entry.name for entry in self.here(folder).iterdir() if fnmatchcase(entry.name, part))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _target(self, path: Path) -> Path:
        """The file to replace: behind links, if they stay in the same tree (`/etc`)."""
        target = self.here(path)
        host = self._host(target)
        if host.parts[:2] != path.parts[:2]:
            raise RuntimeConfigRefused(
                path,
                f"it is a link to {host}: something else keeps it there",
                "Change it where it is kept, or name that file by --config if it may be edited.",
            )
        return target

    def _host(self, here: Path) -> Path:
        return Path("/") / here.relative_to(self.root)

    def _make_folder(self, folder: Path) -> None:
        missing = [one for one in (folder, *folder.parents) if not one.exists()]
        for one in reversed(missing):
            one.mkdir(0o755)
            one.chmod(0o755)

    def _back_up(self, target: Path, now: datetime) -> Path:
        stem = f"{target.name}{BACKUP}{now:%Y%m%dT%H%M%SZ}"
        number = 1
        while True:
            backup = _beside(target) / (stem if number == 1 else f"{stem}-{number}")
            try:
                _copy(target, target.read_bytes(), backup)
            except FileExistsError:
                number += 1
            else:
                return backup


def _beside(target: Path) -> Path:
    """The folder for backups: never a drop-in folder, of which CRI-O reads every file whatever its name."""
    return target.parent.parent if target.parent.suffix == ".d" else target.parent


def _replace(target: Path, content: bytes) -> None:
    temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
    _copy(target, content, temporary)
    try:
        temporary.replace(target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(target.parent)


def _copy(like: Path, content: bytes, path: Path) -> None:
    """Write a new file with mode, owner and extended attributes (SELinux's label) of `like`, where that exists."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            _make_alike(like, file.fileno())
            os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise


def _make_alike(like: Path, descriptor: int) -> None:
    try:
        status = like.lstat()
    except FileNotFoundError:
        os.fchmod(descriptor, FILE_MODE)
        return
    os.fchown(descriptor, status.st_uid, status.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
    with suppress(OSError):  # a file system without them
        for name in os.listxattr(like):
            os.setxattr(descriptor, name, os.getxattr(like, name))


def _refused(path: Path, error: OSError) -> RuntimeConfigRefused:
    why = os.strerror(error.errno) if error.errno else str(error)
    advice = "Run as root, where that file system can be written, or name another file by --config."
    return RuntimeConfigRefused(path, why, advice)
