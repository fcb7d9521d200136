"""What `gpuplugin explain` and `gpuplugin report` are answered: reads only, and changes nothing.

It is the daemon that answers, and not the command that looks for itself, since only the daemon knows what it has
decided and why, and has kubelet's folders at hand. Imported with the first question (`explain_socket`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuplugin.daemon.support import State, files
from gpuplugin.discovery.kubelet_settings import read
from gpuplugin.errors import GpuPluginError, NothingToExplain, PodResourcesUnavailable
from gpuplugin.explain.fit import Asked, would_admit
from gpuplugin.explain.gpu import Known, why
from gpuplugin.explain.pod import Had, why_these
from gpuplugin.explain.questions import FitAnswer, OfFit, OfGpu, OfPod, Question, Reply
from gpuplugin.explain.stock import CPU
from gpuplugin.explain.stocks import machine, stocks
from gpuplugin.explain.verdict import Rules
from gpuplugin.serving.pod_resources import allocatable, pod_resources
from gpuplugin.topology.affinity import Policy

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpuplugin.config import Config
    from gpuplugin.daemon.host import Host
    from gpuplugin.daemon.node import Node
    from gpuplugin.daemon.plugins import Plugins
    from gpuplugin.daemon.reload import ConfigSource
    from gpuplugin.explain.fit import Fit
    from gpuplugin.explain.pod import PodAnswer
    from gpuplugin.explain.stock import Stock
    from gpuplugin.model.kubelet import KubeletSettings
    from gpuplugin.serving.pod_resources import Allocatable, PodResources

_MOUNT: Final = "Its folder pod-resources has to be mounted into our container, read-only"
_NEVER_LOOKED_AT: Final = (
    "not looked at: CPU, memory and huge pages that the scheduler counts, taints, and init containers"
)


@dataclass(frozen=True, slots=True)
class _FromKubelet:
    """What kubelet says of its pods; allocatable is None, and trouble says why, where it does not say."""

    pods: PodResources | None
    allocatable: Allocatable | None
    trouble: str = ""


class Answers:
    """All that can be asked of one daemon."""

    def __init__(self, config: Config, source: ConfigSource | None, host: Host, node: Node, plugins: Plugins) -> None:
        self._config, self._source, self._host, self._node, self._plugins = config, source, host, node, plugins

    async def reply(self, line: bytes) -> bytes:
        """Answer one line with one, whatever it is."""
        try:
            question: Question = msgspec.json.decode(line, type=Question)
            reply = Reply(answer=await self._to(question))
        except (msgspec.MsgspecError, GpuPluginError) as error:
            reply = Reply(refused=str(error))
        return msgspec.json.encode(reply)

    async def _to(self, question: Any) -> Any:
        match question:
            case OfGpu(name):
                return why(self._known(await self._ask()), name)
            case OfPod(name):
                return await self._of_pod(name)
            case OfFit():
                return await self._of_fit(question)
            case _:
                return await asyncio.to_thread(self._files, State.of(self._node, self._plugins, self._host.sysfs))

    async def _of_pod(self, name: str) -> PodAnswer:
        found = await self._ask()
        if found.pods is None:
            raise NothingToExplain(f"only kubelet knows what pods have, and it does not say: {found.trouble}. {_MOUNT}")
        had: dict[tuple[str, str], list[str]] = {}
        for device in found.pods.plugin_devices:
            if f"{device.namespace}/{device.pod}" == name:
                had.setdefault((device.container, device.resource), []).append(device.id)
        claims = [
            f"{one.driver}/{one.pool}/{one.device} by claim {one.namespace}/{one.claim}"
            for one in found.pods.claimed
            if f"{one.namespace}/{one.pod}" == name
        ]
        cpus = {own.container: own.cpus for own in found.pods.own_cpus if f"{own.namespace}/{own.pod}" == name}
        picture = self._node.picture.value
        known = self._known(found)
        assert picture is not None  # noqa: S101 - what is known is of it
        tables = await asyncio.shield(picture.tables)
        containers = [Had(container, resource, tuple(ids)) for (container, resource), ids in had.items()]
        return why_these(known, tables.graph, name, containers, cpus, self._plugins.choices, claims)

    async def _of_fit(self, asked: OfFit) -> FitAnswer:
        found = await self._ask()
        known = self._known(found)
        settings = await asyncio.to_thread(self._kubelet_settings)
        policy = _policy(asked.policy or settings.topology_policy, settings)
        there = self._stocks(known, found)
        containers = _with_nics(asked, there, {resource.name for resource in self._plugins.offered})
        notes = [_NEVER_LOOKED_AT]
        if settings.memory_policy == "Static":
            notes.append("not looked at: memory, which memoryManagerPolicy Static keeps to NUMA nodes as well")
        if settings.cpu_options.get("full-pcpus-only") == "true":
            notes.append("not looked at: cpuManagerPolicyOptions.full-pcpus-only, which refuses parts of a core")
        if found.allocatable is not None and not found.allocatable.cpus:
            notes.append("CPUs are not pinned here (cpuManagerPolicy is none), so they do not count")
            containers = tuple(_without(container, CPU) for container in containers)
        scope = settings.topology_scope or "container"
        fit = would_admit(Rules(policy, machine(known), scope == "pod"), there, containers)
        return FitAnswer(fit, policy.value, scope, (*notes, *_doubts(fit, len(containers))))

    def _known(self, found: _FromKubelet) -> Known:
        picture = self._node.picture.value
        if picture is None:
            raise NothingToExplain(
                f"no GPU is offered, since none could be looked at yet: {self._node.trouble or 'the first look runs'}"
            )
        holders = None
        if found.pods is not None:
            holders = {
                (device.resource, device.id): f"pod {device.namespace}/{device.pod} (container {device.container})"
                for device in found.pods.plugin_devices
            }
        unregistered = {str(name): trouble for name, trouble in self._plugins.unregistered.items()}
        return Known(picture.inventory, picture.config, picture.facts, holders, unregistered)

    def _stocks(self, known: Known, found: _FromKubelet) -> dict[str, Stock]:
        if found.pods is None or found.allocatable is None:
            raise NothingToExplain(f"only kubelet knows what is free, and it does not say: {found.trouble}. {_MOUNT}")
        cpu_holders = {
            cpu: f"pod {own.namespace}/{own.pod} (container {own.container})"
            for own in found.pods.own_cpus
            for cpu in own.cpus
        }
        return stocks(known, found.allocatable.devices, frozenset(found.allocatable.cpus), cpu_holders)

    async def _ask(self) -> _FromKubelet:
        socket = Path(self._config.paths.kubelet, "pod-resources/kubelet.sock")
        try:
            return _FromKubelet(await pod_resources(socket), await allocatable(socket))
        except PodResourcesUnavailable as error:
            return _FromKubelet(None, None, str(error))

    def _files(self, state: State) -> dict[str, str]:
        return files(self._config, self._source, self._host, state, self._kubelet_settings())

    def _kubelet_settings(self) -> KubeletSettings:
        return read(Path(self._config.paths.kubelet), self._host.proc, self._host.driver_root)


def _policy(name: str | None, settings: KubeletSettings) -> Policy:

    allowed = ", ".join(Policy)
    if name is None:
        why = f" ({'; '.join(settings.troubles)})" if settings.troubles else ""
        raise NothingToExplain(f"kubelet's topologyManagerPolicy cannot be seen from here{why}: say --policy {allowed}")
    if name not in [*Policy]:
        raise NothingToExplain(f"topologyManagerPolicy {name!r} is none of kubelet's; allowed: {allowed}")
    return Policy(name)


def _with_nics(asked: OfFit, there: Mapping[str, Stock], ours: Collection[str]) -> tuple[Asked, ...]:
    """Add the NICs to the first container. Raises NothingToExplain where it is not clear which resource they are."""
    containers, others = list(asked.containers), sorted(there.keys() - {*ours, CPU})
    if asked.nics:
        name = asked.nic_resource or (others[0] if len(others) == 1 else "")
        if name not in there:
            plugins = f"kubelet has {', '.join(others)}" if others else "kubelet has no device plugin but ours"
            raise NothingToExplain(f"which resource are the NICs? {plugins}; say --nics NAME=N")
        counts = containers[0].counts
        containers[0] = replace(containers[0], counts={**counts, name: asked.nics})
    for container in containers:
        for name, count in container.counts.items():
            if count and name not in there:
                raise NothingToExplain(f"kubelet has no {name} here; there are: {', '.join(sorted(there))}")
    return tuple(containers)


def _without(container: Asked, resource: str) -> Asked:

    return Asked(container.name, {name: count for name, count in container.counts.items() if name != resource})


def _doubts(fit: Fit, containers: int) -> tuple[str, ...]:
    if containers > 1 and fit.places and len(fit.places[0]) > 1:
        return ("a container spans NUMA nodes: which of its CPUs come from which is not told, so the next may differ",)
    return ()
