"""All that kubelet tells, put together for one answer: its pod-resources API, its state files and its settings."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuplugin.discovery.kubelet_settings import read
from gpuplugin.discovery.kubelet_states import read_states
from gpuplugin.errors import NothingToExplain, PodResourcesUnavailable
from gpuplugin.explain.owners import Listed, cpu_holders, holder, memory_held, pods_by_uid
from gpuplugin.serving.pod_resources import allocatable, pod_resources

if TYPE_CHECKING:
    from gpuplugin.config import Config
    from gpuplugin.daemon.host import Host
    from gpuplugin.explain.memory import Memory
    from gpuplugin.model.kubelet import KubeletSettings, KubeletStates
    from gpuplugin.serving.pod_resources import Allocatable, PodResources

MOUNT: Final = "Its folder pod-resources has to be mounted into our container, read-only"


@dataclass(frozen=True, slots=True)
class FromKubelet:
    """What kubelet says of its pods; allocatable is None, and trouble says why, where it does not say."""

    pods: PodResources | None
    allocatable: Allocatable | None
    trouble: str = ""

    @property
    def holders(self) -> dict[tuple[str, str], str] | None:
        """Who has which device of which resource; None where kubelet does not say."""
        if self.pods is None:
            return None
        return {
            (device.resource, device.id): holder(f"{device.namespace}/{device.pod}", device.container)
            for device in self.pods.plugin_devices
        }


@dataclass(frozen=True, slots=True)
class Room:
    """What kubelet could give now, beside devices.

    cpus: those that containers may have for themselves, and cpu_holders: who has which · memory: None where kubelet
    does not give it out · notes: what is doubtful · states: its state files · rests_on: what it was found out from.
    """

    cpus: tuple[int, ...]
    cpu_holders: dict[int, str]
    memory: Memory | None
    notes: tuple[str, ...]
    states: KubeletStates
    rests_on: tuple[str, ...]


async def ask(config: Config) -> FromKubelet:
    """Ask kubelet for its pods, and for what it has."""
    socket = config.paths.pod_resources_socket
    try:
        return FromKubelet(await pod_resources(socket), await allocatable(socket))
    except PodResourcesUnavailable as error:
        return FromKubelet(None, None, str(error))


async def settings(config: Config, host: Host) -> KubeletSettings:
    """Read how kubelet is set up."""
    return await asyncio.to_thread(read, Path(config.paths.kubelet), host.proc, host.driver_root)


async def written(config: Config, host: Host) -> tuple[KubeletSettings, KubeletStates]:
    """Read how kubelet is set up, and its state files."""
    states = await asyncio.to_thread(read_states, Path(config.paths.kubelet), host.driver_root)
    return await settings(config, host), states


async def room(config: Config, host: Host) -> tuple[FromKubelet, Room]:
    """Ask, and read its state files beside; a second time where something changed between. Raises NothingToExplain."""
    found, states = await _both(config, host)
    first = _room(found, states)
    if first.notes and len(first.rests_on) > 1:
        found, states = await _both(config, host)
        return found, _room(found, states)
    return found, first


async def _both(config: Config, host: Host) -> tuple[FromKubelet, KubeletStates]:
    return await ask(config), await asyncio.to_thread(read_states, Path(config.paths.kubelet), host.driver_root)


def _room(found: FromKubelet, states: KubeletStates) -> Room:
    if found.pods is None or found.allocatable is None:
        raise NothingToExplain(f"only kubelet knows what is free, and it does not say: {found.trouble}. {MOUNT}")
    listed = Listed(
        {(f"{own.namespace}/{own.pod}", own.container): frozenset(own.cpus) for own in found.pods.own_cpus},
        {(f"{own.namespace}/{own.pod}", own.container): own.blocks for own in found.pods.own_memory},
        found.allocatable.memory,
        _devices(found.pods),
    )
    pods, pinning = pods_by_uid(states, listed), bool(found.allocatable.cpus)
    holders, of_cpus = cpu_holders(states.cpus, listed, pods) if pinning else ({}, [])
    memory, of_memory = memory_held(states.memory, listed, pods)
    rests_on = ["kubelet's pod-resources API"]
    rests_on += ["cpu_manager_state"] if pinning and states.cpus is not None else []
    rests_on += ["memory_manager_state"] if memory is not None and states.memory is not None else []
    notes = (*of_cpus, *of_memory, *states.troubles)
    return Room(found.allocatable.cpus, holders, memory, notes, states, tuple(rests_on))


def _devices(pods: PodResources) -> dict[tuple[str, str], frozenset[tuple[str, str]]]:
    found: dict[tuple[str, str], frozenset[tuple[str, str]]] = {}
    for device in pods.plugin_devices:
        who = (f"{device.namespace}/{device.pod}", device.container)
        found[who] = found.get(who, frozenset()) | {(device.resource, device.id)}
    return found
