"""Metrics in the daemon: measured every few seconds on the NVML thread, kept as one snapshot, served from that.

A scrape never touches NVML, and a measurement is a call like any other there: one that hangs costs its GPU's numbers,
not the page. A GPU that cannot be measured has no numbers until it can; nothing old is shown for it.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import time
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

import gpuplugin
from gpuplugin.config.rules import host_and_port
from gpuplugin.daemon import attribution
from gpuplugin.errors import CollectorsInvalid, MetricsUnserved, NvmlError, NvmlUnavailable, PodResourcesUnavailable
from gpuplugin.metrics import collectors, instruments, registry
from gpuplugin.metrics.collect import Observed, families
from gpuplugin.metrics.exposition import Exposition, labels
from gpuplugin.metrics.http import Access, Address, MetricsServer
from gpuplugin.metrics.series import Family, Sample
from gpuplugin.serving.pace import next_beat
from gpuplugin.serving.pod_resources import PodResources, pod_resources

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from gpuplugin.config import Config
    from gpuplugin.daemon.node import Node, Picture
    from gpuplugin.daemon.plugins import Plugins
    from gpuplugin.discovery.nvml_thread import NvmlThread
    from gpuplugin.metrics.series import Series
    from gpuplugin.model.ids import GpuUuid
    from gpuplugin.model.inventory import Gpu, Inventory
    from gpuplugin.model.telemetry import Quantity, Telemetry

log = structlog.get_logger()

PODS_SECONDS: Final = 5.0
"""Between two questions to kubelet, whatever the interval of collection is."""
PODS_KEPT_SECONDS: Final = 60.0
"""How long its last answer holds when it gives no new one: a kubelet that restarts takes nobody's devices away."""
RENEW_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 5.0

_NOBODY = PodResources((), ())


class Metrics:
    """Collects and serves, on the daemon's event loop."""

    def __init__(self, config: Config, node: Node, thread: NvmlThread, plugins: Plugins) -> None:
        self._config, self._settings = config, config.metrics
        self._node, self._thread, self._plugins = node, thread, plugins
        self._hostname = config.node.name or socket.gethostname()
        self._pods, self._pods_at, self._pods_trouble = _NOBODY, -PODS_KEPT_SECONDS, "not asked yet"
        self._snapshot: Exposition | None = None
        access = (self._settings.certificate, self._settings.key, self._settings.users)
        self._server = MetricsServer(
            Address(*host_and_port(self._settings.address)),
            Access(*(Path(path) if path else None for path in access)),
            lambda: self._snapshot,
        )

    async def run(self) -> None:
        """Collect and serve until cancelled."""
        series = self._chosen()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._serve(), name="serve metrics")
            tasks.create_task(self._follow_pods(), name="ask kubelet for pods")
            tasks.create_task(self._collect(series), name="collect metrics")

    def _chosen(self) -> tuple[Series, ...]:
        """Give the series that the list asks for. One that makes no sense is as none: series too many harm least."""
        path = self._settings.collectors
        if path is None:
            return registry.DEVICE_SERIES
        try:
            chosen = collectors.read(Path(path).read_text(encoding="utf-8"), path)
        except (CollectorsInvalid, OSError, UnicodeDecodeError) as error:
            log.error("the list of metrics is not followed: all are shown", reason=str(error))  # noqa: TRY400
            return registry.DEVICE_SERIES
        if chosen.missing:
            log.warning("the list of metrics has some that NVML does not tell", file=path, series=chosen.missing)
        return chosen.series

    async def _serve(self) -> None:
        trouble = ""
        while True:
            try:
                await self._server.start()
                break
            except MetricsUnserved as error:
                if str(error) != trouble:
                    trouble = str(error)
                    log.error("metrics cannot be served: trying again", reason=trouble)  # noqa: TRY400 - for people
                await asyncio.sleep(RETRY_SECONDS)
        tls, users = self._settings.certificate is not None, self._settings.users is not None
        log.info("metrics are served", address=self._settings.address, port=self._server.port, tls=tls, users=users)
        try:
            await self._keep_certificate()
        finally:
            await self._server.close()

    async def _keep_certificate(self) -> None:
        trouble = ""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                self._server.renew()
                trouble = ""
            except MetricsUnserved as error:
                if str(error) != trouble:
                    trouble = str(error)
                    log.warning("the certificate before stays in use", reason=trouble)

    async def _follow_pods(self) -> None:
        kubelet = self._config.paths.pod_resources_socket
        while True:
            try:
                self._pods, self._pods_at, self._pods_trouble = await pod_resources(kubelet), time.monotonic(), ""
            except PodResourcesUnavailable as error:
                if str(error) != self._pods_trouble:
                    self._pods_trouble = str(error)
                    log.warning("metrics cannot tell pods", reason=self._pods_trouble)
                if time.monotonic() - self._pods_at > PODS_KEPT_SECONDS:
                    self._pods = _NOBODY
            await next_beat(PODS_SECONDS)

    async def _collect(self, series: tuple[Series, ...]) -> None:
        wanted = frozenset(one.quantity for one in (*series, *registry.NVLINK_SERIES) if one.quantity is not None)
        interval = self._settings.interval_seconds
        await self._node.looked.wait()
        while True:
            began = time.monotonic()
            picture = self._node.picture.value
            if picture is not None:
                telemetry = await self._measure(picture.inventory, wanted)
                observed = self._observed(picture, telemetry, time.monotonic() - began)
                self._snapshot = Exposition(partial(_all, observed, series))
            await next_beat(interval)

    async def _measure(self, inventory: Inventory, wanted: Collection[Quantity]) -> dict[GpuUuid, Telemetry]:
        found: dict[GpuUuid, Telemetry] = {}
        read = self._thread.nvml.telemetry
        for gpu in inventory.gpus:
            try:
                found[gpu.uuid] = await self._thread.call(read, gpu.uuid, _slots(gpu), wanted, gpu=gpu.uuid)
            except NvmlUnavailable:
                break
            except NvmlError:
                continue
        return found

    def _observed(self, picture: Picture, telemetry: dict[GpuUuid, Telemetry], took: float) -> Observed:
        inventory, offered, dra = picture.inventory, self._plugins.offered, picture.config.dra
        held = attribution.holdings(self._pods, inventory)
        health = attribution.health(inventory, offered, picture.facts, dra)
        known = self._pods is not _NOBODY
        return Observed(
            inventory,
            self._hostname,
            telemetry,
            held,
            pods_known=not self._pods_trouble,
            health=health,
            faults=picture.facts.health.told,
            resources=tuple((one.name, one.usable, one.size - one.usable) for one in offered),
            free=attribution.free(inventory, offered, held, health, dra) if known else {},
            last_xids=dict(instruments.XIDS.last),
            at=time.time(),
            took=took,
        )


def _all(observed: Observed, series: Sequence[Series]) -> Iterable[Family]:
    return chain(families(observed, series), _process(), instruments.families())


def _slots(gpu: Gpu) -> dict[int, int]:
    """Give GPU instance → slot of the first MIG device in it."""
    return {mig.gpu_instance: mig.index for mig in reversed(gpu.mig_devices)}


def _process() -> Iterator[Family]:
    """Say what the daemon is and takes, at the moment when it is asked."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    yield Family(registry.BUILD_INFO, [Sample(labels({"version": gpuplugin.__version__}), 1)])
    yield Family(registry.MEMORY, [Sample("", pages * os.sysconf("SC_PAGE_SIZE"))])
    yield Family(registry.CPU, [Sample("", used.ru_utime + used.ru_stime)])
