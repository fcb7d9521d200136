"""What MPS needs of the node: which control daemons, with which limits; and the port to whoever runs them.

A control daemon serves the GPUs of one resource. It is not ours to end: containers are connected to it that outlive us.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gpuplugin.plan.sharing import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuplugin.config import Config
    from gpuplugin.model.ids import GpuUuid, ResourceName
    from gpuplugin.plan.units import Unit

VOLTA = (7, 0)
CLIENTS, CLIENTS_BEFORE_VOLTA = 48, 16
"""How many processes one MPS server takes on one GPU."""


@dataclass(frozen=True, slots=True)
class MpsGroup:
    """The GPUs of one control daemon, by index, and what it shall allow each client.

    root: the host's folder for all of MPS · clients: how many are expected on each GPU · thread_percentage: of a GPU's
    threads · memory: bytes of each GPU's memory; a GPU whose size is not known is not in it.
    """

    root: str
    resource: ResourceName
    gpus: tuple[GpuUuid, ...]
    clients: int
    thread_percentage: int
    memory: Mapping[GpuUuid, int]

    @property
    def folders(self) -> MpsFolders:
        """Where its pipes and shared memory are, laid out as the reference does."""
        return MpsFolders(f"{self.root}/{self.resource}/pipe", f"{self.root}/shm")


@dataclass(frozen=True, slots=True)
class MpsFolders:
    """The host's folders that a client needs: the control daemon's pipes, and shared memory."""

    pipe: str
    shm: str


@dataclass(frozen=True, slots=True)
class MpsNotReady:
    """Why clients cannot be given a control daemon now, and what to do."""

    reason: str


MpsState = MpsFolders | MpsNotReady


class MpsDaemons(Protocol):
    """Whoever sees to it that control daemons run."""

    async def ready(self, groups: tuple[MpsGroup, ...]) -> Mapping[ResourceName, MpsState]:
        """Bring about that one daemon runs for each group, and none beyond them; say for each how it stands.

        Called with every look at the machine and every few seconds in between, with equal groups while nothing has
        changed, so it must be cheap then; an answer that differs is acted on at once. Never raises.
        """


def client_limit(unit: Unit) -> int:
    """How many clients the device takes; the lower limit where its compute capability is not known."""
    capability = unit.gpu.compute_capability
    return CLIENTS if capability is not None and capability >= VOLTA else CLIENTS_BEFORE_VOLTA


def unfit(unit: Unit) -> str:
    """Say why a device cannot be shared by MPS; "" when it can."""
    if unit.share is None or unit.share.kind is not Kind.MPS:
        return ""
    if unit.mig is not None:
        return "MPS on MIG devices is not offered; share them by time-slicing, or turn MIG off"
    limit = client_limit(unit)
    if unit.share.replicas > limit:
        return f"MPS takes at most {limit} clients on a {unit.gpu.model}, and {unit.share.replicas} replicas are wanted"
    return ""


def groups(units: Iterable[Unit], config: Config) -> tuple[MpsGroup, ...]:
    """Give the control daemons that the devices need, by resource."""
    members: dict[ResourceName, list[Unit]] = {}
    for unit in units:
        if unit.share is not None and unit.share.kind is Kind.MPS and not unit.isolated and not unfit(unit):
            members.setdefault(unit.resource, []).append(unit)
    return tuple(_group(name, members[name], config) for name in sorted(members))


def _group(resource: ResourceName, members: list[Unit], config: Config) -> MpsGroup:
    settings = config.sharing.mps
    clients = max(unit.share.replicas for unit in members if unit.share)
    percentage = settings.default_active_thread_percentage if settings else None
    limit = settings.memory_limit if settings else None
    shares = {unit.gpu.uuid: limit or (unit.gpu.memory_bytes or 0) // clients for unit in members}
    memory = {gpu: size for gpu, size in shares.items() if size}
    return MpsGroup(
        root=config.flags.mps_folder,
        resource=resource,
        gpus=tuple(unit.gpu.uuid for unit in members),
        clients=clients,
        thread_percentage=percentage or 100 // clients,
        memory=memory,
    )
