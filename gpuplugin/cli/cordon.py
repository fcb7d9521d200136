"""``gpuplugin cordon`` and ``uncordon``: take one GPU out of service, and let it back."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path

from gpuplugin.cli.daemon import ask
from gpuplugin.cli.look import look
from gpuplugin.cli.output import Page, show_json
from gpuplugin.config import load
from gpuplugin.daemon.cordon import Cordons, gpu_uuid
from gpuplugin.errors import CordonRefused, DaemonSilent, NothingToExplain, ObserveError
from gpuplugin.explain.questions import GpuHere, OfGpus
from gpuplugin.model.ids import GpuUuid, pci_address

_BY_UUID = "A GPU's UUID is taken as it is, without driver and daemon"


def cordon(gpu: str, reason: str, state: Path | None, simulate: str | None) -> None:
    """Cordon a GPU; a UUID that the daemon does not know is warned of. Raises CordonRefused, and as `look` does."""
    uuid = _find(gpu, simulate)
    path = _cordons(state).put(uuid, reason)
    print(f"{uuid} is cordoned: no new pod gets it, pods that have it go on. Kept in {path}")
    if simulate is None and (doubt := _doubt(uuid)):
        print(f"gpuplugin: warning: {doubt}", file=sys.stderr)


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


def _doubt(uuid: GpuUuid) -> str:
    """Why it may be no GPU of this node: the daemon was asked and has none of that UUID. "" where it has, or may."""
    try:
        gpus = ask(OfGpus(), list[GpuHere])
    except NothingToExplain:
        return ""
    if any(gpu.uuid == uuid for gpu in gpus):
        return ""
    return (
        f"the daemon knows no GPU {uuid}; the cordon waits for one. Unless it is lost, or not plugged in yet, take the "
        f"cordon back with `gpuplugin uncordon {uuid}`; there are: {_listed(gpus)}"
    )


def _find(text: str, simulate: str | None) -> GpuUuid:
    """Say which GPU is meant; a UUID is taken at its word, since a lost GPU may no longer tell its own."""
    if (uuid := gpu_uuid(text)) is not None:
        return uuid
    gpus = _gpus(text, simulate)
    try:
        pci = pci_address(text)
    except ValueError:
        pci = None
    found = next((gpu for gpu in gpus if text == f"{gpu.index}" or (pci is not None and gpu.pci == pci)), None)
    if found is None:
        raise CordonRefused(f"{text!r} is none of the GPUs here; there are: {_listed(gpus)}")
    if found.uuid is None:
        raise CordonRefused(f"GPU {found.index} cannot be read, so its UUID is not known: name it by that")
    return GpuUuid(found.uuid)


def _gpus(text: str, simulate: str | None) -> list[GpuHere]:
    """Give the GPUs as the daemon counts them; without one, or for a simulated machine, by a look of our own."""
    unasked = ""
    if simulate is None:
        try:
            return ask(OfGpus(), list[GpuHere])
        except DaemonSilent as error:
            unasked = f"{error} "
        except NothingToExplain as error:
            raise CordonRefused(f"it cannot be told which GPU {text!r} is: {error}. {_BY_UUID}") from error
    try:
        inventory = look(simulate)
    except ObserveError as error:
        why = error.__cause__ or error  # without its advice, which is to try a simulated machine
        raise CordonRefused(f"it cannot be told which GPU {text!r} is: {why}. {unasked}{_BY_UUID}") from error
    return [GpuHere(gpu.index, gpu.uuid, gpu.pci) for gpu in inventory.gpus]


def _listed(gpus: list[GpuHere]) -> str:
    return ", ".join(f"{gpu.index} ({gpu.pci}, {gpu.uuid or 'unreadable'})" for gpu in gpus) or "none"
