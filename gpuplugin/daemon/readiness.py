"""Whether this node's GPUs can be had through us, and if not, why: answered on a Unix socket of our own.

Kubelet's probes run `gpuplugin ready` and `gpuplugin alive` in our container, and those ask here. Exec probes, because
what they print is what kubelet puts into the pod's events, where people look for it (of an HTTP probe it shows the
status alone); because nothing then listens on the network, and no port is taken; and because an answer comes from the
event loop itself, which a file that somebody touched now and then would not prove.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuplugin.daemon.features import has_gpus_on_bus
from gpuplugin.daemon.own_socket import OwnSocket

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from pathlib import Path

    from gpuplugin.daemon.node import Node
    from gpuplugin.daemon.plugins import Plugins


@dataclass(frozen=True, slots=True)
class Readiness:
    """ready: whether pods can get what works of the GPUs · reasons: why not, or what there is to say though it is."""

    ready: bool
    reasons: tuple[str, ...]


def readiness(node: Node, plugins: Plugins, sysfs: Path) -> Readiness:
    """Judge by what was seen last. A GPU that broke makes no daemon unready; a machine without any is ready for it."""
    if node.trouble:
        if node.inventory is None and not has_gpus_on_bus(sysfs):
            return Readiness(
                ready=True, reasons=("there is no NVIDIA GPU on this machine's PCI bus: nothing to offer",)
            )
        return Readiness(ready=False, reasons=(f"the GPUs cannot be looked at: {node.trouble}",))
    if not node.looked.is_set():
        return Readiness(ready=False, reasons=("the first look at the GPUs has not ended yet",))
    if plugins.troubles:
        return Readiness(ready=False, reasons=plugins.troubles)
    gpus = len(node.inventory.gpus) if node.inventory else 0
    return Readiness(ready=True, reasons=plugins.summary or (f"{gpus} GPUs, none of them for the device plugin",))


class StatusSocket:
    """Answers each connection with one line of JSON: a `Readiness`."""

    def __init__(self, path: Path, ask: Callable[[], Readiness]) -> None:
        self._path, self._ask = path, ask

    async def serve(self) -> None:
        """Serve until cancelled. A socket that cannot be had is an error in the log: kubelet will then restart us."""
        await OwnSocket(self._path, self._answer, "probes cannot be answered").serve()

    async def _answer(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = self._ask()
        with suppress(ConnectionError):
            writer.write(json.dumps({"ready": answer.ready, "reasons": answer.reasons}).encode() + b"\n")
            await writer.drain()
        writer.close()
