"""What the Node's condition says of all its GPUs: its reason is the worst of what is wrong, its message all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpuplugin.plan.faults import FaultKind, Policy, Surface, cells

if TYPE_CHECKING:
    from gpuplugin.model.inventory import Inventory
    from gpuplugin.plan.faults import Told
    from gpuplugin.plan.health import Health

TYPE: Final = "GPUsHealthy"
LONGEST_MESSAGE: Final = 1024

_WORST_FIRST: Final = (Policy.REBOOT, Policy.RESET, Policy.UNHEALTHY, Policy.WARN)


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """status: ``True`` where every GPU is in service, though there may be warnings; ``False``; ``Unknown``."""

    status: str
    reason: str
    message: str


def node_health(inventory: Inventory, health: Health) -> NodeHealth:
    """Sum up. GPUs that never told who they are count as out of service."""
    told = [one for one in health.told if Surface.CONDITION in cells(one)]
    texts = [text_of(one, inventory) for one in told]
    texts += [f"GPU {gpu.index} ({gpu.pci}): {gpu.reason}" for gpu in inventory.unreadable]
    if not texts:
        return NodeHealth("True", "AllGpusHealthy", f"{len(inventory.gpus)} GPUs are in service")
    message = "; ".join(texts)[:LONGEST_MESSAGE]
    if not told:
        return NodeHealth("False", "GpuUnreadable", message)
    worst = min(told, key=lambda one: (one.kind is not FaultKind.NVML, _WORST_FIRST.index(one.policy)))
    status = "True"
    if inventory.unreadable or any(one.policy.withdraws for one in told):
        status = "False"
    if worst.kind is FaultKind.NVML:
        status = "Unknown"
    return NodeHealth(status, cells(worst)[Surface.CONDITION], message)


def text_of(told: Told, inventory: Inventory) -> str:
    """Say a fault with its GPU and what is asked for."""
    wish = {Policy.RESET: " (a reset is wanted)", Policy.REBOOT: " (a reboot is wanted)"}.get(told.policy, "")
    index = next((gpu.index for gpu in inventory.gpus if gpu.uuid == told.gpu), None)
    where = f"GPU {index}: " if index is not None else ""
    return f"{where}{told.text}{wish}"
