"""``gpuplugin topo``: the matrix that people know, with what the choice of devices looks at beside it."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

import msgspec

from gpuplugin.cli.look import add_troubles, look
from gpuplugin.cli.output import Cell, Page, show_json
from gpuplugin.config import load
from gpuplugin.errors import PodResourcesUnavailable
from gpuplugin.model.ids import GpuUuid, without_replica
from gpuplugin.topology.matrix import LEGEND, Matrix, matrix

if TYPE_CHECKING:
    from pathlib import Path

    from gpuplugin.model.ids import DeviceUuid
    from gpuplugin.model.inventory import Inventory

_STYLES = {"X": "dim", "NV": "green", "PIX": "cyan", "PXB": "cyan", "SYS": "dim"}


def show(simulate: str | None, *, as_json: bool, svg: Path | None = None) -> None:
    """Print the matrix of this machine or of a simulated one, or write its picture to a file (``-``: print it)."""
    inventory = look(simulate)
    if svg is not None:
        from gpuplugin.cli.svg import draw  # noqa: PLC0415 - few want a picture

        picture = draw(inventory, {} if simulate else asyncio.run(_holders()))
        if str(svg) == "-":
            print(picture, end="")
        else:
            svg.write_text(picture)
    elif as_json:
        show_json({**msgspec.to_builtins(matrix(inventory)), "legend": LEGEND})
    else:
        page(inventory).show()


async def _holders() -> dict[DeviceUuid, str]:
    """Say which pods have which devices; nothing where kubelet is not here to be asked."""
    from gpuplugin.serving.pod_resources import pod_resources  # noqa: PLC0415 - likewise

    paths = load(None, os.environ, {}).paths
    try:
        found = await pod_resources(paths.pod_resources_socket)
    except PodResourcesUnavailable as error:
        print(f"gpuplugin: without who holds what: {error}", file=sys.stderr)
        return {}
    pods: dict[DeviceUuid, list[str]] = {}
    for device in found.plugin_devices:
        uuid = without_replica(device.id)[0]
        pods.setdefault(GpuUuid(uuid), []).append(f"{device.namespace}/{device.pod}")
    return {uuid: ", ".join(dict.fromkeys(names)) for uuid, names in pods.items()}


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
