"""The loop of the daemon: something wakes it, it looks at the machine, decides, and publishes.

What was seen last stays in force when a look fails; that nothing is known is said through health, never by a shorter
list. An XID does not wait for a look: it changes health, and the lists that follow from it are sent at once.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import structlog

from gpuplugin.daemon import fault_log
from gpuplugin.daemon.claims_state import ClaimsState
from gpuplugin.daemon.wakeup import Wakeup
from gpuplugin.deviceplugin.response import Delivery
from gpuplugin.discovery.findings import finding_of, finding_of_error
from gpuplugin.discovery.observe import observe
from gpuplugin.errors import NvmlError, NvmlUnavailable, ObserveError
from gpuplugin.model.xid import describe
from gpuplugin.model.xid import kind as xid_kind
from gpuplugin.plan.desired import Facts, all_units, desired
from gpuplugin.plan.faults import FaultKind, Policy, policy
from gpuplugin.plan.health import Health, Recovery, after_probe, after_xid, forget, with_cordons
from gpuplugin.plan.mps import groups as mps_groups
from gpuplugin.plan.units import Units
from gpuplugin.serving.latest import Latest
from gpuplugin.serving.pace import next_beat
from gpuplugin.topology.allocate import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuplugin.config import Config
    from gpuplugin.daemon.injection import Injection
    from gpuplugin.daemon.plugins import Plugins
    from gpuplugin.discovery.nvml_thread import NvmlThread
    from gpuplugin.discovery.sysfs import Sysfs
    from gpuplugin.model.condition import Condition
    from gpuplugin.model.health import XidEvent
    from gpuplugin.model.ids import DeviceUuid, GpuUuid
    from gpuplugin.model.inventory import Inventory
    from gpuplugin.plan.mps import MpsDaemons, MpsGroup

log = structlog.get_logger()

RECOVERY_ACTION_CHANGED = 154
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.5, 10.0


@dataclass(frozen=True, slots=True)
class Picture:
    """All that is known at one moment; tables: of this inventory, done when they are built · config: in force then."""

    inventory: Inventory
    tables: asyncio.Future[Tables]
    facts: Facts
    config: Config


class Node:
    """Everything that is known and decided about this node, on one event loop."""

    def __init__(
        self,
        config: Config,
        thread: NvmlThread,
        sysfs: Sysfs,
        injection: Injection,
        mps: MpsDaemons,
        plugins: Plugins,
    ) -> None:
        self._config = self._wanted = config
        self._thread, self._sysfs = thread, sysfs
        self._injection, self._mps, self._plugins = injection, mps, plugins
        self.wake = Wakeup()
        self.looked = asyncio.Event()
        self.gpus_changed: Latest[object] = Latest(None)
        self.inventory: Inventory | None = None
        self._health = Health()
        self._units = Units((), ())
        self._groups: tuple[MpsGroup, ...] = ()
        self._facts = Facts(self._health)
        self._delivery = Delivery.of(config)
        self._tables: asyncio.Task[Tables] | None = None
        self._cordons: Mapping[GpuUuid, str] = {}
        self._conditions: dict[GpuUuid, Condition] = {}
        self._trouble = ""
        self._told: set[str] = set()
        self._retry = FIRST_RETRY_SECONDS
        self.picture: Latest[Picture | None] = Latest(None)
        self.held: Callable[[], Mapping[GpuUuid, str]] = dict
        self.held_over: Callable[[], Mapping[DeviceUuid, str]] = dict
        self.claims: Callable[[], ClaimsState] = ClaimsState

    @property
    def trouble(self) -> str:
        """Why the last look at the GPUs failed; "" where it did not."""
        return self._trouble

    @property
    def units(self) -> Units:
        """The devices of the device plugin, as the configuration in force has them."""
        return self._units

    @property
    def config(self) -> Config:
        """The configuration that is in force."""
        return self._config

    def configure(self, config: Config) -> None:
        """Do as this configuration says, from the next look on, which is asked for."""
        self._wanted = config
        self.wake("configuration")

    async def keep_looking(self) -> None:
        """Look once, then whenever woken, and at the latest every `rescanSeconds`; sooner while something is amiss."""
        reasons: tuple[str, ...] = ("start",)
        while True:
            log.debug("looking", reasons=reasons)
            pause = self._config.rescan_seconds if await self._look() else self._next_retry()
            reasons = await self.wake.wait(pause) or ("rescan",)

    async def keep_probing(self) -> None:
        """Ask each GPU, every `health.probeSeconds`, whether it can be used."""
        while True:
            await next_beat(self._config.health.probe_seconds)
            if self.inventory is None or self._health.unknown:
                continue
            for gpu in self.inventory.gpus:
                await self._probe(gpu.uuid)
            await self._ask_mps()
            if self._incomplete():
                self.wake("something is missing")

    def cordon(self, cordons: Mapping[GpuUuid, str]) -> None:
        """Keep exactly these GPUs out of service, each for its reason."""
        self._cordons = cordons
        self._set_health(self._with_cordons(self._health))

    def on_xid(self, event: XidEvent) -> None:
        """Take a GPU or an instance out of service at once, if this XID is one that does."""
        text = describe(event.xid)
        known = {gpu.uuid: gpu.index for gpu in self.inventory.gpus} if self.inventory else {}
        where: dict[str, Any] = {"device": event.gpu, "gpu": known.get(event.gpu)}
        if event.xid == RECOVERY_ACTION_CHANGED:
            log.info("the driver's wish has changed", xid=event.xid, **where)
            self.wake("XID 154")
            return
        made_of_it = policy(FaultKind.XID, self._config.health, xid_kind(event.xid))
        if not self._config.health.checks.handles(event.xid) or made_of_it is Policy.IGNORE:
            log.info("XID left to the application", xid=event.xid, reason=text, **where)
        else:
            log.warning("XID", xid=event.xid, reason=text, gi=event.gpu_instance, ci=event.compute_instance, **where)
            self._set_health(after_xid(self._health, event, text, time.monotonic(), made_of_it))

    def on_events_trouble(self, reason: str | None) -> None:
        """Tell that XIDs are not being heard (None: they are again); probes still find a lost GPU."""
        if reason:
            log.warning("XIDs cannot be waited for: a sick GPU is found by probes alone", reason=reason)
        else:
            log.info("XIDs are heard again")

    def close(self) -> None:
        """Give up what is still being made."""
        if self._tables is not None:
            self._tables.cancel()

    async def _look(self) -> bool:
        """Observe, decide and publish. False: it did not work, try again soon."""
        try:
            inventory = await observe(self._thread, self._sysfs, self.inventory)
        except (NvmlError, ObserveError) as error:
            self._failed(error)
            return False
        self._trouble, self._retry = "", FIRST_RETRY_SECONDS
        self._told.clear()
        if self.inventory is None or self._health.unknown:
            self.gpus_changed.set(None)
            log.info("NVML answers", driver=inventory.driver.version, gpus=len(inventory.gpus))
        await self._prepare(inventory, self._wanted)
        self.offer()
        self.looked.set()
        return True

    async def _prepare(self, inventory: Inventory, config: Config) -> None:
        """Make ready what the devices need to be given, and only then take picture and configuration over, as one."""
        units = all_units(inventory, config)
        self._injection.adopt(config)
        cannot_inject = await self._injection.publish(inventory)
        groups = mps_groups(units.units, config)
        mps = await self._mps.ready(groups)
        for remark in units.remarks:
            if remark not in self._units.remarks:
                log.warning("configuration and machine", reason=remark)
        self._config, self._units, self._groups = config, units, groups
        self._delivery = Delivery.of(config, self._injection.nodes)
        self._take(inventory)
        self._facts = Facts(self._health, cannot_inject, mps)

    async def _ask_mps(self) -> None:
        """See whether control daemons have come or gone since the last look."""
        groups = self._groups
        states = await self._mps.ready(groups) if groups else {}
        if groups is self._groups and states != self._facts.mps:
            self._facts = replace(self._facts, mps=states)
            self.offer()

    def _failed(self, error: NvmlError | ObserveError) -> None:
        self._trouble = str(error)
        if self._trouble not in self._told:  # a look and a probe may each have a reason of their own, in turn
            self._told.add(self._trouble)
            tell = log.error if self._config.flags.fail_on_init_error else log.info
            tell("the GPUs cannot be looked at: trying again", reason=self._trouble)
        if self.inventory is not None:
            self._set_health(self._health.with_unknown(f"nothing is known of the GPUs: {error}", time.monotonic()))

    def _next_retry(self) -> float:
        now, self._retry = self._retry, min(self._retry * 2, LONGEST_RETRY_SECONDS)
        return now

    def _take(self, inventory: Inventory) -> None:
        before, self.inventory = self.inventory, inventory
        known = forget(self._health.with_unknown(""), frozenset(gpu.uuid for gpu in inventory.gpus))
        self._change_health(self._with_cordons(known))
        if inventory is before:
            return
        present = tuple(gpu.uuid for gpu in inventory.gpus)
        if present != self.gpus_changed.value or _mended(before, inventory):
            self.gpus_changed.set(present)
        for unreadable in inventory.unreadable:
            log.warning("GPU cannot be read", gpu=unreadable.index, pci=unreadable.pci, reason=unreadable.reason)
        for warning in inventory.warnings:
            log.warning("the machine looks odd", reason=warning)
        self._tables = asyncio.create_task(self._build_tables(inventory, self._tables))

    async def _build_tables(self, inventory: Inventory, before: asyncio.Future[Tables] | None) -> Tables:
        """Make what the choice of devices is looked up in, on a thread: a tenth of a second for 16 GPUs."""
        earlier = None
        if before is not None:
            await asyncio.wait([before])
            earlier = before.result() if not before.cancelled() and before.exception() is None else None
        return await asyncio.to_thread(Tables.build, inventory, earlier)

    async def _probe(self, gpu: GpuUuid) -> None:
        try:
            answer = await self._thread.call(self._thread.nvml.probe, gpu, gpu=gpu)
        except NvmlUnavailable as error:
            self._failed(error)
            self.wake("NVML is gone")
            return
        except NvmlError as error:
            finding = finding_of_error(error)
        else:
            finding = finding_of(answer, self._fault_in_look(gpu), self._conditions.get(gpu))
            self._conditions[gpu] = answer.condition
        if self.inventory is None or gpu not in {one.uuid for one in self.inventory.gpus}:
            return  # a look that came in between has found it gone: that it does not answer is no fault
        settings = self._config.health
        rule = Recovery(settings.recovery_probes, settings.quiet_seconds)
        now = time.monotonic()
        self._set_health(after_probe(self._health, gpu, finding, now, rule, lambda kind: policy(kind, settings)))

    def _fault_in_look(self, uuid: GpuUuid) -> str:
        gpus = self.inventory.gpus if self.inventory else ()
        return next((gpu.fault for gpu in gpus if gpu.uuid == uuid and gpu.fault), "")

    def _set_health(self, health: Health) -> None:
        if self._change_health(health):
            self.offer()

    def _change_health(self, health: Health) -> bool:
        """Take it over, and say in the log what has come and gone. False: nothing that others are told of."""
        before, self._health = self._health, health
        if health.told == before.told:
            return False
        indexes = {gpu.uuid: gpu.index for gpu in self.inventory.gpus} if self.inventory else {}
        fault_log.tell(before, health, indexes)
        return True

    def _with_cordons(self, health: Health) -> Health:
        here = {gpu.uuid for gpu in self.inventory.gpus} if self.inventory else set()
        cordons = {gpu: reason for gpu, reason in self._cordons.items() if gpu in here}
        return with_cordons(health, cordons, time.monotonic())

    def offer(self) -> None:
        """Bring what is known to kubelet, and to those who follow `picture`.

        To be called when `held` (GPUs that the device plugin must not hand out yet, since a claim has them) or
        `held_over` (devices that pods have as they were offered before) says otherwise.
        """
        if self.inventory is None or self._tables is None:
            return
        held: dict[DeviceUuid, str] = {device: why for device, why in self.held().items()}  # noqa: C416 - wider keys
        held = {**self.held_over(), **held}
        facts = replace(self._facts, health=self._health, held=held)
        self.picture.set(Picture(self.inventory, self._tables, facts, self._config))
        resources = desired(self._units, facts, self._plugins.resources)
        pack = self._config.flags.plugin.shared_devices_allocation_policy == "packed"
        self._plugins.publish(resources, self._tables, self._delivery, pack=pack)

    def _incomplete(self) -> bool:
        """Whether another look may find what the last one missed."""
        inventory = self.inventory
        return inventory is not None and bool(
            self._facts.injection or inventory.unreadable or any(gpu.fault for gpu in inventory.gpus)
        )


def _mended(before: Inventory | None, now: Inventory) -> bool:
    """Whether a GPU can be read again that could not be: it may have missed that events were registered for."""
    sick = {gpu.uuid for gpu in before.gpus if gpu.fault is not None} if before else set()
    return any(gpu.uuid in sick for gpu in now.gpus if gpu.fault is None)
