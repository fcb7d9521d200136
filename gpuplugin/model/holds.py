"""Who has which GPU: what keeps the two ways of handing GPUs out, device plugin and claims, from giving one twice."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuplugin.model.ids import GpuUuid


class Owner(Enum):
    """Which of the two may hand a GPU out. The value is for people."""

    DEVICE_PLUGIN = "the device plugin"
    CLAIMS = "claims"


class Use(Enum):
    """How a GPU is held."""

    EXCLUSIVE = "alone"
    SHARED = "shared"
    """With others that share it too."""
    WATCHED = "watched"
    """With admin access: beside whoever has it, taking nothing away."""

    def bars(self, other: Use) -> bool:
        """Whether a GPU held in one of these ways cannot be held in the other as well."""
        return Use.WATCHED not in (self, other) and Use.EXCLUSIVE in (self, other)


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that got its GPUs from the device plugin, or a prepared claim.

    uid: a claim's; empty for a pod, whose name is all that kubelet tells · pods: of a claim, those that it was prepared
    for, as ``namespace/name``.
    """

    owner: Owner
    namespace: str
    name: str
    uid: str = ""
    pods: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.owner is Owner.DEVICE_PLUGIN:
            return f"pod {self.namespace}/{self.name}, which has it from the device plugin"
        pods = f", prepared for pod {' and '.join(self.pods)}" if self.pods else ""
        return f"claim {self.namespace}/{self.name} (UID {self.uid}{pods})"


@dataclass(frozen=True, slots=True)
class Hold:
    """A GPU in use, and by whom."""

    gpu: GpuUuid
    holder: Holder
    use: Use = Use.EXCLUSIVE
