"""What the names in a claim stand for on this node: the GPU, how a container is given it, and what is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cdi.names import qualified_name
from dra.attributes import OWN, STANDARD
from gpuplugin.model.ids import GpuUuid, NumaId, PciAddress

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuplugin.kube.objects import Device


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


def describe(offered: Iterable[Device], refusals: Mapping[GpuUuid, str], kind: str) -> NodeDevices:
    """Tell what the devices of our slices stand for here.

    offered: all that the node has, as slices describe them · refusals: GPUs that no container can be given now, and why
    · kind: of the CDI document that has them by their UUID.
    """
    return NodeDevices(MappingProxyType({device.name: _describe(device, refusals, kind) for device in offered}))


def _describe(device: Device, refusals: Mapping[GpuUuid, str], kind: str) -> NodeDevice:
    def text(name: str) -> str | None:
        found = device.attributes.get(name)
        return found.string if found else None

    numa = device.attributes.get(f"{STANDARD}/numaNode")
    gpu = GpuUuid(text("uuid") or "")
    return NodeDevice(
        name=device.name,
        gpu=gpu,
        cdi=(qualified_name(kind, gpu),),
        pci=PciAddress(text(f"{STANDARD}/pciBusID") or ""),
        numa=NumaId(numa.number) if numa and numa.number is not None else None,
        island=text(f"{OWN}/nvlinkIsland"),
        refusal=refusals.get(gpu, ""),
    )
