"""How kubelet on this node is set up to place pods, as far as it could be seen from here.

Whether our NUMA hints do anything is decided there and not by us.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """Values are as KubeletConfiguration spells them; None: not known.

    cpu_policy, memory_policy: as configured · cpu_state, memory_state: the policy that kubelet's own state file was
    written under · reserved_cpus: `reservedSystemCPUs` · reserves_cpu: whether CPU is set aside in any of the ways that
    there are · read_from: files and command lines · troubles: what is there and could not be read, and why.
    """

    topology_policy: str | None = None
    topology_scope: str | None = None
    topology_options: Mapping[str, str] = field(default_factory=dict)
    cpu_policy: str | None = None
    cpu_options: Mapping[str, str] = field(default_factory=dict)
    cpu_state: str | None = None
    memory_policy: str | None = None
    memory_state: str | None = None
    reserved_cpus: tuple[int, ...] | None = None
    reserves_cpu: bool | None = None
    read_from: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()

    @property
    def pins_cpus(self) -> bool | None:
        """Whether containers can get CPUs of their own."""
        policy = self.cpu_policy or self.cpu_state
        return None if policy is None else policy == "static"


Owner = tuple[str, str]
"""A pod's UID and its container, init containers too; "" for what a pod has as a whole."""


@dataclass(frozen=True, slots=True)
class CpuState:
    """What kubelet's CPU manager has written down.

    shared: CPUs that no container has for itself, those set aside for the system among them · own: the others, by who
    has them.
    """

    policy: str
    shared: frozenset[int]
    own: Mapping[Owner, frozenset[int]]


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """Memory or huge pages (``memory``, ``hugepages-2Mi``) of a container: bytes, on these NUMA nodes together."""

    resource: str
    nodes: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class MemoryOfNode:
    """One NUMA node, bytes by resource. group: the NUMA nodes that kubelet gives out together with it, at least itself.

    allocatable: for pods, were none there · assignments: how many blocks lie on it.
    """

    allocatable: Mapping[str, int]
    free: Mapping[str, int]
    assignments: int
    group: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MemoryState:
    """What kubelet's memory manager has written down. nodes: by NUMA node · own: blocks, by who has them."""

    policy: str
    nodes: Mapping[int, MemoryOfNode]
    own: Mapping[Owner, tuple[MemoryBlock, ...]]


@dataclass(frozen=True, slots=True)
class KubeletStates:
    """Kubelet's own state files. None: not there, or not to be read from here, and `troubles` may say why.

    devices: of device plugins, resource and id, by who has them.
    """

    cpus: CpuState | None = None
    memory: MemoryState | None = None
    devices: Mapping[Owner, frozenset[tuple[str, str]]] = field(default_factory=dict)
    troubles: tuple[str, ...] = ()
