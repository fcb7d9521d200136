"""What is in the machine, as one frozen, numbered picture that every other part reads.

A fact that could not be had is None; it is never replaced by a guess. A GPU that cannot be read never hides the others:
one that was seen before stays in `gpus` with its `fault`, one that never told who it is stands in `unreadable`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuplugin.model.ids import GpuUuid, MigUuid, NumaId, PciAddress
    from gpuplugin.model.links import NvLinks


class FabricState(IntEnum):
    """nvmlGpuFabricState_t: how far the GPU has come in joining its NVLink fabric."""

    NOT_SUPPORTED = 0
    NOT_STARTED = 1
    IN_PROGRESS = 2
    COMPLETED = 3


class AddressingMode(StrEnum):
    """nvmlDeviceAddressingModeType_t: how the GPU reaches memory that programs got from malloc, in nvidia-smi's words.

    HMM: the driver mirrors the CPU's page tables · ATS: GPU and CPU use the same ones · NONE: not at all.
    """

    NONE = "None"
    HMM = "HMM"
    ATS = "ATS"


@dataclass(frozen=True, slots=True)
class Fabric:
    """NVLink fabric membership.

    cluster: a UUID in lower case (all zero on a single HGX node) · status: nvmlReturn_t of having joined, 0 is good ·
    health_mask: nvmlGpuFabricInfo's bits, several to each thing that can be wrong with the fabric (which, says
    discovery.findings); 0: nothing is told, None: this driver does not have it.
    """

    state: FabricState
    cluster: str
    clique: int
    status: int
    health_mask: int | None = None

    @property
    def key(self) -> str | None:
        """``<cluster UUID>.<clique id>`` where the GPU is in a multi-node fabric, else None."""
        joined = self.state is FabricState.COMPLETED and self.status == 0 and self.cluster.strip("0-") != ""
        return f"{self.cluster}.{self.clique}" if joined else None


@dataclass(frozen=True, slots=True)
class PciePath:
    """Where a device hangs: the root (``pci0000:17``) and the bridges below it, from root port to direct parent."""

    root: str
    bridges: tuple[PciAddress, ...] = ()

    @property
    def switch(self) -> PciAddress | None:
        """The upstream port of the nearest PCIe switch: the bridge above the direct parent, when that is in a switch.

        A switch shows itself as two bridges in a row below a root port, so with fewer than three bridges there is none.
        """
        return self.bridges[-2] if len(self.bridges) > 2 else None  # noqa: PLR2004


@dataclass(frozen=True, slots=True)
class MigMode:
    """Whether MIG is on, and whether it will be after the next reset."""

    current: bool
    pending: bool


@dataclass(frozen=True, slots=True)
class MigPlacement:
    """First memory slice and how many."""

    start: int
    size: int


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A GPU instance with a compute instance in it. `index` is NVML's slot on the parent, which may have holes."""

    uuid: MigUuid
    index: int
    gpu_instance: int
    compute_instance: int
    profile: str
    placement: MigPlacement | None
    memory_bytes: int | None
    multiprocessors: int | None
    gpu_slices: int | None
    compute_slices: int | None
    copy_engines: int | None
    decoders: int | None
    encoders: int | None
    jpegs: int | None
    ofas: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical GPU.

    index: NVML's · minor: N of /dev/nvidiaN, not the same as index · memory_bytes: None where NVML does not tell
    (GB10) · compute_capability: (major, minor) · architecture: lower case (``hopper``) · mig: None where the GPU has no
    MIG · numa, pcie: None where sysfs does not tell · fault: why it cannot be used now; the other facts are then those
    of the last good look · brand: ``Nvidia``, ``Tesla``, in the words of nvml_decode · slot: the GPU's place on its
    baseboard, counted from 1 as people who exchange it count, in no order of index or PCI address; None for a card ·
    addressing: None where the driver does not tell.
    """

    index: int
    uuid: GpuUuid
    pci: PciAddress
    minor: int | None
    model: str
    architecture: str | None
    memory_bytes: int | None
    compute_capability: tuple[int, int] | None
    mig: MigMode | None
    mig_devices: tuple[MigDevice, ...]
    fabric: Fabric | None
    numa: NumaId | None
    pcie: PciePath | None
    fault: str | None = None
    brand: str | None = None
    slot: int | None = None
    addressing: AddressingMode | None = None

    @property
    def only_for_display(self) -> bool:
        """Whether it is the small GPU of a DGX Station that drives its screen, and none to compute on."""
        return "DGX Display" in self.model


@dataclass(frozen=True, slots=True)
class UnreadableGpu:
    """A GPU that NVML counts but that never told who it is."""

    index: int
    pci: PciAddress | None
    reason: str


@dataclass(frozen=True, slots=True)
class Nic:
    """An RDMA-capable network port's device. `rate` as sysfs says it (``400 Gb/sec (4X NDR)``)."""

    name: str
    pci: PciAddress
    numa: NumaId | None
    pcie: PciePath | None
    link_layer: str | None
    rate: str | None
    state: str | None
    node_guid: str | None
    netdev: str | None
    uverbs: str | None


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A NUMA node: its CPUs in ascending order, and its distance to each node, in the order of the node ids."""

    id: NumaId
    cpus: tuple[int, ...]
    distances: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Driver:
    """Versions as NVML says them; `cuda` is the highest that the driver serves, (major, minor)."""

    version: str
    nvml: str
    cuda: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Inventory:
    """All of it. `number` grows by one with each picture that differs from the one before.

    gpus: by index; `nvlinks` is in the same order · nics: by name · numa_nodes: by id, empty where sysfs has none.
    """

    number: int
    driver: Driver
    gpus: tuple[Gpu, ...]
    unreadable: tuple[UnreadableGpu, ...]
    nvlinks: NvLinks
    nics: tuple[Nic, ...]
    numa_nodes: tuple[NumaNode, ...]
    warnings: tuple[str, ...] = ()
