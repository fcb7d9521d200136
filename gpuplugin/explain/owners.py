"""Who has which CPUs and memory: kubelet's state files and its pod-resources API, put together.

The API names pods, and has what is so at this moment, but not what init containers still have for their pod. The files
have all of it, by UID, and also what pods had that have ended: kubelet takes that back before it decides on the next
pod, so that it counts as free. A pod's UID is found by what its containers have, which no other pod's do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gpuplugin.explain.memory import Memory, NodeMemory, Share
from gpuplugin.topology.explain import ranges

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplugin.model.kubelet import CpuState, KubeletStates, MemoryBlock, MemoryState

STATIC: Final = "static"
_NEXT: Final = "kubelet takes it back before it decides on the next pod"


@dataclass(frozen=True, slots=True)
class Listed:
    """What kubelet's API tells, by pod (``namespace/name``) and container.

    memory_of_nodes: bytes for pods by NUMA node and resource, none where the memory manager gives nothing out ·
    devices: resource and id.
    """

    cpus: Mapping[tuple[str, str], frozenset[int]]
    memory: Mapping[tuple[str, str], tuple[MemoryBlock, ...]] = field(default_factory=lambda: MappingProxyType({}))
    memory_of_nodes: Mapping[int, Mapping[str, int]] = field(default_factory=lambda: MappingProxyType({}))
    devices: Mapping[tuple[str, str], frozenset[tuple[str, str]]] = field(default_factory=lambda: MappingProxyType({}))


def holder(pod: str, container: str = "") -> str:
    """Name who has something, as everywhere in these answers."""
    return f"pod {pod} (container {container})" if container else f"pod {pod}"


def pods_by_uid(states: KubeletStates, listed: Listed) -> dict[str, str]:
    """Find which of the listed pods has which UID, as far as what they have tells."""
    found: dict[str, str] = {}
    holding = {(container, each): pod for (pod, container), its in listed.devices.items() for each in its}
    for (uid, container), devices in states.devices.items():
        pod = next((holding[container, each] for each in devices if (container, each) in holding), None)
        if pod is not None:
            found[uid] = pod
    own_cpus = {} if states.cpus is None else states.cpus.own
    having = {(container, cpus): pod for (pod, container), cpus in listed.cpus.items() if cpus}
    for (uid, container), cpus in own_cpus.items():
        if (container, cpus) in having:
            found[uid] = having[container, cpus]
    own_memory = {} if states.memory is None else states.memory.own
    for pod in dict.fromkeys(pod for pod, _ in listed.memory):
        if pod in found.values():
            continue
        blocks = {container: frozenset(its) for (name, container), its in listed.memory.items() if name == pod}
        for uid in dict.fromkeys(uid for uid, _ in own_memory):
            its_own = {container: frozenset(own_memory.get((uid, container), ())) for container in blocks}
            if uid not in found and its_own == blocks:
                found[uid] = pod
                break
    return found


def cpu_holders(state: CpuState | None, listed: Listed, pods: Mapping[str, str]) -> tuple[dict[int, str], list[str]]:
    """Give who has which CPU, and what is to be said of it. pods: as `pods_by_uid` gives them."""
    found = {cpu: holder(*who) for who, cpus in listed.cpus.items() for cpu in cpus}
    notes: list[str] = []
    if state is None:
        return found, ["CPUs of init containers, which their pod keeps, are not told of: cpu_manager_state is not seen"]
    if state.policy != STATIC:
        if found:
            notes.append(f"cpu_manager_state is of policy {state.policy}, and kubelet says who has CPUs: that counts")
        return found, notes
    ended: dict[str, set[int]] = {}
    for (uid, container), cpus in state.own.items():
        if uid in pods:
            for cpu in cpus:
                found.setdefault(cpu, holder(pods[uid], container))
        else:
            ended.setdefault(uid, set()).update(cpus)
    for uid, its in ended.items():
        if left := sorted(its - found.keys()):
            notes.append(f"CPUs {ranges(left)} are still of a pod that kubelet no longer lists (UID {uid}): {_NEXT}")
    if both := sorted(found.keys() & state.shared):
        notes.append(
            f"CPUs {ranges(both)} are shared by cpu_manager_state, and a pod's by kubelet's word, which counts"
        )
    return found, notes


def memory_held(state: MemoryState | None, listed: Listed, pods: Mapping[str, str]) -> tuple[Memory | None, list[str]]:
    """Give all memory with who has it, None where kubelet does not give it out; and what is to be said of it."""
    if not listed.memory_of_nodes:
        return None, []
    told = [Share(holder(*who), b.resource, b.nodes, b.size) for who, blocks in listed.memory.items() for b in blocks]
    if state is None or state.policy.lower() != STATIC:
        note = "memory that init containers have left to their pod is not told of: memory_manager_state is not seen"
        return Memory(listed.memory_of_nodes, tuple(told)), [note]
    shares = [
        Share(holder(pods[uid], container) if uid in pods else uid, block.resource, block.nodes, block.size)
        for (uid, container), blocks in state.own.items()
        for block in blocks
    ]
    ended = {uid for uid, _ in state.own} - pods.keys()
    notes = [
        f"memory of a pod that kubelet no longer lists (UID {uid}) is still written down: {_NEXT}"
        for uid in sorted(ended)
    ]
    allocatable = {node: own.allocatable for node, own in state.nodes.items()}
    memory = Memory(allocatable, tuple(shares), _as_they_stand(state)).without(ended)
    for share in told:
        if share not in shares:  # given since the file was written
            memory = memory.with_(share.who, frozenset(share.nodes), {share.resource: share.size})
    return memory, notes


def _as_they_stand(state: MemoryState) -> dict[int, NodeMemory]:
    return {node: NodeMemory(own.free, own.assignments, frozenset(own.group)) for node, own in state.nodes.items()}
