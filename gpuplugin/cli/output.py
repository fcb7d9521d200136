"""Text that reads the same in a terminal and in a pipe; only colour is added where somebody looks at it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

GAP = "  "


@dataclass(frozen=True, slots=True)
class Cell:
    """A table's cell; `style` as rich names it (``bold``, ``red``)."""

    text: str
    style: str = ""


@dataclass(slots=True)
class Page:
    """Lines to be printed, each a sequence of pieces of text with a style."""

    lines: list[list[Cell]] = field(default_factory=list)

    def line(self, *pieces: str | Cell) -> None:
        """Add a line."""
        self.lines.append([piece if isinstance(piece, Cell) else Cell(piece) for piece in pieces])

    def heading(self, text: str) -> None:
        """Add a line in bold, after an empty one unless it is the first."""
        if self.lines:
            self.line()
        self.line(Cell(text, "bold"))

    def table(self, header: Sequence[str], rows: Iterable[Sequence[str | Cell]]) -> None:
        """Add rows in columns as wide as their widest cell.

        Columns that are empty in every row are left out, and so is a header without names, and all without rows.
        """
        cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
        used = [i for i, name in enumerate(header) if not name or any(row[i].text for row in cells)]
        table = [[row[i] for i in used] for row in cells]
        if table and any(header):
            table.insert(0, [Cell(header[i], "dim") for i in used])
        if not table:
            return
        widths = [max(len(row[i].text) for row in table) for i in range(len(used))]
        for row in table:
            last = max((i for i, cell in enumerate(row) if cell.text), default=0)
            pieces = [Cell(cell.text.ljust(width) + GAP, cell.style) for cell, width in zip(row, widths, strict=True)]
            pieces[last] = row[last]
            self.lines.append(pieces[: last + 1])

    def show(self) -> None:
        """Print all lines. Long ones are left to the terminal to wrap."""
        if not sys.stdout.isatty():
            print(self.text(), end="")
            return
        from rich.console import Console  # noqa: PLC0415 -- 100 ms that a pipe need not pay
        from rich.text import Text  # noqa: PLC0415

        console = Console(highlight=False)
        for line in self.lines:
            console.print(Text.assemble(*((cell.text, cell.style) for cell in line)), soft_wrap=True)

    def text(self) -> str:
        """The lines without any style."""
        return "".join("".join(cell.text for cell in line).rstrip() + "\n" for line in self.lines)


def show_json(value: Any) -> None:
    """Print a frozen dataclass, or a dict of such, as indented JSON; enumerations by their value."""
    print(json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False))
