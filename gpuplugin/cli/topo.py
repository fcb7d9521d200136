"""``gpuplugin topo``: the matrix that people know, with what the choice of devices looks at beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuplugin.cli.look import add_troubles, look
from gpuplugin.cli.output import Cell, Page, show_json
from gpuplugin.topology.matrix import LEGEND, Matrix, matrix

if TYPE_CHECKING:
    from gpuplugin.model.inventory import Inventory

_STYLES = {"X": "dim", "NV": "green", "PIX": "cyan", "PXB": "cyan", "SYS": "dim"}


def show(simulate: str | None, *, as_json: bool) -> None:
    """Print the matrix of this machine or of a simulated one."""
    inventory = look(simulate)
    if as_json:
        show_json({**msgspec.to_builtins(matrix(inventory)), "legend": LEGEND})
    else:
        page(inventory).show()


def page(inventory: Inventory) -> Page:
    """Lay the matrix out, with a legend of what it uses, and the faults below."""
    found, result = matrix(inventory), Page()
    result.table(
        ("", *found.columns, "CPUs", "NUMA", "PCIe switch", "Nearest NICs"),
        [
            (
                Cell(row.name, "bold red" if row.fault else "bold"),
                *(Cell(cell, _style(cell)) for cell in row.cells),
                row.cpus,
                row.numa,
                row.switch,
                ", ".join(row.nics),
            )
            for row in found.rows
        ],
    )
    if found.rows:
        result.line()
    result.table(("", ""), [(Cell(word, "bold"), meaning) for word, meaning in LEGEND.items() if _used(word, found)])
    add_troubles(result, inventory)
    return result


def _used(word: str, found: Matrix) -> bool:
    return any(cell == word or (word == "NV#" and cell.startswith("NV")) for row in found.rows for cell in row.cells)


def _style(cell: str) -> str:
    return _STYLES.get("NV" if cell.startswith("NV") else cell, "")
