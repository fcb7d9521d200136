"""The folders of CDI documents as a runtime sees them: which devices there are, and why others are not.

A later folder wins over an earlier one. A device that two files of one folder define is no device at all, unless a
later folder has it; a file that breaks a rule counts as not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdi.conflicts import read_as_runtimes
from cdi.names import qualified_name
from gpuplugin.errors import CdiInvalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from cdi.spec import Spec


@dataclass(frozen=True, slots=True)
class Registry:
    """What a runtime would know after it has read all files.

    devices: by qualified name, sorted, each with the file that defines it · specs: documents without a fault, by their
    files · problems: what is wrong, for a person.
    """

    devices: Mapping[str, Path]
    specs: Mapping[Path, Spec]
    problems: tuple[str, ...]


def read(directories: Iterable[Path]) -> Registry:
    """Read all documents; a folder that is not there has none. Never raises for what it finds."""
    paths: list[Path] = []
    unreadable: list[str] = []
    for folder in dict.fromkeys(directories):
        try:
            paths += documents(folder)
        except OSError as error:
            unreadable.append(f"{folder}: {error.strerror}; what is in it is not known")
    return read_files(paths, unreadable)


def read_files(paths: Iterable[Path], unreadable: Iterable[str] = ()) -> Registry:
    """Read these files, in the order of their folders. unreadable: what is known to be wrong already."""
    specs: dict[Path, Spec] = {}
    problems = list(unreadable)
    definers: dict[str, list[Path]] = {}
    for path in paths:
        try:
            specs[path] = spec = read_as_runtimes(path.read_bytes(), str(path))
        except OSError as error:
            problems.append(f"{path}: {error.strerror}")
            continue
        except CdiInvalid as error:
            problems += map(str, error.problems)
            continue
        for device in spec.devices:
            definers.setdefault(qualified_name(spec.kind, device.name), []).append(path)
    devices: dict[str, Path] = {}
    for name, files in sorted(definers.items()):
        last = [file for file in files if file.parent == files[-1].parent]
        if len(last) > 1:
            problems.append(f"{name}: defined by {' and '.join(map(str, last))}, which disables it; remove all but one")
        else:
            devices[name] = last[0]
    return Registry(devices, specs, tuple(problems))


def documents(folder: Path) -> Iterator[Path]:
    """Give the files of a folder that runtimes read, sorted. Raises OSError where it cannot be read."""
    if folder.is_dir():
        yield from sorted(path for path in folder.iterdir() if path.suffix in {".json", ".yaml"} and path.is_file())
