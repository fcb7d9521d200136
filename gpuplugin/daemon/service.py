"""All running parts of the daemon, started in the order that has kubelet served soonest, and ended together."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from gpuplugin.daemon import explain_socket
from gpuplugin.daemon.beside import keep_running
from gpuplugin.daemon.cordon import Cordons, CordonWatch
from gpuplugin.daemon.dra_service import ClaimsService
from gpuplugin.daemon.features import features
from gpuplugin.daemon.injection import Injection
from gpuplugin.daemon.mps_folders import MpsFoldersOnHost
from gpuplugin.daemon.node import Node
from gpuplugin.daemon.plugins import Plugins
from gpuplugin.daemon.profiles import ProfileChoice, node_labels
from gpuplugin.daemon.readiness import StatusSocket, readiness
from gpuplugin.daemon.reload import Reload
from gpuplugin.discovery.events import XidWatch
from gpuplugin.discovery.nvml_thread import NvmlThread
from gpuplugin.discovery.sysfs import Sysfs
from gpuplugin.errors import NvmlError
from gpuplugin.metrics import instruments
from gpuplugin.serving.socket import serves

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from gpuplugin.config import Config
    from gpuplugin.daemon.answers import Answers
    from gpuplugin.daemon.host import Host
    from gpuplugin.daemon.reload import ConfigSource
    from gpuplugin.model.health import XidEvent
    from gpuplugin.model.ids import GpuUuid
    from gpuplugin.plan.desired import OfferedResource

log = structlog.get_logger()

PREPARED_CLAIMS = "plugins/gpu.nvidia.com/claims"
"""Where prepared claims are recorded, in kubelet's folder."""

CLAIMS_REGISTRATIONS = "plugins_registry"
"""Where kubelet finds who serves claims, in its folder."""

CLOSING_SECONDS = 2.0
"""How long NVML may take to shut down; a hung call of it must not keep the daemon from ending."""


async def serve(config: Config, host: Host, stop: asyncio.Event, source: ConfigSource | None = None) -> None:
    """Run until `stop` is set, then take everything back that should not outlive us.

    source: where the configuration is read again when it changes; None: it stays as it is.
    """
    async with NvmlThread(host.nvml, on_call=instruments.nvml_called) as thread, asyncio.TaskGroup() as tasks:
        plugins = Plugins(config.paths.registration_socket, tasks)
        injection = Injection(config, host)
        node = Node(config, thread, Sysfs(host.sysfs), injection, MpsFoldersOnHost(), plugins)
        claims = ClaimsService(config, node, Path(config.paths.kubelet, PREPARED_CLAIMS))
        cordons = CordonWatch(Cordons(Path(config.paths.state)), node.cordon)
        cordons.look()
        running = [
            *_answering(config, host, node, plugins, tasks),
            *_explaining(config, source, host, node, plugins, tasks),
            *_looking(source, config, node, tasks),
            tasks.create_task(node.keep_probing(), name="probe"),
            tasks.create_task(cordons.keep_watching(), name="watch cordons"),
            tasks.create_task(injection.watch(node.wake), name="watch the driver's files"),
            tasks.create_task(_listen(node, thread), name="listen"),
            _beside(tasks, "tell features", partial(_tell_features, config, host, node)),
            _beside(tasks, "tell kubelet's settings", partial(_tell_kubelet_settings, config, host, node)),
            _beside(tasks, "hold back what pods have as it was offered before", partial(_hold_over, config, node)),
            tasks.create_task(claims.run(), name="claims"),
            *_startup_taint(config, host, node, plugins, tasks),
            *_metrics(config, node, thread, plugins, tasks),
            *_labels(config, host, node, plugins, tasks),
            *_telling(config, node, tasks),
        ]
        await stop.wait()
        plugins.close()
        for task in running:
            task.cancel()
        with suppress(TimeoutError, NvmlError):
            async with asyncio.timeout(CLOSING_SECONDS):
                await thread.call(host.nvml.close)
    node.close()
    if config.cdi.remove_on_stop and not _another_serves(config):
        injection.remove()


def _another_serves(config: Config) -> bool:
    """Whether an instance before or after us hands GPUs out, by either way; to be asked once our sockets are closed.

    It needs the document that it shares with us: a container that starts in the moment without it would fail.
    """
    folders = (config.paths.registration_socket.parent, Path(config.paths.kubelet, CLAIMS_REGISTRATIONS))
    return any(serves(folder) for folder in folders)


