"""``gpuplugin cdi validate`` and ``list``: what runtimes would make of the documents that are there."""

from __future__ import annotations

import os
import platform
import sys
from typing import TYPE_CHECKING

from cdi import registry
from cdi.build import verify
from cdi.parts import loader_folders
from cdi.validate import annotation_problems
from gpuplugin.cli.output import show_json
from gpuplugin.discovery.image_root import unsuited
from gpuplugin.discovery.places import Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from cdi.registry import Registry


def validate(files: Sequence[Path], folders: Sequence[Path], *, host_files: bool, image: Path | None) -> int:
    """Print every problem, or ok; returns the exit status."""
    found = registry.read_files(files) if files else registry.read(folders)
    problems = [*found.problems, *_in_documents(found, host_files=host_files)]
    if image is not None:
        machine = platform.machine()
        wrong = unsuited(Place(image, str(image)), machine, loader_folders(machine))
        problems += [f"{image}: {reason}" for reason in wrong]
    for problem in problems:
        print(problem)
    if not problems:
        print(f"ok: {len(found.specs)} documents, {len(found.devices)} devices")
    return 1 if problems else 0


def show(folders: Sequence[Path], *, as_json: bool) -> None:
    """Print the names, and on standard error what is wrong."""
    found = registry.read(folders)
    for problem in found.problems:
        print(f"gpuplugin: {problem}", file=sys.stderr)
    if as_json:
        show_json({name: str(path) for name, path in found.devices.items()})
        return
    for name in found.devices:
        print(name)


def _in_documents(found: Registry, *, host_files: bool) -> Iterator[str]:
    for path, spec in found.specs.items():
        yield from map(str, annotation_problems(spec, str(path)))
        for missing in verify(spec, os.path.lexists) if host_files else ():
            yield f"{path}: {missing} is not there: containers that ask for it will not start; generate the file anew"
