"""``gpuplugin cordon`` and ``uncordon``: take one GPU out of service, and let it back."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path

from gpuplugin.cli.look import look
from gpuplugin.cli.output import Page, show_json
from gpuplugin.config import load
from gpuplugin.daemon.cordon import Cordons, gpu_uuid
from gpuplugin.errors import CordonRefused
from gpuplugin.model.ids import GpuUuid, pci_address


def cordon(gpu: str, reason: str, state: Path | None, simulate: str | None) -> None:
    """Cordon a GPU. Raises CordonRefused, and what a look at the machine raises."""
    uuid = _find(gpu, simulate)
    path = _cordons(state).put(uuid, reason)
    print(f"{uuid} is cordoned: no new pod gets it, pods that have it go on. Kept in {path}")


def uncordon(gpu: str, state: Path | None, simulate: str | None) -> int:
    """Let a GPU back into service; returns the exit status."""
    uuid = _find(gpu, simulate)
    if _cordons(state).take_away(uuid):
        print(f"{uuid} is no longer cordoned")
        return 0
    print(f"gpuplugin: {uuid} is not cordoned", file=sys.stderr)
    return 1


def show(state: Path | None, *, as_json: bool) -> None:
    """List what is cordoned. Raises CordonRefused where that cannot be read."""
    try:
        found = _cordons(state).read()
    except OSError as error:
        raise CordonRefused(f"{error.filename}: {error.strerror}; run it as root, or give another --state") from error
    if as_json:
        show_json([{"gpu": gpu, **asdict(one)} for gpu, one in found.items()])
        return
    page = Page()
    page.table(("GPU", "since", "reason"), [(gpu, one.since, one.reason) for gpu, one in found.items()])
    page.show()


def _cordons(state: Path | None) -> Cordons:
    return Cordons(state or Path(load(None, os.environ, {}).paths.state))


def _find(text: str, simulate: str | None) -> GpuUuid:
    """Say which GPU is meant; a UUID is taken at its word, since a lost GPU may no longer tell its own."""
    if (uuid := gpu_uuid(text)) is not None:
        return uuid
    inventory = look(simulate)
    try:
        pci = pci_address(text)
    except ValueError:
        pci = None
    for one in inventory.gpus:
        if text == f"{one.index}" or one.pci == pci:
            return one.uuid
    there = ", ".join(f"{one.index} ({one.pci}, {one.uuid})" for one in inventory.gpus) or "none"
    raise CordonRefused(f"{text!r} is none of the GPUs here; there are: {there}")
