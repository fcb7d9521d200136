"""What labels are made from: the machine, what is offered of it, and the little that only labels ask for."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplugin.model.ids import PciAddress
    from gpuplugin.model.inventory import Gpu, Inventory, MigDevice

Labels = dict[str, str]
Sharing = Literal["none", "time-slicing", "mps"]


@dataclass(frozen=True, slots=True)
class Offer:
    """A device that pods can ask for. mig: None for a whole GPU.

    replicas: how often it is offered · renamed: whether that is under another name than unshared · isolated: whether
    the MIG strategy has no use for it.
    """

    gpu: Gpu
    mig: MigDevice | None = None
    replicas: int = 1
    sharing: Sharing = "none"
    renamed: bool = False
    isolated: bool = False


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node. gpus: those of the inventory that are anybody's to use · offers: by GPU index, then MIG index.

    machine: the machine's model, None where the firmware does not tell · pci_classes: each GPU's class and subclass
    (0x0302), without those that could not be read · timestamp: Unix seconds to be told, None for none.
    """

    inventory: Inventory
    gpus: tuple[Gpu, ...]
    offers: tuple[Offer, ...]
    strategy: Literal["none", "single", "mixed"] = "none"
    mps: bool = False
    machine: str | None = None
    pci_classes: Mapping[PciAddress, int] = field(default_factory=lambda: MappingProxyType({}))
    timestamp: int | None = None
