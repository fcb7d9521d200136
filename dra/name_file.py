"""The device names that were given, on disk beside the records of claims: they must outlive reboots.

The file is small and written only when a GPU is named, so it is replaced whole, and is on disk before the name is used.
One that makes no sense is put aside, said, and made again from the records of claims and from what is published.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from dra.names import Names, adopt_pairs
from gpuplugin.durable import replace, sync_folder
from gpuplugin.errors import CheckpointError
from gpuplugin.model.ids import GpuUuid

if TYPE_CHECKING:
    from pathlib import Path

FORMAT: Final = 1


class _File(msgspec.Struct, frozen=True):
    format: int
    names: dict[str, str]


def load(path: Path) -> tuple[Names, str]:
    """Give the names in the file, and what was wrong with it, empty where nothing was; no file has no names.

    A file that makes no sense is moved to ``<name>.unreadable``. One of a later format is read for what it has of ours.
    Raises CheckpointError when the disk does not let us.
    """
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return Names(), ""
    except msgspec.DecodeError as error:
        aside = path.with_name(f"{path.name}.unreadable")
        try:
            path.replace(aside)
        except OSError as refusal:
            raise CheckpointError(
                path, f"makes no sense ({error}), and cannot be moved to {aside}: {refusal}"
            ) from error
        return Names(), f"{path}: {error}; it was moved to {aside}, and devices are named anew from what is published"
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror or error}") from error
    if len(set(file.names.values())) < len(file.names):
        names = adopt_pairs(Names(), ((GpuUuid(uuid), name) for uuid, name in file.names.items()))
        return names, f"{path}: a name stood there for two GPUs; one of them is named anew"
    return Names(MappingProxyType({GpuUuid(uuid): name for uuid, name in file.names.items()})), ""


def save(path: Path, names: Names) -> None:
    """Put the names on disk, durably. Raises CheckpointError: then they hold for as long as this process, no longer."""
    content = msgspec.json.encode(_File(FORMAT, dict(sorted(names.by_gpu.items()))))
    try:
        path.parent.mkdir(mode=0o750, exist_ok=True)  # the one above is kubelet's
        replace(path, content, 0o600)
        sync_folder(path.parent)
    except OSError as error:
        raise CheckpointError(
            path, f"cannot be written: {error.strerror or error}; device names are kept here"
        ) from error
