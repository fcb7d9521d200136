"""The one ledger: which GPUs are held, who may have one that is wanted, and which of the two ways hands out which GPU.

Pure. Device plugin, claims and changes of MIG all ask here, so that none hands out, or destroys, what another holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpuplugin.model.holds import Hold, Owner, Use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpuplugin.model.holds import Holder
    from gpuplugin.model.ids import GpuUuid
    from gpuplugin.model.inventory import Gpu


@dataclass(frozen=True, slots=True)
class Ledger:
    """All holds of a node."""

    holds: tuple[Hold, ...] = ()

    def of(self, gpu: GpuUuid) -> tuple[Hold, ...]:
        """Who holds a GPU."""
        return tuple(hold for hold in self.holds if hold.gpu == gpu)

    def __add__(self, other: Ledger) -> Ledger:
        return Ledger((*self.holds, *other.holds))

    def bars(self, wanted: Iterable[Hold]) -> tuple[Hold, ...]:
        """Holds of others that keep these from being granted. What the same holder has already is no obstacle."""
        return tuple(
            held
            for hold in wanted
            for held in self.of(hold.gpu)
            if not _same(held.holder, hold.holder) and held.use.bars(hold.use)
        )


@dataclass(frozen=True, slots=True)
class Division:
    """Which GPUs are handed out by whom.

    withheld: GPUs that their owner must not hand out yet, with the reason, because the other way has them in use.
    """

    owners: Mapping[GpuUuid, Owner]
    withheld: Mapping[GpuUuid, str]

    def of(self, owner: Owner) -> frozenset[GpuUuid]:
        """GPUs of one owner, withheld ones too."""
        return frozenset(gpu for gpu, its in self.owners.items() if its is owner)


def divide(gpus: Iterable[Gpu], for_claims: Callable[[Gpu], bool], ledger: Ledger) -> Division:
    """Give each GPU to one owner, as configured; one that is still held through the other is withheld until it is free.

    for_claims: whether a GPU is configured to be handed out by claims.
    """
    owners = {gpu.uuid: Owner.CLAIMS if for_claims(gpu) else Owner.DEVICE_PLUGIN for gpu in gpus}
    withheld = {
        hold.gpu: f"still held by {hold.holder}; it is handed out by {owners[hold.gpu].value} once that has ended"
        for hold in ledger.holds
        if hold.gpu in owners and hold.holder.owner is not owners[hold.gpu] and hold.use is not Use.WATCHED
    }
    return Division(MappingProxyType(owners), MappingProxyType(withheld))


def _same(one: Holder, other: Holder) -> bool:
    return (one.owner, one.namespace, one.name, one.uid) == (other.owner, other.namespace, other.name, other.uid)
