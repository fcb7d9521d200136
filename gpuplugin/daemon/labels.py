"""The node's labels, kept as what is known says: by us on the Node, or by way of Node Feature Discovery.

They outlive us on purpose. A daemon that restarts, a driver that is late and a GPU that cannot be read take none of
them away; `gpuplugin labels remove` does.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog

from gpuplugin.daemon.features import has_gpus_on_bus
from gpuplugin.daemon.label_facts import facts
from gpuplugin.daemon.label_file import LabelsInFile
from gpuplugin.daemon.upkeep import keep_up
from gpuplugin.errors import KubeUnconfigured
from gpuplugin.kube.backoff import Backoff
from gpuplugin.labels.build import kept, labels, without_driver
from gpuplugin.serving.pace import next_beat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplugin.config import Config
    from gpuplugin.daemon.node import Node
    from gpuplugin.kube.client import Kube
    from gpuplugin.model.inventory import Inventory

log = structlog.get_logger()

DRIVER_LOOK_SECONDS = 5.0
DRIVER_PATIENCE_SECONDS = 30.0
"""How long the driver may be away before the Node says so: an upgrade or a restart of ours is no news."""


class Outlet(Protocol):
    """Where labels are kept. Both raise KubeError's kinds or OSError."""

    async def read(self) -> dict[str, str]:
        """Give ours as they are there."""

    async def write(self, labels: Mapping[str, str]) -> None:
        """Have exactly these, and leave those of others alone."""


class Labelling:
    """Keeps one node's labels. sysfs: where the host's is seen."""

    def __init__(self, config: Config, node: Node, sysfs: Path) -> None:
        self._config, self._node, self._sysfs = config, node, sysfs
        self._changed = asyncio.Event()
        self._wanted: dict[str, str] | None = None
        self._complete = True
        self._driver_away = False
        timestamp = config.labels.timestamp and not config.flags.gfd.no_timestamp
        self._timestamp = int(time.time()) if timestamp else None

    async def run(self) -> None:
        """Keep them until cancelled; with `flags.gfd.oneshot` only until they have been written."""
        await self._node_has_been_tried()
        gfd, settings = self._config.flags.gfd, self._config.labels
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            outlet = await self._outlet(stack)
            followers = (
                tasks.create_task(self._follow_pictures(), name="follow pictures for labels"),
                tasks.create_task(self._follow_driver(), name="follow the driver for labels"),
            )
            every = settings.check_seconds
            await keep_up("labels", lambda: self.look(outlet), self._changed, every, once=gfd.oneshot)
            for follower in followers:
                follower.cancel()

    async def look(self, outlet: Outlet) -> bool:
        """Compare, and write where something differs. False: it is not known yet what the labels should be."""
        there = await outlet.read()
        wanted = self._now(there)
        if wanted is None:
            return False
        if wanted != there:
            await outlet.write(wanted)
            changed = {key: value for key, value in wanted.items() if there.get(key) != value}
            log.info("labels written", changed=changed, removed=sorted(there.keys() - wanted.keys()))
        return self._wanted is not None

    def take(self, inventory: Inventory, config: Config) -> None:
        """Have the labels say what this says. Blocks for a few small files."""
        wanted = labels(facts(inventory, config, self._sysfs, self._timestamp))
        complete = not inventory.unreadable
        if (wanted, complete) != (self._wanted, self._complete):
            self._wanted, self._complete = wanted, complete
            self._changed.set()

    def _now(self, there: Mapping[str, str]) -> dict[str, str] | None:
        if self._wanted is None:
            known_gpus = bool(there) or has_gpus_on_bus(self._sysfs)
            return without_driver(there) if self._driver_away and known_gpus else None
        wanted = kept(self._wanted, there, complete=self._complete)
        return without_driver(wanted) if self._driver_away and wanted else wanted

    async def _node_has_been_tried(self) -> None:
        """Let kubelet be served first: what comes after this imports the API client."""
        while not self._node.looked.is_set() and not self._node.trouble:  # noqa: ASYNC110 - trouble is no event
            await asyncio.sleep(0.1)

    async def _outlet(self, stack: AsyncExitStack) -> Outlet:
        if self._config.labels.owner == "nfd-file":
            return LabelsInFile(Path(self._config.flags.gfd.output_file))
        from gpuplugin.kube.labels import LabelsInFeature, LabelsOnNode  # noqa: PLC0415 - not before kubelet is served

        kube = await stack.enter_async_context(await connect(self._config, "labels"))
        if self._config.labels.owner == "nfd-object":
            return LabelsInFeature(kube, self._config.labels.namespace, self._config.node.name)
        return LabelsOnNode(kube, self._config.node.name)

    async def _follow_pictures(self) -> None:
        seen: tuple[Inventory, Config] | None = None
        async with aclosing(self._node.picture.follow()) as pictures:
            async for picture in pictures:
                if picture is None or seen == (picture.inventory, picture.config):
                    continue
                seen = (picture.inventory, picture.config)
                self.take(*seen)

    async def _follow_driver(self) -> None:
        away_since: float | None = None
        while True:
            now = time.monotonic()
            away_since = (now if away_since is None else away_since) if self._node.trouble else None
            away = away_since is not None and now - away_since >= DRIVER_PATIENCE_SECONDS
            if away != self._driver_away:
                self._driver_away = away
                self._changed.set()
            await next_beat(DRIVER_LOOK_SECONDS)


async def connect(config: Config, what: str) -> Kube:
    """Make a client of the API server, as soon as there is something that says where it is."""
    from gpuplugin.kube.client import Kube  # noqa: PLC0415 - costs 10 MiB, and few need it

    pauses, trouble = Backoff(1.0, 60.0), ""
    while True:
        try:
            return Kube(config.paths.kubeconfig_file)
        except KubeUnconfigured as error:
            if str(error) != trouble:
                trouble = str(error)
                log.error("the Kubernetes API cannot be reached", what=what, reason=trouble)  # noqa: TRY400 - for people
            await asyncio.sleep(pauses.next())
