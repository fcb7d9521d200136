"""Keeps the NodeResourceTopology object of this node: what each NUMA node has of our resources, and what is free.

What is free, kubelet alone knows. It is asked, over a socket of this machine, every few seconds; the API server hears
of it only where something is other than before.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from gpuplugin.daemon.labels import connect
from gpuplugin.daemon.upkeep import keep_up
from gpuplugin.errors import PodResourcesUnavailable
from gpuplugin.labels.zones import Amount, topology_object
from gpuplugin.serving.pace import next_beat
from gpuplugin.serving.pod_resources import pod_resources

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from gpuplugin.config import Config
    from gpuplugin.daemon.host import Host
    from gpuplugin.daemon.node import Node
    from gpuplugin.daemon.plugins import Plugins
    from gpuplugin.kube.client import Kube
    from gpuplugin.plan.desired import OfferedResource

log = structlog.get_logger()

ASK_SECONDS = 5.0
KUBELET_CONFIG: Final = "/var/lib/kubelet/config.yaml"
"""Where most installers put it; where it is elsewhere, the object has no word of kubelet's policy."""

_LONGEST: Final = 1 << 20
_ATTRIBUTES: Final = ("topologyManagerPolicy", "topologyManagerScope")


class TopologyObject:
    """Keeps one node's object."""

    def __init__(self, config: Config, host: Host, node: Node, plugins: Plugins) -> None:
        self._config, self._host, self._node, self._plugins = config, host, node, plugins
        self._changed = asyncio.Event()
        self._held: frozenset[tuple[str, str]] | None = None
        self._seen_there: tuple[dict[str, Any], float] | None = None

    async def run(self) -> None:
        """Keep it until cancelled."""
        await self._node.looked.wait()
        kube = await connect(self._config, "NodeResourceTopology")
        every = self._config.labels.check_seconds
        async with kube, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(), name="follow pictures for the topology")
            tasks.create_task(self._ask_kubelet(), name="ask kubelet for the topology")
            await keep_up("NodeResourceTopology", lambda: self.look(kube), self._changed, every)

    async def look(self, kube: Kube) -> bool:
        """Compare, and write where something differs. False: it is not known yet what is free."""
        inventory, held = self._node.inventory, self._held
        if inventory is None or held is None:
            return False
        attributes = await asyncio.to_thread(kubelet_policy, self._places())
        found = amounts(self._plugins.offered, held)
        wanted = topology_object(self._config.node.name, inventory.numa_nodes, found, attributes)
        if not self._was_there_lately(wanted):
            from gpuplugin.kube import topology  # noqa: PLC0415 - like the client

            if not await topology.is_there(kube, wanted):
                await topology.put(kube, wanted)
                log.info("topology written", zones=len(wanted["zones"]))
            self._seen_there = wanted, time.monotonic()
        return True

    def _was_there_lately(self, wanted: dict[str, Any]) -> bool:
        """Whether this very object has been seen there since the last look but one, so that health asks nothing."""
        if self._seen_there is None:
            return False
        seen, when = self._seen_there
        return seen == wanted and time.monotonic() - when < self._config.labels.check_seconds / 2

    def _places(self) -> tuple[Path, ...]:
        return Path(self._config.paths.kubelet, "config.yaml"), self._host.driver_root.see(KUBELET_CONFIG)

    async def _follow(self) -> None:
        async with aclosing(self._node.picture.follow()) as pictures:
            async for _ in pictures:
                self._changed.set()

    async def _ask_kubelet(self) -> None:
        socket, trouble = self._config.paths.pod_resources_socket, ""
        while True:
            try:
                found = await pod_resources(socket)
            except PodResourcesUnavailable as error:
                if str(error) != trouble:
                    trouble = str(error)
                    log.warning("it is not known which devices are free: the topology stays as it is", reason=trouble)
            else:
                trouble = ""
                held = frozenset((device.resource, device.id) for device in found.plugin_devices)
                if held != self._held:
                    self._held = held
                    self._changed.set()
            await next_beat(ASK_SECONDS)


def amounts(offered: Iterable[OfferedResource], held: Collection[tuple[str, str]]) -> Iterator[Amount]:
    """Count each resource on each NUMA node. held: (resource, device id) of what pods have."""
    for resource in offered:
        capacity: Counter[int] = Counter()
        allocatable: Counter[int] = Counter()
        available: Counter[int] = Counter()
        for device in resource.devices:
            for numa in device.numa:
                capacity[numa] += device.replicas
                if device.health.usable:
                    allocatable[numa] += device.replicas
                    available[numa] += sum((resource.name, one) not in held for one in device.ids)
        nodes = sorted({numa for device in resource.devices for numa in device.numa})
        for numa in nodes:
            yield Amount(resource.name, numa, capacity[numa], allocatable[numa], available[numa])


def kubelet_policy(files: Iterable[Path]) -> dict[str, str]:
    """Say how strict kubelet is, from the first of its configuration files that is there; nothing where none is."""
    for file in files:
        try:
            with file.open("rb") as opened:
                text = opened.read(_LONGEST)
        except OSError:
            continue
        import yaml  # noqa: PLC0415 - costs memory, and few need it

        try:
            found = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError):  # the last two: a date that is none, lists without end
            continue
        if isinstance(found, dict):
            defaults = dict(zip(_ATTRIBUTES, ("none", "container"), strict=True))
            return {name: str(found.get(name) or defaults[name]) for name in _ATTRIBUTES}
    return {}
