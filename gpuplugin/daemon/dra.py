"""Claims (Dynamic Resource Allocation) in the daemon: what they may have, served to kubelet, told to the scheduler.

Three modes, by `dra.gpus`: none (the device plugin has all GPUs), all, or some. Whatever the mode, a GPU that is in use
by way of its former owner is withheld from the new one until it is free, so this also runs where claims have no GPU any
more but some are still prepared.

The API client is a tenth of a second and ten megabytes of imports: kubelet is served first.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import structlog

from cdi.names import KIND
from dra.checkpoint import Checkpoint
from dra.devices import NodeDevices, describe
from dra.health import PoolHealth, add_health_calls
from dra.names import name_all
from dra.prepare import Preparing, Surroundings
from dra.recovery import Recovery
from dra.registration import Registered
from dra.server import add_claim_calls
from dra.slices import DRIVER, whole_gpus
from dra.status import DeviceStatus
from gpuplugin.daemon.dra_names import DeviceNames
from gpuplugin.daemon.dra_take_over import predecessor, take_over, watch
from gpuplugin.discovery.worker import Worker
from gpuplugin.errors import CheckpointError, GpuPluginError, KubeUnconfigured
from gpuplugin.kube.backoff import Backoff
from gpuplugin.model import holds
from gpuplugin.plan.desired import for_claims
from gpuplugin.plan.ledger import Ledger, divide
from gpuplugin.serving.latest import Latest
from gpuplugin.serving.pod_resources import pod_resources

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import grpc.aio

    from dra.checkpoint import Record
    from dra.names import Names
    from dra.publisher import Publisher
    from dra.slices import Contents
    from gpuplugin.config import Config
    from gpuplugin.daemon.node import Node, Picture
    from gpuplugin.kube.client import Kube
    from gpuplugin.model.ids import GpuUuid
    from gpuplugin.model.inventory import Inventory
    from gpuplugin.plan.ledger import Division
    from gpuplugin.serving.pod_resources import PodResources
    from gpuplugin.topology.allocate import Tables

log = structlog.get_logger()

FIRST_LOOK_SECONDS = 3.0
"""How long the first look may take before claims are served without it, so that they can at least be unprepared."""
ASK_AGAIN_SECONDS = 10.0
"""Between two questions to kubelet, while a pod still has a GPU that claims shall have."""
_NOT_ASKED = "kubelet has not said yet which pods have it from the device plugin"
_ELSEWHERE = "it is handed out by the device plugin (dra.gpus does not name it)"
_NOT_LOOKED = "the GPUs have not been looked at yet"


class Claims:
    """All that is done for claims on this node, on its one event loop. records: where prepared claims are recorded."""

    def __init__(self, config: Config, node: Node, records: Path) -> None:
        self._config, self._node = config, node
        self._pool = config.node.name
        self._kubelet = Path(config.paths.kubelet)
        self._checkpoint = Checkpoint(records)
        self._worker = Worker("claims")
        self._pods: Ledger | None = None
        self._held_before: Mapping[GpuUuid, str] = {}
        self._name_file = records.with_name("device-names.json")
        self._before = predecessor(config)
        self._devices = NodeDevices(MappingProxyType({}), _NOT_LOOKED)
        self._described, self._asked = asyncio.Event(), asyncio.Event()
        self._recovery: Recovery | None = None
        self._health: Latest[PoolHealth | None] = Latest(None)
        try:
            self._checkpoint.load()
        except CheckpointError as error:
            log.error("prepared claims are not known", reason=str(error))  # noqa: TRY400 - for people
        node.held = self._held

    async def run(self) -> None:
        """Serve claims until cancelled."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_SECONDS):
                await self._node.looked.wait()
        await take_over(self._before, self._checkpoint, self._worker.run, self._node.inventory)
        kube = await self._connect()
        statuses = DeviceStatus(DRIVER, kube)
        preparing = Preparing(
            DRIVER,
            self._pool,
            kube,
            self._checkpoint,
            self._worker.run,
            Surroundings(
                devices=lambda: self._devices,
                held=lambda: self._pods or Ledger(),
                in_use=self._in_use,
                complete=self._settled,
            ),
        )
        preparing.told, preparing.changed = statuses.tell, self._records_changed

        def over(uid: str) -> None:
            statuses.drop(uid)
            self._before.forget(uid)

        preparing.over = over
        self._recovery = Recovery(preparing, self._checkpoint, self._worker.run, kube, self._claims_in_pods)

        def add_services(server: grpc.aio.Server) -> None:
            add_claim_calls(server, preparing)
            add_health_calls(server, self._health)

        try:
            async with kube, asyncio.TaskGroup() as tasks:
                tasks.create_task(Registered(self._kubelet, DRIVER, add_services).run(), name="serve claims")
                tasks.create_task(self._ask_kubelet(), name="ask kubelet")
                tasks.create_task(self._settle(self._recovery), name="settle claims")
                tasks.create_task(watch(self._before), name="watch for another driver")
                tasks.create_task(self._publish(kube), name="publish slices")
        finally:
            await statuses.close()
            self._worker.end()

    async def _connect(self) -> Kube:
        from gpuplugin.kube.client import Kube  # noqa: PLC0415 - not before kubelet is served

        pauses, trouble = Backoff(1.0, 60.0), ""
        path = self._config.paths.kubeconfig
        while True:
            try:
                return Kube(Path(path) if path else None)
            except KubeUnconfigured as error:
                if str(error) != trouble:
                    trouble = str(error)
                    log.error("claims cannot be served", reason=trouble)  # noqa: TRY400 - for people
                await asyncio.sleep(pauses.next())

    # -- who has what -------------------------------------------------------

    def _division(self, inventory: Inventory) -> Division:
        ledger = self._checkpoint.ledger + (self._pods or Ledger())
        return divide(inventory.gpus, self._config.dra.includes, ledger)

    def _held(self) -> Mapping[GpuUuid, str]:
        inventory = self._node.inventory
        return self._division(inventory).withheld if inventory else {}

    def _records_changed(self) -> None:
        """Have the lists sent anew, where what is recorded keeps a GPU from its owner, or does no longer."""
        held = self._held()
        if held != self._held_before:
            self._held_before = held
            self._node.offer()

    def _withheld(self, division: Division) -> Mapping[GpuUuid, str]:
        if self._pods is not None:
            return division.withheld
        return dict.fromkeys(division.of(holds.Owner.CLAIMS), _NOT_ASKED)

    def _in_use(self, record: Record) -> bool:
        """Whether a pod of the claim may still run: kubelet keeps a folder for each until nothing of it is left."""
        pods = self._kubelet / "pods"
        return not pods.is_dir() or not record.pods or any((pods / pod.uid).exists() for pod in record.pods)

    async def _claims_in_pods(self) -> Collection[tuple[str, str]]:
        found = await self._ask()
        return {(one.namespace, one.claim) for one in found.claimed if one.driver == DRIVER and one.pool == self._pool}

    async def _ask(self) -> PodResources:
        return await pod_resources(self._kubelet / "pod-resources" / "kubelet.sock")

    async def _ask_kubelet(self) -> None:
        """Find out who has GPUs by way of their former owner: once, and again only while somebody has."""
        pauses, trouble = Backoff(0.5, ASK_AGAIN_SECONDS), ""
        await self._node.looked.wait()
        while True:
            pause = ASK_AGAIN_SECONDS
            if self._pods is None or self._held_by_former_owners():
                try:
                    self._take(await self._ask())
                    await self._worker.run(self._checkpoint.load)  # another instance may have unprepared some
                    self._records_changed()
                    pauses.reset()
                except GpuPluginError as error:
                    if str(error) != trouble:
                        trouble = str(error)
                        log.warning("it is not known who has GPUs of claims", reason=trouble)
                    pause = pauses.next()
                self._asked.set()
            await asyncio.sleep(pause)

    def _held_by_former_owners(self) -> bool:
        inventory = self._node.inventory
        return inventory is not None and bool(self._division(inventory).withheld)

    def _take(self, found: PodResources) -> None:
        inventory = self._node.inventory
        whose = {
            device: gpu.uuid
            for gpu in (inventory.gpus if inventory else ())
            for device in (gpu.uuid, *(mig.uuid for mig in gpu.mig_devices))
        }
        pods = Ledger(
            tuple(
                holds.Hold(whose[uuid], holds.Holder(holds.Owner.DEVICE_PLUGIN, device.namespace, device.pod))
                for device in found.plugin_devices
                if (uuid := device.id.partition("::")[0]) in whose
            )
        )
        if pods != self._pods:
            self._pods = pods
            self._node.offer()

    async def _settle(self, recovery: Recovery) -> None:
        await self._described.wait()
        await recovery.keep_trying()

    async def _settled(self) -> None:
        if self._recovery is not None:
            await self._recovery.complete()

    # -- what there is ------------------------------------------------------

    async def _publish(self, kube: Kube) -> None:
        """Bring what the node knows to the scheduler, to kubelet's health stream and to those who prepare."""
        from dra.publisher import Publisher  # noqa: PLC0415 - not before kubelet is served

        names = DeviceNames(self._pool, self._name_file, self._checkpoint, self._worker.run, kube, self._ask)
        publisher = Publisher(kube, await names.start())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(publisher.run(), name="slices")
            async with aclosing(self._node.picture.follow()) as pictures:
                async for picture in pictures:
                    if picture is not None:
                        await self._show(picture, names, publisher)

    async def _show(self, picture: Picture, names: DeviceNames, publisher: Publisher) -> None:
        inventory, facts = picture.inventory, picture.facts
        tables = await asyncio.shield(picture.tables)
        await self._asked.wait()  # or each start would write taints, and take them away again

        async def unpublish(left: frozenset[str], without: Collection[GpuUuid]) -> str:
            named = name_all(names.known, inventory, None)
            return await publisher.rid_of(left, self._contents(picture, tables, named, without))

        await names.name(inventory, unpublish)
        known, division = names.known, self._division(inventory)
        refusals = {
            **{gpu.uuid: facts.injection.get(gpu.uuid, "") for gpu in inventory.gpus},
            **dict.fromkeys(division.of(holds.Owner.DEVICE_PLUGIN), _ELSEWHERE),
            **(self._withheld(division) if self._pods is None else {}),
        }
        levels = {gpu.uuid: for_claims(gpu, facts, "") for gpu in inventory.gpus}
        everything = whole_gpus(inventory, tables, known, levels)
        self._devices = describe(everything.devices, refusals, KIND)
        self._described.set()
        self._health.set(PoolHealth(self._pool, MappingProxyType({known.of(gpu): its for gpu, its in levels.items()})))
        publisher.want(self._contents(picture, tables, known))

    def _contents(self, picture: Picture, tables: Tables, names: Names, without: Collection[GpuUuid] = ()) -> Contents:
        division = self._division(picture.inventory)
        withheld = self._withheld(division)
        gpus = picture.inventory.gpus
        health = {gpu.uuid: for_claims(gpu, picture.facts, withheld.get(gpu.uuid, "")) for gpu in gpus}
        elsewhere = division.of(holds.Owner.DEVICE_PLUGIN).union(without)
        return whole_gpus(picture.inventory, tables, names, health, elsewhere)
