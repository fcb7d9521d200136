"""Reads what kubelet's managers have written down: who has which CPUs, memory, huge pages and devices.

They hold more than kubelet's pod-resources API tells: what init containers still have for their pod, and which NUMA
nodes are given out together. They name pods by UID alone, and lag behind: what a pod had that has ended is in them
until kubelet next looks.

Kubelet writes each file anew and moves it into its place, so that none is seen half written.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from gpuplugin.discovery.kubelet_settings import KUBELET, HostFiles
from gpuplugin.discovery.sysfs import parse_cpulist
from gpuplugin.model.kubelet import CpuState, KubeletStates, MemoryBlock, MemoryOfNode, MemoryState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeVar

    from gpuplugin.discovery.places import Place
    from gpuplugin.model.kubelet import Owner

    T = TypeVar("T")

CPU_STATE: Final = f"{KUBELET}/cpu_manager_state"
MEMORY_STATE: Final = f"{KUBELET}/memory_manager_state"
DEVICES: Final = f"{KUBELET}/device-plugins/kubelet_internal_checkpoint"
_LARGEST: Final = 16 << 20
_UNREADABLE: Final = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)


def read_states(kubelet: Path, root: Place) -> KubeletStates:
    """Read the files; what is there and makes no sense is told of, and never raised. Places as in `read`."""
    files, troubles = HostFiles(kubelet, root), list[str]()
    return KubeletStates(
        _read(files, CPU_STATE, _cpus, troubles),
        _read(files, MEMORY_STATE, _memory, troubles),
        _read(files, DEVICES, _devices, troubles) or {},
        tuple(troubles),
    )


def _read(files: HostFiles, path: str, make: Callable[[dict[str, Any]], T], troubles: list[str]) -> T | None:
    seen = files.see(path)
    if seen is None:
        return None
    try:
        with seen.open("rb") as file:
            text = file.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise ValueError(f"it is larger than {_LARGEST} bytes")
        document = json.loads(text)
        return make(json.loads(document["data"]) if "data" in document else document)
    except _UNREADABLE as error:
        why = (isinstance(error, OSError) and error.strerror) or f"{type(error).__name__} {error}"
        troubles.append(f"{path}: {why}")
        return None


def _cpus(document: dict[str, Any]) -> CpuState:
    own: dict[Owner, frozenset[int]] = {}
    for uid, containers in (document.get("entries") or {}).items():
        own |= {(uid, name): frozenset(parse_cpulist(cpus)) for name, cpus in containers.items()}
    for uid, entry in (document.get("podEntries") or {}).items():
        own[uid, ""] = frozenset(parse_cpulist(entry.get("cpuSet", "")))
    return CpuState(str(document["policyName"]), frozenset(parse_cpulist(document.get("defaultCpuSet") or "")), own)


def _memory(document: dict[str, Any]) -> MemoryState:
    pods = {uid: entry.get("memoryBlocks") or () for uid, entry in (document.get("podEntries") or {}).items()}
    own: dict[Owner, tuple[MemoryBlock, ...]] = {(uid, ""): tuple(map(_block, each)) for uid, each in pods.items()}
    for uid, containers in (document.get("entries") or {}).items():
        if not pods.get(uid):  # else its containers have parts of what the pod has
            own |= {(uid, name): tuple(map(_block, blocks)) for name, blocks in containers.items()}
    nodes = {int(node): _node(said) for node, said in (document.get("machineState") or {}).items()}
    return MemoryState(str(document["policyName"]), nodes, own)


def _devices(document: dict[str, Any]) -> dict[Owner, frozenset[tuple[str, str]]]:
    """Give what each container has; what it was given besides (its environment) is not looked at."""
    own: dict[Owner, frozenset[tuple[str, str]]] = {}
    for entry in document["Data"]["PodDeviceEntries"] or ():
        who, name = (str(entry["PodUID"]), str(entry["ContainerName"])), str(entry["ResourceName"])
        ids = frozenset((name, str(each)) for devices in entry["DeviceIDs"].values() for each in devices)
        own[who] = own.get(who, frozenset()) | ids
    return own


def _node(said: dict[str, Any]) -> MemoryOfNode:
    tables = said["memoryMap"].items()
    return MemoryOfNode(
        {name: int(table["allocatable"]) for name, table in tables},
        {name: int(table["free"]) for name, table in tables},
        int(said["numberOfAssignments"]),
        tuple(map(int, said["cells"])),
    )


def _block(said: dict[str, Any]) -> MemoryBlock:
    return MemoryBlock(str(said["type"]), tuple(map(int, said["numaAffinity"])), int(said["size"]))
