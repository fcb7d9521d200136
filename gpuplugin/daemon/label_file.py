"""Labels in a file of Node Feature Discovery's, which reads its folder once a minute and puts them on the Node."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class LabelsInFile:
    """The file is replaced as a whole, by way of one whose name begins with a dot, which the reader leaves aside."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self) -> dict[str, str]:
        """Give the labels in the file; none where there is no file. Raises OSError."""
        try:
            lines = self._path.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return {}
        return {key: value for key, mark, value in (line.partition("=") for line in lines) if mark}

    async def write(self, labels: Mapping[str, str]) -> None:
        """Have exactly these, a line each. Raises OSError."""
        new = self._path.with_name(f".{self._path.name}.new")
        new.write_text("".join(f"{key}={value}\n" for key, value in labels.items()))
        new.replace(self._path)

    def remove(self) -> bool:
        """Take the file away; False where there was none. Raises OSError."""
        with suppress(FileNotFoundError):
            os.unlink(self._path)  # noqa: PTH108 - as `write`, and in one call
            return True
        return False
