"""The port through which everything asks NVML: typed facts in, typed errors out, no ctypes beyond it.

Only `nvml_real` implements it; tests and ``--simulate`` put a double behind pynvml, below the real implementation, so
that its ABI work (versioned structs, handles, error codes) is always exercised. Every method blocks and is called on
the one NVML thread, except `wait`, which has a thread of its own. Any method may raise NvmlError and its kinds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from gpuplugin.model.condition import NOTHING_TOLD, Condition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpuplugin.model.health import XidEvent
    from gpuplugin.model.ids import GpuUuid, PciAddress
    from gpuplugin.model.inventory import AddressingMode, Driver, Fabric, MigDevice, MigMode
    from gpuplugin.model.telemetry import Quantity, Telemetry


class RecoveryAction(IntEnum):
    """nvmlDeviceGetGpuRecoveryAction_t (field 230): what the driver wants done before the GPU can be used."""

    NONE = 0
    GPU_RESET = 1
    NODE_REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4
    IMEX = 5
    BUS_RESET = 6
    SYSTEM_REBOOT = 7


class ComputeMode(IntEnum):
    """nvmlComputeMode_t: how many processes may use the GPU at once."""

    DEFAULT = 0
    EXCLUSIVE_THREAD = 1
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3


@dataclass(frozen=True, slots=True)
class NvLinkEnd:
    """The far end of one active NVLink: a GPU's PCI address, or a switch (`pci` is then of no use and None)."""

    link: int
    to_switch: bool
    pci: PciAddress | None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What NVML alone tells of one GPU. Optional facts that are not supported are None; see model.inventory.Gpu.

    module_id: nvmlDeviceGetModuleId's, from 1; whether it is a place on a baseboard, discovery.baseboard says.
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
    nvlinks: tuple[NvLinkEnd, ...]
    brand: str | None = None
    module_id: int | None = None
    addressing: AddressingMode | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """A GPU's answer to "can you be used?": it did. recovery: what the driver wants, None: not supported."""

    recovery: RecoveryAction | None
    condition: Condition = NOTHING_TOLD


class Nvml(Protocol):
    """NVML as gpuplugin needs it."""

    def open(self) -> None:
        """Load and initialise. NvmlUnavailable says what is missing. Opening twice is allowed and does nothing."""

    def close(self) -> None:
        """Shut down; a `wait` in progress returns None. All handles are void afterwards. Never raises."""

    def driver(self) -> Driver:
        """Versions of driver, NVML and CUDA."""

    def gpu_count(self) -> int:
        """How many GPUs NVML counts; a lost one is still counted."""

    def gpu(self, index: int) -> GpuReading:
        """Everything about one GPU. A mandatory fact (UUID, PCI address, name) that cannot be had raises."""

    def gpu_pci(self, index: int) -> PciAddress:
        """Give the address alone, which may still be told when `gpu` raises."""

    def probe(self, uuid: GpuUuid) -> Probe:
        """Talk to the GPU itself; GpuLost when it does not answer."""

    def compute_mode(self, uuid: GpuUuid) -> ComputeMode:
        """Say how many processes may use the GPU at once."""

    def set_compute_mode(self, uuid: GpuUuid, mode: ComputeMode) -> None:
        """Change it; needs root. It lasts until the driver is loaded anew."""

    def telemetry(self, uuid: GpuUuid, instances: Mapping[int, int], wanted: Collection[Quantity]) -> Telemetry:
        """Measure a GPU and its GPU instances (their id → slot of a MIG device in them).

        What is not told is left out. What counts the time between two looks comes from the second one on; they should
        be a tenth of a second apart or more. GpuLost when the GPU does not answer.
        """

    def watch(self) -> dict[GpuUuid, str]:
        """Make an event set and register every GPU for critical XIDs.

        Returns the GPUs that cannot be watched, with the reason (empty: all are). A second call starts afresh.
        """

    def wait(self, seconds: float) -> XidEvent | None:
        """Return the next critical XID, or None when `seconds` passed. Releases the GIL."""
