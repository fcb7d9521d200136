"""Claims (Dynamic Resource Allocation) in the daemon: what they may have, served to kubelet, told to the scheduler.

Three modes, by `dra.gpus`: none (the device plugin has all GPUs), all, or some; it may change at any time. Whatever the
mode, a GPU that is in use by way of its former owner is withheld from the new one until it is free, so this also runs
where claims have no GPU any more but some are still prepared (see `dra_service` for when it ends).

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
from dra.claim import devices_from
from dra.devices import NodeDevices, describe
from dra.health import PoolHealth, add_health_calls
from dra.in_use import may_still_run
from dra.names import name_all
from dra.prepare import Preparing, Surroundings
from dra.recovery import Recovery
from dra.registration import Registered
from dra.server import add_claim_calls
from dra.slices import DRIVER, whole_gpus
from dra.status import DeviceStatus
from gpuplugin.daemon.claims_state import ClaimsState
from gpuplugin.daemon.dra_names import DeviceNames
from gpuplugin.daemon.dra_owners import Owners
from gpuplugin.daemon.dra_take_over import predecessor, take_over, watch
from gpuplugin.discovery.worker import Worker
from gpuplugin.errors import CheckpointError, GpuPluginError, KubeUnconfigured
from gpuplugin.kube.backoff import Backoff
from gpuplugin.model import holds
from gpuplugin.plan.desired import for_claims
from gpuplugin.plan.ledger import Ledger
from gpuplugin.serving.latest import Latest
from gpuplugin.serving.pace import next_beat
from gpuplugin.serving.pod_resources import allocatable, pod_resources

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
    from gpuplugin.kube.objects import Device
    from gpuplugin.model.ids import GpuUuid
    from gpuplugin.model.inventory import Inventory
    from gpuplugin.serving.pod_resources import PodResources
    from gpuplugin.topology.allocate import Tables

log = structlog.get_logger()

FIRST_LOOK_SECONDS = 3.0
"""How long the first look may take before claims are served without it, so that they can at least be unprepared."""
ASK_AGAIN_SECONDS = 10.0
"""Between two questions to kubelet, while a pod still has a GPU that claims shall have."""
LOOK_SECONDS = 1.0
QUIET_SECONDS = 150.0
"""How long there must be nothing to do before claims are not served any more; kubelet tries again within a minute."""
SETTLE_SECONDS = 1.0
"""From a change of owner to that question: what was given away before it, kubelet must have noted."""
_NOT_LOOKED = "the GPUs have not been looked at yet"


class Claims:
    """All that is done for claims on this node, on its one event loop. records: where prepared claims are recorded."""

    def __init__(self, config: Config, node: Node, records: Path) -> None:
        self._config, self._node = config, node
        self._pool = config.node.name
        self._kubelet = Path(config.paths.kubelet)
        self._checkpoint = Checkpoint(records)
        self._worker = Worker("claims")
        self._kube: Kube | None = None
        self._preparing: Preparing | None = None
        self._owners = Owners(node, self._had_by_claims)
        self._held_before: Mapping[GpuUuid, str] = {}
        self._kept_before: frozenset[GpuUuid] = frozenset()
        self._name_file = records.with_name("device-names.json")
        self._before = predecessor(config)
        self._devices = NodeDevices(MappingProxyType({}), _NOT_LOOKED)
        self._there: tuple[Device, ...] = ()
        self._cannot: dict[GpuUuid, str] = {}
        self._described, self._asked, self._moved = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._recovery: Recovery | None = None
        self._health: Latest[PoolHealth | None] = Latest(None)
        self._publisher: Publisher | None = None
        self._registered: Registered | None = None
        self._names: DeviceNames | None = None
        self._waits_for = "the first look at the GPUs has not ended yet"
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
        self._waits_for = "another driver serves claims on this node, or what it left cannot be read (see the log)"
        await take_over(self._before, self._checkpoint, self._worker.run, self._node)
        kube = await self._connect()
        statuses = DeviceStatus(DRIVER, kube)
        self._preparing = preparing = Preparing(
            DRIVER,
            self._pool,
            kube,
            self._checkpoint,
            self._worker.run,
            Surroundings(
                devices=lambda: self._devices,
                held=lambda: self._owners.pods,
                in_use=self._in_use,
                complete=self._settled,
            ),
        )
        preparing.told, preparing.changed = statuses.tell, self._records_changed

        def over(uid: str) -> None:
            statuses.drop(uid)
            self._before.forget(uid)

        preparing.over = over
        self._kube = kube
        self._recovery = Recovery(preparing, self._checkpoint, self._worker.run, kube, self._claims_in_pods)

        def add_services(server: grpc.aio.Server) -> None:
            add_claim_calls(server, preparing)
            add_health_calls(server, self._health)

        try:
            async with kube, asyncio.TaskGroup() as tasks:
                self._registered = Registered(self._kubelet, DRIVER, add_services)
                tasks.create_task(self._registered.run(), name="serve claims")
                tasks.create_task(self._ask_kubelet(), name="ask kubelet")
                tasks.create_task(self._settle(self._recovery), name="settle claims")
                tasks.create_task(watch(self._before), name="watch for another driver")
                tasks.create_task(self._publish(kube), name="publish slices")
        finally:
            await statuses.close()
            self._worker.end()

    @property
    def state(self) -> ClaimsState:
        """How claims are served now."""
        registered, publisher = self._registered, self._publisher
        outcome, trouble = (
            (publisher.state.value.outcome, publisher.state.value.trouble)
            if publisher
            else (None, self._names.trouble if self._names else self._waits_for)
        )
        return ClaimsState(
            driver=DRIVER,
            registered=registered is not None and registered.registered,
            published=len(outcome.offered) if outcome else None,
            unregistered=(registered.trouble or "kubelet has not taken notice yet") if registered else self._waits_for,
            unpublished=trouble or "not written yet",
        )

    async def finished(self) -> None:
        """Return once there is nothing left to serve, nor anything that kubelet may still ask about.

        Claims have no GPU, the scheduler sees an empty pool, and nothing is prepared or allocated from it. Kubelet
        could not end a pod with a claim of ours, prepared or not, without us: it looks after those each minute.
        """
        pauses = Backoff(QUIET_SECONDS, 10 * QUIET_SECONDS)
        pause, calls, idle_since = pauses.next(), -1, 0.0
        while True:
            await next_beat(LOOK_SECONDS)
            now = asyncio.get_running_loop().time()
            if not self._idle or self._calls != calls:
                calls, idle_since = self._calls, now
            elif now - idle_since > pause:
                if await self._unneeded():
                    return
                pause, idle_since = pauses.next(), now

    @property
    def _calls(self) -> int:
        return self._preparing.calls if self._preparing else 0

    @property
    def _idle(self) -> bool:
        outcome = self._publisher.state.value.outcome if self._publisher else None
        return (
            not self._node.config.dra.gpus
            and self._recovery is not None
            and self._recovery.done
            and not (self._checkpoint.records or self._checkpoint.unreadable or self._had_by_claims().holds)
            and outcome is not None
            and not outcome.offered
        )

    async def _unneeded(self) -> bool:
        try:
            await self._worker.run(self._checkpoint.load)
            known = await self._claims_in_pods() or (
                self._kube and await self._kube.claims(lambda claim: bool(devices_from(claim, DRIVER, self._pool)))
            )
        except GpuPluginError as error:
            log.debug("it is not known whether claims must still be served", reason=str(error))
            return False
        return not known and self._idle

    async def _connect(self) -> Kube:
        from gpuplugin.kube.client import Kube  # noqa: PLC0415 - not before kubelet is served

        pauses, self._waits_for = Backoff(1.0, 60.0), ""
        while True:
            try:
                return Kube(self._config.paths.kubeconfig_file)
            except KubeUnconfigured as error:
                if str(error) != self._waits_for:
                    self._waits_for = str(error)
                    log.error("claims cannot be served", reason=self._waits_for)  # noqa: TRY400 - for people
                await asyncio.sleep(pauses.next())

    # -- who has what -------------------------------------------------------

    def _had_by_claims(self) -> Ledger:
        return self._checkpoint.ledger + (self._preparing.intended if self._preparing else Ledger())

    def _held(self) -> Mapping[GpuUuid, str]:
        """Give the GPUs that the lists must not offer; asked before lists go out under a new configuration."""
        inventory = self._node.inventory
        changed, kept = self._owners.configured(), self._owners.kept_back.keys()
        if changed:
            self._describe()
        if kept - self._kept_before:
            self._moved.set()
        self._kept_before = frozenset(kept)
        self._held_before = self._withheld(inventory) if inventory else {}
        return self._held_before

    def _withheld(self, inventory: Inventory) -> Mapping[GpuUuid, str]:
        division = self._owners.division(inventory)
        if not self._checkpoint.unreadable:
            return division.withheld
        file = self._checkpoint.folder / f"{min(self._checkpoint.unreadable)}.json"
        why = f"{file} makes no sense: a claim has GPUs, and nobody knows which, until kubelet and API server are asked"
        return {**dict.fromkeys(division.of(holds.Owner.DEVICE_PLUGIN), why), **division.withheld}

    def _records_changed(self) -> None:
        """Have the lists sent anew, where what is recorded keeps a GPU from its owner, or does no longer."""
        before = self._held_before
        if self._held() != before:
            self._node.offer()

    def _in_use(self, record: Record, newcomers: Collection[str]) -> str:
        return may_still_run(self._kubelet / "pods", record, newcomers)

    async def _claims_in_pods(self) -> Collection[tuple[str, str]]:
        found = await self._ask()
        return {(one.namespace, one.claim) for one in found.claimed if one.driver == DRIVER and one.pool == self._pool}

    async def _ask(self) -> PodResources:
        return await pod_resources(self._config.paths.pod_resources_socket)

    async def _ask_kubelet(self) -> None:
        """Find out who has GPUs by way of their former owner: once for each change, and again while somebody has."""
        pauses, trouble = Backoff(0.5, ASK_AGAIN_SECONDS), ""
        await self._node.looked.wait()
        while True:
            pause = ASK_AGAIN_SECONDS
            self._moved.clear()
            if self._owners.unsettled:
                try:
                    await self._ask_once()
                    trouble = ""
                except GpuPluginError as error:
                    if str(error) != trouble:
                        trouble = str(error)
                        log.warning("it is not known who has GPUs of claims", reason=trouble)
                if self._owners.kept_back:
                    pause = pauses.next()
                else:
                    pauses.reset()
            self._asked.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._moved.wait()
                await asyncio.sleep(SETTLE_SECONDS)

    async def _ask_once(self) -> None:
        """Ask what kubelet could give, then what it has given: what was on its way between the two is in the second."""
        question = self._owners.question()
        offered = await allocatable(self._config.paths.pod_resources_socket)
        news = self._owners.take(question, offered, await self._ask())
        await self._worker.run(self._checkpoint.load)  # another instance may have unprepared some
        if news:
            self._describe()
            self._node.offer()
        else:
            self._records_changed()

    async def _settle(self, recovery: Recovery) -> None:
        await self._described.wait()
        await recovery.keep_trying()
        await recovery.keep_reclaiming()

    async def _settled(self) -> None:
        if self._recovery is not None:
            await self._recovery.complete()

    # -- what there is ------------------------------------------------------

    async def _publish(self, kube: Kube) -> None:
        """Bring what the node knows to the scheduler, to kubelet's health stream and to those who prepare."""
        from dra.publisher import Publisher  # noqa: PLC0415 - not before kubelet is served

        names = DeviceNames(self._pool, self._name_file, self._checkpoint, self._worker.run, kube, self._ask)
        self._names = names
        self._publisher = publisher = Publisher(kube, await names.start())
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
        known = names.known
        levels = {gpu.uuid: for_claims(gpu, facts, "") for gpu in inventory.gpus}
        self._there = whole_gpus(inventory, tables, known, levels).devices
        self._cannot = {gpu.uuid: facts.injection.get(gpu.uuid, "") for gpu in inventory.gpus}
        self._describe()
        self._described.set()
        self._health.set(PoolHealth(self._pool, MappingProxyType({known.of(gpu): its for gpu, its in levels.items()})))
        publisher.want(self._contents(picture, tables, known))

    def _describe(self) -> None:
        """Say what devices there are, and which of them cannot be given at this moment."""
        if self._there:
            self._devices = describe(self._there, {**self._cannot, **self._owners.refused}, KIND)

    def _contents(self, picture: Picture, tables: Tables, names: Names, without: Collection[GpuUuid] = ()) -> Contents:
        gpus = picture.inventory.gpus
        division = self._owners.division(picture.inventory)
        withheld = {**self._owners.kept_back, **division.withheld}
        health = {gpu.uuid: for_claims(gpu, picture.facts, withheld.get(gpu.uuid, "")) for gpu in gpus}
        elsewhere = division.of(holds.Owner.DEVICE_PLUGIN).union(without)
        return whole_gpus(picture.inventory, tables, names, health, elsewhere)
