"""What nvidia-smi says, parsed: the second opinion that the hardware tests compare ours with."""

from __future__ import annotations

import csv
import re
import subprocess
from collections.abc import Iterable

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"GPU(\d+)")


def query(fields: Iterable[str]) -> list[dict[str, str]]:
    """One dict a GPU of ``nvidia-smi --query-gpu``; numbers are without their units."""
    wanted = list(fields)
    text = _run(f"--query-gpu={','.join(wanted)}", "--format=csv,noheader,nounits")
    return [dict(zip(wanted, (cell.strip() for cell in row), strict=True)) for row in csv.reader(text.splitlines())]


def topology() -> dict[tuple[int, int], str]:
    """See `parse_topology`."""
    return parse_topology(_run("topo", "-m"))


def parse_topology(text: str) -> dict[tuple[int, int], str]:
    """The cells of ``nvidia-smi topo -m`` between GPUs: {(0, 1): "NV18", …}, without the diagonal."""
    lines = [[cell.strip() for cell in _ESCAPES.sub("", line).split("\t")] for line in text.splitlines()]
    head = next(cells for cells in lines if "GPU0" in cells)
    column = {int(found[1]): at for at, cell in enumerate(head) if (found := _GPU.fullmatch(cell))}
    rows = {int(found[1]): cells for cells in lines if cells is not head and (found := _GPU.fullmatch(cells[0]))}
    return {(i, j): cells[at] for i, cells in rows.items() for j, at in column.items() if i != j}


def _run(*arguments: str) -> str:
    return subprocess.run(["nvidia-smi", *arguments], check=True, capture_output=True, text=True, timeout=60).stdout
