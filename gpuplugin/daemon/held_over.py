"""Asks kubelet who still has GPUs as they were offered before, once that has changed, and until those pods have ended.

A configuration may change a device's name or form while pods run, or between two daemons. A device that was offered
otherwise just now is held back until kubelet has answered; where kubelet has never answered, as without its folder
mounted here, nothing is held back, and the log says so. Where nothing changes, kubelet is asked in the first minute
only, and not at all where claims have all GPUs.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from gpuplugin.errors import PodResourcesUnavailable
from gpuplugin.kube.backoff import Backoff
from gpuplugin.plan.held_over import NOT_ASKED, Form, Grant, changed, forms, held_over
from gpuplugin.serving.pod_resources import pod_resources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplugin.config import Config
    from gpuplugin.daemon.node import Node
    from gpuplugin.model.ids import DeviceUuid
    from gpuplugin.serving.pod_resources import PodResources

log = structlog.get_logger()

ASK_SECONDS: Final = 5.0
"""Between two questions while a pod still has something as it was offered before."""
OVERLAP_SECONDS: Final = 60.0
"""In which the daemon before us may still give devices away as it offers them."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0


class HeldOver:
    """Tells the node what to hold back."""

    def __init__(self, config: Config, node: Node) -> None:
        self._socket, self._node = config.paths.pod_resources_socket, node
        self._grants = self._last_said = frozenset[Grant]()
        self._asked_for: frozenset[Form] | None = None
        self._told: Mapping[DeviceUuid, str] = {}
        self._wake = asyncio.Event()
        node.held_over = self._now

    async def run(self) -> None:
        """Ask when there is something to ask about, until cancelled."""
        pauses, trouble = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS), ""
        alone_at = time.monotonic() + OVERLAP_SECONDS
        while True:
            self._wake.clear()
            offered = forms(self._node.units.units)
            if not offered:  # claims have all GPUs, or there are none
                await self._wake.wait()
                continue
            try:
                found = await pod_resources(self._socket)
            except PodResourcesUnavailable as error:
                if str(error) != trouble:
                    trouble = str(error)
                    log.info("it is not known who has GPUs as they were offered before", reason=trouble)
                await asyncio.sleep(pauses.next())
                continue
            pauses.reset()
            trouble = ""
            self._take(found, offered)
            with suppress(TimeoutError):
                again = self._told or time.monotonic() < alone_at
                async with asyncio.timeout(ASK_SECONDS if again else None):
                    await self._wake.wait()

    def _take(self, found: PodResources, offered: frozenset[Form]) -> None:
        """Take an answer over. offered: how devices were offered when it was asked for.

        What a pod had stays its own until two answers in a row do not have it: a kubelet that has just started does not
        know of all pods yet.
        """
        said = frozenset(
            Grant(device.resource, device.id, f"{device.namespace}/{device.pod}") for device in found.plugin_devices
        )
        self._grants = said | self._last_said if offered == self._asked_for else said
        self._asked_for, self._last_said = offered, said
        before = self._told
        if self._now() != before:
            self._node.offer()

    def _now(self) -> Mapping[DeviceUuid, str]:
        units = self._node.units.units
        unsure = changed(self._asked_for, forms(units)) if self._asked_for is not None else ()
        if unsure or (units and self._asked_for is None):
            self._wake.set()
        self._told = {**held_over(units, self._grants), **dict.fromkeys(unsure, NOT_ASKED)}
        return self._told
