"""What the names in a claim stand for on this node: the GPU, how a container is given it, and what is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplugin.model.ids import GpuUuid, NumaId, PciAddress


@dataclass(frozen=True, slots=True)
class NodeDevice:
    """A device of our pool. name: in the pool · cdi: its qualified names, which a runtime resolves.

    refusal: why no container can be given it now; empty when it can · island: of GPUs joined by NVLink, by its name.
    """

    name: str
    gpu: GpuUuid
    cdi: tuple[str, ...]
    pci: PciAddress
    numa: NumaId | None = None
    island: str | None = None
    refusal: str = ""

    @property
    def facts(self) -> dict[str, Any]:
        """What a claim's ``status.devices`` says of it, under the names that its attributes have; unknown is absent."""
        facts = {"uuid": self.gpu, "pciBusID": self.pci, "numaNode": self.numa, "nvlinkIsland": self.island}
        return {name: value for name, value in facts.items() if value is not None}


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """All devices of the pool, by name. unknown: why nothing can be said of them yet; then there are none."""

    by_name: Mapping[str, NodeDevice]
    unknown: str = ""
