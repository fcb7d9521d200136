"""How containers get their GPUs: the CDI document kept true to what the driver has on the host.

It is looked at with every look at the machine, and written only when it differs. A GPU that a container could not be
given is told of with the reason, and is not offered until that has gone.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from cdi import writer
from cdi.build import Options, build, verify, without_missing
from cdi.conflicts import conflicts
from cdi.hooks import Hooks
from cdi.names import KIND, Naming, file_name
from gpuplugin.discovery.driver_root import DriverRootSearch
from gpuplugin.errors import CdiError
from gpuplugin.model.driver_root import Wanted
from gpuplugin.plan.nodes import device_nodes
from gpuplugin.serving.pace import next_beat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from cdi.spec import Spec
    from gpuplugin.config import Config
    from gpuplugin.daemon.host import Host
    from gpuplugin.model.driver_root import DriverRoot
    from gpuplugin.model.ids import DeviceUuid
    from gpuplugin.model.inventory import Inventory
    from gpuplugin.plan.nodes import DeviceNodes

log = structlog.get_logger()

WATCH_SECONDS = 2.0
"""Between two glances at the driver's files, each some hundred stat calls."""


class Injection:
    """Publishes the CDI document, where the configured strategies name devices by it."""

    def __init__(self, config: Config, host: Host) -> None:
        self._folder = Path(config.paths.cdi)
        self._document = self._folder / file_name(KIND)
        self._published = False
        self._spec: Spec | None = None
        program = config.flags.plugin.nvidia_ctk_path
        self._options = Options(
            stand_ins=host.simulated, hooks=Hooks(program, config.cdi.disable_hooks) if program else None
        )
        self._search = DriverRootSearch(host.driver_root, host.dev_root, host.sysfs, host.proc)
        self._said: frozenset[str] = frozenset()
        self._looked = asyncio.Event()
        self._wanted = self._nodes_wanted = self._mig = False
        self.nodes: DeviceNodes | None = None
        self.adopt(config)

    def adopt(self, config: Config) -> None:
        """Do as that configuration says from the next `publish` on.

        What an earlier one had named stays in the document: containers that start again are given the same names again.
        """
        plugin = config.flags.plugin
        self._wanted |= any(strategy.startswith("cdi-") for strategy in plugin.device_list_strategy)
        self._wanted |= bool(config.dra.gpus)
        self._nodes_wanted = plugin.pass_device_specs
        self._mig = config.flags.mig_strategy != "none"
        if plugin.device_id_strategy == "index":
            self._options = replace(self._options, namings=(Naming.UUID, Naming.INDEX))
        self._beside = _beside(config)

    async def publish(self, inventory: Inventory) -> Mapping[DeviceUuid, str]:
        """Bring the document and `nodes` up to date; returns what no container can be given, with the reason."""
        if not self._wanted and not self._nodes_wanted:
            self._looked.set()
            return {}
        root = await asyncio.to_thread(self._search.look, inventory.driver.version, inventory.gpus, self._beside)
        self.nodes = device_nodes(inventory, root) if self._nodes_wanted else None
        refused = await asyncio.to_thread(self._publish, inventory, root) if self._wanted else {}
        self._looked.set()
        return refused

    async def watch(self, wake: Callable[[str], None]) -> None:
        """Ask for a look soon after the driver's files changed or our document went, of which no message tells.

        A document that somebody wrote over is left to the next look: it may be a later instance's, not to be fought.
        """
        await self._looked.wait()
        before = await asyncio.to_thread(self._glance)
        while True:
            await next_beat(WATCH_SECONDS)
            if not self._wanted and not self._nodes_wanted and not self._mig:
                continue
            now = await asyncio.to_thread(self._glance)
            if now != before:
                wake("the driver's files have changed")
            elif self._published and not self._document.exists():
                wake("the CDI document was deleted")
            before = now

    def _glance(self) -> tuple[object, ...]:
        """Give what differs once a look would find something else, or what the document names has gone."""
        gone = verify(self._spec, self._search.exists) if self._spec else ()
        return (*self._search.stamp(self._beside), gone)

    def remove(self) -> None:
        """Take our document away, for good; what cannot be removed is told of."""
        try:
            for path in writer.prune(self._folder, ()):
                log.info("CDI document removed", path=str(path))
        except CdiError as error:
            log.warning("CDI", reason=str(error))

    def _publish(self, inventory: Inventory, root: DriverRoot) -> Mapping[DeviceUuid, str]:
        built = build(inventory.gpus, root, options=self._options)
        spec, gone = without_missing(built.spec, self._search.exists) if built.spec else (None, {})
        refused = {uuid: built.refused.get(uuid) or gone.get(uuid) for uuid in _devices(inventory)}
        try:
            published = writer.publish(self._folder, [spec] if spec else [])
        except CdiError as error:
            self._published = False
            return dict.fromkeys(refused, str(error))
        self._published, self._spec = spec is not None, spec
        names = [device.name for device in spec.devices] if spec else []
        for path in published.written:
            log.info("CDI document written", path=str(path), devices=len(names))
        for path in published.pruned:
            log.info("CDI document removed", path=str(path))
        self._say((*root.warnings, *self._conflicts(names)))
        return {uuid: reason for uuid, reason in refused.items() if reason is not None}

    def _conflicts(self, names: list[str]) -> tuple[str, ...]:
        return conflicts(dict.fromkeys((Path("/etc/cdi"), self._folder)), self._document, KIND, names)

    def _say(self, texts: tuple[str, ...]) -> None:
        for text in texts:
            if text not in self._said:
                log.warning("CDI", reason=text)
        self._said = frozenset(texts)


def _beside(config: Config) -> Wanted:
    flags, imex = config.flags, config.imex
    return Wanted(
        gdrcopy=flags.gdrcopy_enabled,
        gds=flags.gds_enabled,
        mofed=flags.mofed_enabled,
        imex_channels=imex.channel_ids,
        imex_required=imex.required,
        hook=flags.plugin.nvidia_ctk_path,
    )


def _devices(inventory: Inventory) -> Iterator[DeviceUuid]:
    for gpu in inventory.gpus:
        yield gpu.uuid
        yield from (device.uuid for device in gpu.mig_devices)
