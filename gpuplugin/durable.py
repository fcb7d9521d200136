"""Files that are old or new whenever anybody reads them, and on disk when the call returns."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

TEMPORARY: Final = ".tmp"


def replace(path: Path, content: bytes, mode: int) -> None:
    """Put a file in the place of whatever has that name; `sync_folder` makes that outlive a loss of power.

    The content is on disk before the name changes hands. Two processes may do so at once. Raises OSError; the temporary
    file, ``.<name>.<random>.tmp`` beside it, is then gone.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)  # noqa: PTH105 - beside the other calls of os
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Put on disk which names are in a folder. Raises OSError; EINVAL where its file system does not know how."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
