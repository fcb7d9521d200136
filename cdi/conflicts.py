"""What else is in the folders that runtimes read, where it stands in our documents' way.

Two files of one folder that define the same device disable it for everybody, without a word from most runtimes. So the
other files are read as a runtime reads them, and what is wrong is said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from cdi.names import qualified_name
from cdi.spec import Spec
from cdi.validate import SHAPE, refusals, shorten
from gpuplugin.errors import CdiInvalid, Problem

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

_NULLS = ("", "~", "null", "Null", "NULL")


def conflicts(directories: Iterable[Path], own: Path, kind: str, names: Collection[str]) -> tuple[str, ...]:
    """Say which other files define one of our devices, or cannot be read as a CDI document.

    directories: as the runtime reads them; a later one wins over an earlier one · own: our file's path, which is left
    out · names: our devices'. Never raises for what it finds.
    """
    folders = list(directories)
    return tuple(text for folder in folders for text in _in_folder(folder, folders, own, kind, names))


def read_as_runtimes(document: bytes, source: str) -> Spec:
    """Read a document of any origin, JSON or YAML, as leniently as runtimes do; CdiInvalid when they refuse it."""
    import yaml  # noqa: PLC0415 - 13 ms of the start and 1 MiB, for nodes that have other vendors' documents

    loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        tree = yaml.load(document, Loader=loader)  # noqa: S506  # this loader makes texts, lists and mappings only
        spec = msgspec.convert(_without_nulls(tree), Spec, strict=False)
    except (yaml.YAMLError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise CdiInvalid([Problem(source, "", shorten(document), SHAPE, " ".join(str(error).split()))]) from error
    problems = refusals(spec, source)
    if problems:
        raise CdiInvalid(problems)
    return spec


def _in_folder(folder: Path, folders: list[Path], own: Path, kind: str, names: Collection[str]) -> Iterator[str]:
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix in {".json", ".yaml"} and path != own)
    except FileNotFoundError:
        return
    except OSError as error:
        yield f"{folder}: {error.strerror}; runtimes may not find what is in it"
        return
    for path in files:
        try:
            if not path.is_file():
                continue
            spec = read_as_runtimes(path.read_bytes(), str(path))
        except OSError as error:
            yield f"{path}: {error.strerror}; it could not be checked for devices of ours"
            continue
        except CdiInvalid as error:
            more = len(error.problems) - 1
            yield f"{error.problems[0]}{f' (and {more} more)' if more else ''}; runtimes ignore the whole file"
            continue
        shared = sorted({device.name for device in spec.devices} & set(names)) if spec.kind == kind else []
        if shared:
            yield f"{path}: {_consequence(folder, folders, own)}: {_listed(kind, shared)}; remove that file"


def _consequence(folder: Path, folders: list[Path], own: Path) -> str:
    if folder == own.parent or own.parent not in folders:
        return f"it defines devices that {own} has too, which disables them for runtimes"
    if folders.index(folder) > folders.index(own.parent):
        return f"its devices are taken in place of those of {own}, because its folder comes later"
    return f"its devices are hidden by those of {own}"


def _listed(kind: str, names: list[str]) -> str:
    shown = ", ".join(qualified_name(kind, name) for name in names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown  # noqa: PLR2004


def _without_nulls(tree: Any) -> Any:
    """Drop the keys that have no value: for runtimes that is the same as not there."""
    if isinstance(tree, dict):
        return {key: _without_nulls(value) for key, value in tree.items() if value not in _NULLS}
    if isinstance(tree, list):
        return [_without_nulls(value) for value in tree]
    return tree
