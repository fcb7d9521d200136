"""Whether this node's GPUs can be had through us, and if not, why: answered on a Unix socket of our own.

Kubelet's probes run `gpuplugin ready` and `gpuplugin alive` in our container, and those ask here. Exec probes, because
what they print is what kubelet puts into the pod's events, where people look for it (of an HTTP probe it shows the
status alone); because nothing then listens on the network, and no port is taken; and because an answer comes from the
event loop itself, which a file that somebody touched now and then would not prove.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuplugin.daemon.features import has_gpus_on_bus
from gpuplugin.daemon.own_socket import OwnSocket
from gpuplugin.plan.desired import unmatched_for_claims

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from gpuplugin.daemon.claims_state import ClaimsState
    from gpuplugin.daemon.node import Node
    from gpuplugin.daemon.plugins import Plugins


@dataclass(frozen=True, slots=True)
class Readiness:
    """ready: whether pods can get what works of the GPUs · reasons: why not, or what there is to say though it is.

    registered: by resource and by driver of claims, whether kubelet has taken our registration.
    """

    ready: bool
    reasons: tuple[str, ...]
    registered: Mapping[str, bool] = field(default_factory=dict)


def readiness(node: Node, plugins: Plugins, sysfs: Path) -> Readiness:
    """Judge by what was seen last. A GPU that broke makes no daemon unready; a machine without any is ready for it.

    Nor does an API server that cannot be reached, for a daemon that was ready: claims that were wanted from the start
    must have been published once; after that, and for claims that are wanted later, it is only told.
    """
    claims = node.claims()
    registered = {str(name): name not in plugins.unregistered for name in plugins.resources}
    if claims.driver:
        registered[claims.driver] = claims.registered
    if node.trouble:
        if node.inventory is None and not has_gpus_on_bus(sysfs):
            return Readiness(
                ready=True,
                reasons=("there is no NVIDIA GPU on this machine's PCI bus: nothing to offer",),
                registered=registered,
            )
        return Readiness(ready=False, reasons=(f"the GPUs cannot be looked at: {node.trouble}",), registered=registered)
    if not node.looked.is_set():
        return Readiness(ready=False, reasons=("the first look at the GPUs has not ended yet",), registered=registered)
    if troubles := (*plugins.troubles, *_troubles(claims)):
        return Readiness(ready=False, reasons=troubles, registered=registered)
    gpus = len(node.inventory.gpus) if node.inventory else 0
    unmatched = unmatched_for_claims(node.inventory, node.config) if node.inventory else ()
    offered = (*plugins.summary, *_summary(claims)) or (f"{gpus} GPUs, none of them for the device plugin",)
    return Readiness(ready=True, reasons=(*offered, *unmatched), registered=registered)


def _troubles(claims: ClaimsState) -> Iterator[str]:
    if claims.wanted and not claims.registered:
        yield f"claims are not registered with kubelet: {claims.unregistered}"
    if claims.wanted and claims.since_start and claims.published is None:
        yield f"ResourceSlices are not published: {claims.unpublished}"


def _summary(claims: ClaimsState) -> Iterator[str]:
    if claims.wanted and claims.published is None:
        yield f"ResourceSlices are not published yet: {claims.unpublished}"
    elif claims.wanted:
        yield f"claims of {claims.driver}: {claims.published} devices published"


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
            told = {"ready": answer.ready, "reasons": answer.reasons, "registered": answer.registered}
            writer.write(json.dumps(told).encode() + b"\n")
            await writer.drain()
        writer.close()
