"""What `gpuplugin explain` and `gpuplugin report` are answered: reads only, and changes nothing.

It is the daemon that answers, and not the command that looks for itself, since only the daemon knows what it has
decided and why, and has kubelet's folders at hand. Imported with the first question (`explain_socket`).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from gpuplugin.daemon import api_view, kubelet_view
from gpuplugin.daemon.answer_fit import answer_fit
from gpuplugin.daemon.support import State, files
from gpuplugin.errors import GpuPluginError, NothingToExplain
from gpuplugin.explain.gpu import Known, why
from gpuplugin.explain.node_object import beside_a_gpu
from gpuplugin.explain.pod import Had, PodAnswer, Refused, why_these
from gpuplugin.explain.podfile import pod_object
from gpuplugin.explain.questions import GpuHere, OfFit, OfGpu, OfGpus, OfPod, Question, Reply
from gpuplugin.explain.refused import ASK_WITH_FILE, about, means, was_refused
from gpuplugin.serving import refusals

if TYPE_CHECKING:
    from gpuplugin.config import Config
    from gpuplugin.daemon.host import Host
    from gpuplugin.daemon.kubelet_view import FromKubelet
    from gpuplugin.daemon.node import Node
    from gpuplugin.daemon.plugins import Plugins
    from gpuplugin.daemon.reload import ConfigSource
    from gpuplugin.explain.gpu import GpuAnswer
    from gpuplugin.explain.node_object import NodeTold
    from gpuplugin.explain.podfile import PodObject
    from gpuplugin.explain.questions import FitAnswer
    from gpuplugin.serving.pod_resources import PodResources


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
                return await self._of_gpu(name)
            case OfGpus():
                return self._gpus()
            case OfPod(name):
                return await self._of_pod(name)
            case OfFit():
                return await self._of_fit(question)
            case _:
                state = State.of(self._node, self._plugins, self._host.sysfs)
                kubelet = await kubelet_view.written(self._config, self._host)
                return await asyncio.to_thread(files, self._config, self._source, self._host, state, kubelet)

    async def _of_gpu(self, name: str) -> GpuAnswer:
        known = self._known(await kubelet_view.ask(self._config))
        answer = why(known, name)
        own = {device.resource for device in answer.devices} - known.unregistered.keys()
        usable = {str(offer.name): offer.usable for offer in self._plugins.offered if offer.name in own}
        return replace(answer, notes=beside_a_gpu(await self._node_told(), usable))

    def _gpus(self) -> list[GpuHere]:
        inventory = self._node.inventory
        if inventory is None:
            raise NothingToExplain(f"no GPU could be looked at yet: {self._node.trouble or 'the first look runs'}")
        found = [GpuHere(gpu.index, gpu.uuid, gpu.pci) for gpu in inventory.gpus]
        found += [GpuHere(gpu.index, None, gpu.pci) for gpu in inventory.unreadable]
        return sorted(found, key=lambda gpu: gpu.index)

    async def _node_told(self) -> NodeTold | str:
        """Give our Node, or why it cannot be looked at."""
        try:
            return await api_view.node_object(self._config)
        except NothingToExplain as error:
            return str(error)

    async def _of_fit(self, asked: OfFit) -> FitAnswer:
        found, room = await kubelet_view.room(self._config, self._host)
        settings = await kubelet_view.settings(self._config, self._host)
        node = await self._node_told()
        known, offered = self._known(found), self._plugins.offered
        # on a thread: with many NUMA nodes it takes a second, in which pods are admitted
        return await asyncio.to_thread(answer_fit, asked, known, found, room, settings, node, offered)

    async def _of_pod(self, name: str) -> PodAnswer:
        found = await kubelet_view.ask(self._config)
        if found.pods is None:
            why_not = f"only kubelet knows what pods have, and it does not say: {found.trouble}. {kubelet_view.MOUNT}"
            raise NothingToExplain(why_not)
        known, picture = self._known(found), self._node.picture.value
        assert picture is not None  # noqa: S101 - what is known is of it
        tables = await asyncio.shield(picture.tables)
        had, claims, cpus = _of(name, found.pods)
        answer = why_these(known, tables.graph, name, had, cpus, self._plugins.choices, claims)
        if answer.containers or answer.claims:
            return answer
        return await self._of_pod_without(name)

    async def _of_pod_without(self, name: str) -> PodAnswer:
        """Say why it has nothing, from its object. Raises NothingToExplain, which says how else it can be asked."""
        namespace, _, own = name.partition("/")
        try:
            pod = pod_object(await api_view.pod(self._config, namespace, own))
        except NothingToExplain as error:
            late = "".join(f"\n  {each.call} of {each.of}: {each.reason}" for each in refusals.recent()[-_LATE:])
            raise NothingToExplain(
                f"kubelet knows of no GPU that pod {name} has, and its object cannot be looked at: {error}. Where it "
                f"was refused, its status says so (kubectl get pod): {ASK_WITH_FILE}"
                + (f".\nWhat we ourselves refused of late:{late}" if late else "")
            ) from None
        if pod.said is None:
            raise NothingToExplain(f"pod {name} has no status yet")
        return PodAnswer(name, (), (), await self._refused(pod))

    async def _refused(self, pod: PodObject) -> Refused:
        assert pod.said is not None  # noqa: S101 - whoever asks has looked
        text, ours = means(pod, pod.said, self._config.node.name), about(refusals.recent(), pod)
        elsewhere = pod.node and self._config.node.name and pod.node != self._config.node.name
        if elsewhere or not (was_refused(pod.said) or not pod.node):
            return Refused(pod.said, text, ours)
        try:
            return Refused(pod.said, text, ours, await self._of_fit(OfFit(pod.containers, pod=pod)))
        except NothingToExplain as error:
            return Refused(pod.said, text, ours, None, str(error))

    def _known(self, found: FromKubelet) -> Known:
        picture = self._node.picture.value
        if picture is None:
            raise NothingToExplain(
                f"no GPU is offered, since none could be looked at yet: {self._node.trouble or 'the first look runs'}"
            )
        unregistered = {str(name): trouble for name, trouble in self._plugins.unregistered.items()}
        return Known(picture.inventory, picture.config, picture.facts, found.holders, unregistered)


_LATE = 5


def _of(name: str, pods: PodResources) -> tuple[list[Had], list[str], dict[str, tuple[int, ...]]]:
    """Give what a pod has: devices by container, claims, CPUs of its own."""
    had: dict[tuple[str, str], list[str]] = {}
    for device in pods.plugin_devices:
        if f"{device.namespace}/{device.pod}" == name:
            had.setdefault((device.container, device.resource), []).append(device.id)
    claims = [
        f"{one.driver}/{one.pool}/{one.device} by claim {one.namespace}/{one.claim}"
        for one in pods.claimed
        if f"{one.namespace}/{one.pod}" == name
    ]
    cpus = {own.container: own.cpus for own in pods.own_cpus if f"{own.namespace}/{own.pod}" == name}
    return [Had(container, resource, tuple(ids)) for (container, resource), ids in had.items()], claims, cpus
