"""Whether a device can be handed out: a level that always holds, not an event that can be missed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuplugin.model.ids import GpuUuid


class Level(Enum):
    """HEALTHY is offered; the other two are not, and always have a reason."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """A device's level and why, in words for a person; of a healthy one, what there is to warn of, or nothing."""

    level: Level
    reason: str = ""

    @property
    def usable(self) -> bool:
        """Whether it may be handed out."""
        return self.level is Level.HEALTHY


HEALTHY = DeviceHealth(Level.HEALTHY)


@dataclass(frozen=True, slots=True)
class XidEvent:
    """A critical XID as NVML's event set gives it. `gpu_instance`, `compute_instance`: None means the whole GPU."""

    gpu: GpuUuid
    xid: int
    gpu_instance: int | None = None
    compute_instance: int | None = None
