"""Tells in the log how kubelet is set up to place pods, and what that means here: at the start and when it changes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from gpuplugin.discovery.kubelet_settings import read
from gpuplugin.plan.kubelet_hints import hints

if TYPE_CHECKING:
    from gpuplugin.config import Config
    from gpuplugin.daemon.host import Host
    from gpuplugin.daemon.node import Node
    from gpuplugin.model.kubelet import KubeletSettings
    from gpuplugin.plan.kubelet_hints import Hint

log = structlog.get_logger()


async def keep_telling(config: Config, host: Host, node: Node) -> None:
    """Look as often as at the GPUs; each thing is said once until something about it is another."""
    settings: KubeletSettings | None = None
    told: frozenset[Hint] = frozenset()
    while True:
        before = settings
        settings = await asyncio.to_thread(read, Path(config.paths.kubelet), host.proc, host.driver_root)
        if settings != before:
            _show(settings)
        found = hints(settings, node.inventory) if node.inventory is not None else ()
        for hint in found:
            if hint not in told:
                getattr(log, hint.level)("kubelet's settings", reason=hint.text)
        told = frozenset(found)
        await asyncio.sleep(config.rescan_seconds)


def _show(settings: KubeletSettings) -> None:
    for trouble in settings.troubles:
        log.info("kubelet's settings cannot all be read", reason=trouble)
    if not settings.read_from:
        log.info("kubelet's settings cannot be seen from here, so nothing is said about what they do to alignment")
        return
    log.info(
        "kubelet's settings",
        topologyManagerPolicy=settings.topology_policy,
        topologyManagerScope=settings.topology_scope,
        topologyManagerPolicyOptions=dict(settings.topology_options),
        cpuManagerPolicy=settings.cpu_policy or settings.cpu_state,
        memoryManagerPolicy=settings.memory_policy or settings.memory_state,
        reservedSystemCPUs=settings.reserved_cpus and list(settings.reserved_cpus),
        read_from=list(settings.read_from),
    )
