"""Would a pod be admitted now: what kubelet and the Node object tell, put to the question. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gpuplugin.errors import NothingToExplain
from gpuplugin.explain.fit import Asked, would_admit
from gpuplugin.explain.memory import added_up, is_memory
from gpuplugin.explain.node_object import NodeAnswer, NodeTold, of_node
from gpuplugin.explain.questions import FitAnswer, OfFit
from gpuplugin.explain.stock import CPU
from gpuplugin.explain.stocks import machine, stocks
from gpuplugin.explain.verdict import Rules
from gpuplugin.topology.affinity import Policy

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from gpuplugin.daemon.kubelet_view import FromKubelet, Room
    from gpuplugin.explain.fit import Fit
    from gpuplugin.explain.gpu import Known
    from gpuplugin.explain.memory import Memory
    from gpuplugin.explain.stock import Stock
    from gpuplugin.model.kubelet import KubeletSettings
    from gpuplugin.plan.desired import OfferedResource

_NEVER_LOOKED_AT: Final = "not looked at: what other pods request of the scheduler, and affinity between pods"


def answer_fit(
    asked: OfFit,
    known: Known,
    found: FromKubelet,
    room: Room,
    settings: KubeletSettings,
    node: NodeTold | str,
    offered: Sequence[OfferedResource],
) -> FitAnswer:
    """Answer. node: or why it could not be looked at. Raises NothingToExplain."""
    assert found.allocatable is not None  # noqa: S101 - else there is no room
    policy, scope = _policy(asked.policy or settings.topology_policy, settings), settings.topology_scope or "container"
    there = stocks(known, found.allocatable.devices, frozenset(room.cpus), room.cpu_holders)
    containers = _with_nics(asked, there, {resource.name for resource in offered})
    _check(containers, there, room.memory)
    notes = [*_left_out(asked, containers, room), *_settings_doubts(settings, room), *room.notes]
    counted = containers if room.cpus else tuple(_without_cpus(each) for each in containers)
    fit = would_admit(Rules(policy, machine(known), scope == "pod"), there, counted, room.memory)
    total = added_up(each.counts for each in containers)
    usable = {str(resource.name): resource.usable for resource in offered if resource.name not in known.unregistered}
    of = NodeAnswer(why_not=node) if isinstance(node, str) else of_node(node, total, usable, asked.pod)
    rests_on = (*room.rests_on, *(() if isinstance(node, str) else ("the Node object",)))
    return FitAnswer(fit, policy.value, scope, (*notes, *_doubts(fit, policy, counted, room.memory)), of, rests_on)


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
    return tuple(containers)


def _check(containers: Sequence[Asked], there: Mapping[str, Stock], memory: Memory | None) -> None:
    """Raises NothingToExplain where something is asked for that there is none of at all."""
    for container in containers:
        for name, count in container.counts.items():
            here: Collection[str] = there
            if is_memory(name):
                here = memory.resources if memory else (name,)
            if count and name not in here:
                raise NothingToExplain(f"kubelet has no {name} here; there are: {', '.join(sorted(here))}")


def _left_out(asked: OfFit, containers: Sequence[Asked], room: Room) -> Iterator[str]:
    yield _NEVER_LOOKED_AT
    if asked.pod is not None and asked.pod.init:
        yield f"not looked at: init containers, which go first and leave what they had ({', '.join(asked.pod.init)})"
    names = {name for container in containers for name, count in container.counts.items() if count}
    if room.memory is None and any(map(is_memory, names)):
        yield "memory and huge pages are not kept to NUMA nodes here (memoryManagerPolicy): the scheduler counts them"
    if room.memory is not None and CPU in names and not any(map(is_memory, names)):
        yield "memory counts here (memoryManagerPolicy Static), and none was asked for: say --memory, such as 16Gi"
    if CPU in names and not room.cpus:
        yield "CPUs are not pinned here (cpuManagerPolicy is none), so they do not count"


def _settings_doubts(settings: KubeletSettings, room: Room) -> Iterator[str]:
    if settings.cpu_options.get("full-pcpus-only") == "true":
        yield "not looked at: cpuManagerPolicyOptions.full-pcpus-only, which refuses parts of a core"
    for key, wanted, state in (
        ("cpuManagerPolicy", settings.cpu_policy, room.states.cpus),
        ("memoryManagerPolicy", settings.memory_policy, room.states.memory),
    ):
        if wanted is not None and state is not None and state.policy != wanted:
            yield f"{key} is set to {wanted}, and kubelet has last run with {state.policy}: what it tells now counts"


def _without_cpus(container: Asked) -> Asked:
    return Asked(container.name, {name: count for name, count in container.counts.items() if name != CPU})


def _doubts(fit: Fit, policy: Policy, containers: Sequence[Asked], memory: Memory | None) -> Iterator[str]:
    if len(containers) < 2:  # noqa: PLR2004 - one has nobody before it
        return
    if fit.places and len(fit.places[0]) > 1:
        yield "a container spans NUMA nodes: which of its CPUs come from which is not told, so the next may differ"
    if policy is Policy.BEST_EFFORT and memory is not None and any(each.amounts for each in containers):
        yield "where the first containers come to lie is not told under best-effort: memory may differ for the next"
