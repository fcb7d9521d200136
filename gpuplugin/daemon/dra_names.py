"""What devices are called, and when a new GPU may be called as one before it was.

Names are kept on disk (`dra.name_file`). One is given again only when its GPU has left, another has come in its place,
and nothing means the first by it any more: no prepared claim, no claim of kubelet's pods, no claim in the API server,
prepared or not. That is asked only then, so a node where no GPU is swapped asks nobody. Where it cannot be asked, the
new GPU gets a name of its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import structlog

from dra.claim import devices_from
from dra.name_file import load, save
from dra.names import Names, adopt, adopt_pairs, is_whole, left_behind, name_all
from dra.slices import DRIVER, Owner, is_ours
from gpuplugin.errors import CheckpointError, GpuPluginError, KubeError
from gpuplugin.kube.backoff import Backoff
from gpuplugin.kube.kinds import SLICES
from gpuplugin.model.ids import GpuUuid

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from pathlib import Path

    from dra.checkpoint import Checkpoint
    from dra.prepare import Blocking
    from gpuplugin.kube.client import Kube
    from gpuplugin.model.inventory import Inventory
    from gpuplugin.serving.pod_resources import PodResources

log = structlog.get_logger()

ASK_SECONDS = 30.0
"""How long a new GPU waits for its name while it is asked who still means another by it."""


class Unpublish(Protocol):
    """Takes devices of these names off the scheduler's list."""

    def __call__(self, names: frozenset[str], without: Collection[GpuUuid], /) -> Awaitable[str]:
        """Return once none of these names is published, nor the GPUs `without`; or why that cannot be now."""
        ...


class DeviceNames:
    """The names of one node's devices.

    checkpoint: of prepared claims · blocking: makes a call on its thread · kubelet: asks what its pods have.
    """

    def __init__(
        self,
        pool: str,
        file: Path,
        checkpoint: Checkpoint,
        blocking: Blocking,
        kube: Kube,
        kubelet: Callable[[], Awaitable[PodResources]],
    ) -> None:
        self._pool, self._file, self._checkpoint, self._blocking = pool, file, checkpoint, blocking
        self._kube, self._kubelet = kube, kubelet
        self.known = self._saved = Names()
        self._unsaved = ""
        self.trouble = ""
        """Why it is not known yet what devices are called; empty once it is."""

    async def start(self) -> Owner:
        """Find out what devices are called already, and whose the slices are to be, however long it takes.

        What prepared claims call them comes first: kubelet and pods have it. Then what another driver has published,
        which was here after us if it was not before. Then what we remember, then what we have published.
        """
        pauses = Backoff(0.5, 30.0)
        records = self._checkpoint.records.values()
        prepared = [device for record in records for device in record.devices if is_whole(device.device)]
        try:
            self._saved, lost = await self._blocking(lambda: load(self._file))
        except CheckpointError as error:
            lost = str(error)
        if lost:
            log.error("device names were lost", reason=lost)
        while True:
            try:
                node = await self._kube.node(self._pool)
                fields = f"spec.driver={DRIVER},spec.nodeName={self._pool}"
                slices = (await self._kube.list(SLICES, fields=fields))[0]
                known = adopt_pairs(Names(), ((GpuUuid(device.gpu), device.device) for device in prepared))
                known = adopt(known, (one for one in slices if not is_ours(one)))
                self.known = adopt(adopt_pairs(known, self._saved.by_gpu.items()), slices)
            except KubeError as error:
                if str(error) != self.trouble:
                    self.trouble = str(error)
                    log.warning("ResourceSlices cannot be published yet", reason=self.trouble)
                await asyncio.sleep(pauses.next())
            else:
                self.trouble = ""
                return Owner(node.metadata.name, node.metadata.uid)

    async def name(self, inventory: Inventory, unpublish: Unpublish) -> None:
        """Name GPUs that have none; a name is on disk before anybody hears it."""
        held = None
        if wanted := left_behind(self.known, inventory):
            held = await self._held(wanted, inventory, unpublish)
        self.known = names = name_all(self.known, inventory, held)
        if names == self._saved:
            return
        try:
            await self._blocking(lambda: save(self._file, names))
        except CheckpointError as error:
            if str(error) != self._unsaved:
                self._unsaved = str(error)
                log.error("device names may not outlive the daemon", reason=self._unsaved)  # noqa: TRY400 - for people
        else:
            self._saved, self._unsaved = names, ""

    async def _held(self, wanted: frozenset[str], inventory: Inventory, unpublish: Unpublish) -> frozenset[str] | None:
        """Give those of the names that a claim means a device by; None where nobody can say."""
        held, new = None, [gpu.uuid for gpu in inventory.gpus if gpu.uuid not in self.known.by_gpu]
        try:
            async with asyncio.timeout(ASK_SECONDS):
                trouble = await unpublish(wanted, new)  # else a claim could be given one after it was asked who has it
                if not trouble:
                    held = await self._in_claims(wanted)
        except (GpuPluginError, TimeoutError) as error:
            trouble = str(error) or "no answer in time"
        if held is None:
            log.warning("a new GPU cannot be called as the one before it", names=sorted(wanted), reason=trouble)
        else:
            log.info("GPUs were swapped", names=sorted(wanted), still_held=sorted(held))
        return held

    async def _in_claims(self, wanted: frozenset[str]) -> frozenset[str]:
        """Give those of the names that a claim means a device by. Raises GpuPluginError's kinds."""
        if broken := await self._blocking(self._checkpoint.load):
            raise CheckpointError(self._checkpoint.folder, f"records that make no sense: {', '.join(broken)}")
        held = {device.device for record in self._checkpoint.records.values() for device in record.devices}
        claimed = (await self._kubelet()).claimed
        held |= {one.device for one in claimed if (one.driver, one.pool) == (DRIVER, self._pool)}
        if not wanted <= held:
            for claim in await self._kube.claims(lambda claim: bool(devices_from(claim, DRIVER, self._pool))):
                held |= devices_from(claim, DRIVER, self._pool)
        return wanted & held
