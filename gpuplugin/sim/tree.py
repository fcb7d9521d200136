"""Writing a host's files below some folder: text, links and device nodes, by their paths on the host."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class HostTree:
    """A host's root folder. Paths are relative to it; parents are made; what is there is replaced.

    real_nodes: make device nodes with mknod, which needs root; otherwise empty files stand for them.
    """

    def __init__(self, root: Path, *, real_nodes: bool) -> None:
        self.root = root
        self._real_nodes = real_nodes

    def text(self, path: str, text: str) -> None:
        """Write a file as the kernel shows one: a line break at its end."""
        self._free(path).write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")

    def data(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a file byte for byte."""
        file = self._free(path)
        file.write_bytes(data)
        file.chmod(mode)

    def folder(self, path: str) -> None:
        """Make a folder, if it is not there."""
        (self.root / path).mkdir(parents=True, exist_ok=True)

    def link(self, path: str, to: str) -> None:
        """Link to another path in the tree, relatively, as sysfs does."""
        place = self._free(path)
        place.symlink_to(os.path.relpath(self.root / to, place.parent))

    def node(self, path: str, major: int, minor: int) -> None:
        """Make a character device."""
        place = self._free(path)
        if self._real_nodes:
            os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(major, minor))
            place.chmod(0o666)
        else:
            place.touch()

    def remove(self, *paths: str) -> None:
        """Remove files, links and folders with all that is in them; what is not there is no error."""
        for path in paths:
            place = self.root / path
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            else:
                with suppress(FileNotFoundError):
                    place.unlink()

    def _free(self, path: str) -> Path:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            place.unlink()
        return place
