"""From what NVML answers, or does not, to what is wrong with the GPU, in the plan's words.

The look at the machine and the probes use the same words for the same trouble: a GPU that is lost is lost once, whoever
finds it first.
"""

from __future__ import annotations

from typing import Final

from gpuplugin.discovery.nvml import Probe, RecoveryAction
from gpuplugin.errors import GpuLost, NvmlError, NvmlHung
from gpuplugin.plan.faults import FaultKind
from gpuplugin.plan.health import Finding

_WISHES: Final = {
    RecoveryAction.GPU_RESET: FaultKind.RESET_WANTED,
    RecoveryAction.DRAIN_AND_RESET: FaultKind.RESET_WANTED,
    RecoveryAction.BUS_RESET: FaultKind.RESET_WANTED,
    RecoveryAction.NODE_REBOOT: FaultKind.REBOOT_WANTED,
    RecoveryAction.SYSTEM_REBOOT: FaultKind.REBOOT_WANTED,
    RecoveryAction.DRAIN_P2P: FaultKind.ACTION_WANTED,
    RecoveryAction.IMEX: FaultKind.ACTION_WANTED,
}


def in_words(error: NvmlError) -> str:
    """Words that stay the same for as long as the trouble does; which call met a lost GPU is chance, and left out."""
    return f"NVML: {error.name}" if isinstance(error, GpuLost) else f"NVML: {error.name} ({error.call})"


def finding_of_error(error: NvmlError) -> Finding:
    """Say what is wrong with a GPU of which a probe raised this."""
    kind = FaultKind.SILENT
    if isinstance(error, GpuLost):
        kind = FaultKind.LOST
    elif isinstance(error, NvmlHung):
        kind = FaultKind.HUNG
    return Finding({kind: in_words(error)})


def finding_of(probe: Probe, in_look: str) -> Finding:
    """Say what is wrong with a GPU that answered. in_look: why the last look could not read it, "" where it could."""
    found: dict[FaultKind, str] = {}
    if in_look:
        found[FaultKind.UNREADABLE] = in_look
    if probe.recovery:
        action = probe.recovery.name.lower().replace("_", " ")
        found[_WISHES[probe.recovery]] = f"the driver asks for: {action}"
    return Finding(found, told=probe.recovery is not None)
