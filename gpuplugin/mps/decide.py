"""What is to be done about the control daemons, decided from what runs and what is wanted: no I/O.

Two rules stand above all: never two control daemons on one GPU, and never end one that has clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from gpuplugin.model.ids import GpuUuid, ResourceName
    from gpuplugin.plan.mps import MpsGroup


@dataclass(frozen=True, slots=True)
class Running:
    """A control daemon that lives. gpus: those it was started for, None for all of the machine."""

    resource: ResourceName
    pid: int
    gpus: frozenset[GpuUuid] | None


@dataclass(frozen=True, slots=True)
class Known:
    """What is known beside what is wanted.

    present: the GPUs of the machine · running: by resource · clients: how many each of those has that do not fit any
    more, None where it does not answer · told: resources that were reported as not ready at the look before, so that no
    new client is on its way · resting: why a resource's daemon must not be started yet.
    """

    present: frozenset[GpuUuid]
    running: Mapping[ResourceName, Running]
    clients: Mapping[ResourceName, int | None] = field(default_factory=dict)
    told: AbstractSet[ResourceName] = frozenset()
    resting: Mapping[ResourceName, str] = field(default_factory=dict)

    def gpus(self, resource: ResourceName) -> frozenset[GpuUuid]:
        """Which GPUs a running daemon serves."""
        gpus = self.running[resource].gpus
        return self.present if gpus is None else gpus


@dataclass(frozen=True, slots=True)
class Plan:
    """end before start. waiting: why a resource is not ready, also for those that start after this."""

    keep: tuple[MpsGroup, ...]
    end: tuple[ResourceName, ...]
    start: tuple[MpsGroup, ...]
    waiting: Mapping[ResourceName, str]


def outdated(wanted: Iterable[MpsGroup], known: Known) -> dict[ResourceName, str]:
    """Say which running daemons do not fit what is wanted, and why.

    One whose GPU has gone from the machine fits all the same: it comes back, and the clients of the others matter more.
    """
    groups = {group.resource: group for group in wanted}
    found: dict[ResourceName, str] = {}
    for resource in known.running:
        gpus = known.gpus(resource)
        group = groups.get(resource)
        if group is None:
            found[resource] = "is wanted no more"
        elif missing := set(group.gpus) - gpus:
            found[resource] = f"does not serve {', '.join(sorted(missing))}"
        elif surplus := (gpus & known.present) - set(group.gpus):
            found[resource] = f"still serves {', '.join(sorted(surplus))}"
    return found


def decide(wanted: tuple[MpsGroup, ...], known: Known) -> Plan:
    """Give the next steps. A daemon that does not fit ends once it has no clients and no new ones can come."""
    unfit = outdated(wanted, known)
    waiting: dict[ResourceName, str] = {}
    end: list[ResourceName] = []
    for resource, why in unfit.items():
        clients = known.clients.get(resource)
        if clients == 0 and resource in known.told:
            end.append(resource)
        waiting[resource] = f"the MPS control daemon {why}; {_awaited(clients)}"
    keep: list[MpsGroup] = []
    start: list[MpsGroup] = []
    served = {gpu: resource for resource in known.running for gpu in known.gpus(resource)}
    for group in wanted:
        if group.resource in known.running:
            if group.resource not in unfit:
                keep.append(group)
            continue
        taken = {served[gpu] for gpu in group.gpus if gpu in served}
        if taken:
            others = ", ".join(sorted(taken))
            waiting[group.resource] = f"its GPUs are still served by the MPS control daemon of {others}"
        elif group.resource in known.resting:
            waiting[group.resource] = known.resting[group.resource]
        else:
            start.append(group)
            served |= dict.fromkeys(group.gpus, group.resource)
    return Plan(tuple(keep), tuple(end), tuple(start), waiting)


def _awaited(clients: int | None) -> str:
    if clients is None:
        return "it does not say whether it has clients, and is left alone"
    return f"it is replaced when its {clients} clients have left" if clients else "it is being replaced"


def limits(group: MpsGroup) -> tuple[str, ...]:
    """Give the commands that set what each client may use. They hold for MPS servers that start after them."""
    memory = {gpu: size >> 20 for gpu, size in group.memory.items()}
    return (
        *(f"set_default_device_pinned_mem_limit {gpu} {size}M" for gpu, size in sorted(memory.items()) if size),
        f"set_default_active_thread_percentage {group.thread_percentage}",
    )