def _beside(tasks: asyncio.TaskGroup, part: str, run: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    """Begin a part that pods do not rely on, and that must not end the daemon."""
    return tasks.create_task(keep_running(part, run), name=part)


def _answering(
    config: Config, host: Host, node: Node, plugins: Plugins, tasks: asyncio.TaskGroup
) -> Iterator[asyncio.Task[None]]:
    if config.paths.status:
        status = StatusSocket(Path(config.paths.status), lambda: readiness(node, plugins, host.sysfs))
        yield tasks.create_task(status.serve(), name="answer probes")


def _explaining(
    config: Config,
    source: ConfigSource | None,
    host: Host,
    node: Node,
    plugins: Plugins,
    tasks: asyncio.TaskGroup,
) -> Iterator[asyncio.Task[None]]:
    if not config.paths.status:
        return

    def answers() -> Answers:
        from gpuplugin.daemon.answers import Answers  # noqa: PLC0415 - only where somebody asks

        return Answers(config, source, host, node, plugins)

    socket = Path(config.paths.status).with_name(explain_socket.SOCKET)
    yield _beside(tasks, "explain", partial(explain_socket.serve, socket, answers))


def _looking(
    source: ConfigSource | None, config: Config, node: Node, tasks: asyncio.TaskGroup
) -> Iterator[asyncio.Task[None]]:
    """Look at the machine; where files or labels say with which configuration, from when they have said so."""
    if source is None:
        yield tasks.create_task(node.keep_looking(), name="look")
        return
    reload = Reload(source, config, node.configure)
    choice = ProfileChoice(config.profiles, source) if config.profiles.folder else None
    if choice is not None:
        yield tasks.create_task(choice.follow(node_labels(config)), name="choose configuration")
    yield tasks.create_task(reload.keep_watching(), name="reload")
    yield tasks.create_task(_look_once_chosen(choice, reload, node), name="look")


async def _look_once_chosen(choice: ProfileChoice | None, reload: Reload, node: Node) -> None:
    if choice is not None:
        await choice.decided.wait()
        reload.read()
    await node.keep_looking()


def _startup_taint(
    config: Config, host: Host, node: Node, plugins: Plugins, tasks: asyncio.TaskGroup
) -> Iterator[asyncio.Task[None]]:
    if config.node.startup_taint:
        from gpuplugin.daemon.taint import lift  # noqa: PLC0415 - only where asked for

        def offers() -> tuple[OfferedResource, ...] | None:
            ready = readiness(node, plugins, host.sysfs).ready and node.claims().can_be_had
            return plugins.offered if ready else None

        yield _beside(tasks, "lift the startup taint", partial(lift, config, offers))


def _labels(
    config: Config, host: Host, node: Node, plugins: Plugins, tasks: asyncio.TaskGroup
) -> Iterator[asyncio.Task[None]]:
    if config.labels.owner != "off":
        from gpuplugin.daemon.labels import Labelling  # noqa: PLC0415 - only where asked for

        yield _beside(tasks, "keep labels", Labelling(config, node, host.sysfs).run)
    if config.labels.topology_object:
        from gpuplugin.daemon.topology_object import TopologyObject  # noqa: PLC0415 - only where asked for

        yield _beside(tasks, "keep the topology object", TopologyObject(config, host, node, plugins).run)


def _telling(config: Config, node: Node, tasks: asyncio.TaskGroup) -> Iterator[asyncio.Task[None]]:
    """Tell the API server of faults, where asked for."""
    if config.node.health_condition:
        from gpuplugin.daemon.condition import ConditionOnNode  # noqa: PLC0415 - only where asked for

        yield _beside(tasks, "keep the Node's condition", ConditionOnNode(config, node).run)
    if config.events.enabled:
        from gpuplugin.daemon.events_out import EventsOut  # noqa: PLC0415 - only where asked for

        yield _beside(tasks, "write Events", EventsOut(config, node).run)


def _metrics(
    config: Config, node: Node, thread: NvmlThread, plugins: Plugins, tasks: asyncio.TaskGroup
) -> Iterator[asyncio.Task[None]]:
    if config.metrics.enabled:
        yield _beside(tasks, "metrics", partial(_serve_metrics, config, node, thread, plugins))


async def _serve_metrics(config: Config, node: Node, thread: NvmlThread, plugins: Plugins) -> None:
    await node.looked.wait()
    from gpuplugin.daemon.metrics import Metrics  # noqa: PLC0415 - not before kubelet is served

    await Metrics(config, node, thread, plugins).run()


async def _tell_features(config: Config, host: Host, node: Node) -> None:
    await node.looked.wait()
    if node.inventory is not None:
        log.info("features", **await asyncio.to_thread(features, config, host, node.inventory))


async def _tell_kubelet_settings(config: Config, host: Host, node: Node) -> None:
    await node.looked.wait()
    from gpuplugin.daemon.kubelet_hints import keep_telling  # noqa: PLC0415 - not before kubelet is served

    await keep_telling(config, host, node)


async def _hold_over(config: Config, node: Node) -> None:
    await node.looked.wait()
    from gpuplugin.daemon.held_over import HeldOver  # noqa: PLC0415 - not before kubelet is served

    await HeldOver(config, node).run()


async def _listen(node: Node, thread: NvmlThread) -> None:
    """Hear of XIDs and of hot plug, from when there is something to hear of."""
    await node.looked.wait()
    from gpuplugin.discovery.udev import HotPlug  # noqa: PLC0415 - not before kubelet is served

    def heard(event: XidEvent) -> None:
        gpus = node.inventory.gpus if node.inventory else ()
        instruments.XIDS.saw(event, next((gpu.index for gpu in gpus if gpu.uuid == event.gpu), None))
        node.on_xid(event)

    xids = XidWatch(thread, heard, node.on_events_trouble, _tell_unwatched)
    plugging = HotPlug(node.wake, lambda reason: log.warning("hot plug", reason=reason))
    try:
        xids.start()
        if trouble := plugging.start():
            log.info("hot plug is found by looking alone", reason=trouble)
        async for _ in node.gpus_changed.follow():
            try:
                await xids.rearm()
            except NvmlError as error:
                log.debug("XIDs cannot be registered for yet", reason=str(error))
    finally:
        plugging.stop()
        await xids.stop()


def _tell_unwatched(gpus: Mapping[GpuUuid, str]) -> None:
    for gpu, reason in gpus.items():
        log.warning("no XIDs are heard of a GPU: probes alone can find it sick", device=gpu, reason=reason)
