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
