"""From what NVML answers, or does not, to what is wrong with the GPU, in the plan's words.

The look at the machine and the probes use the same words for the same trouble: a GPU that is lost is lost once, whoever
finds it first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuplugin.discovery.nvml import Probe, RecoveryAction
from gpuplugin.errors import GpuLost, NvmlError, NvmlHung
from gpuplugin.model.inventory import FabricState
from gpuplugin.plan.faults import FaultKind
from gpuplugin.plan.health import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuplugin.model.condition import Condition
    from gpuplugin.model.inventory import Fabric

_WISHES: Final = {
    RecoveryAction.GPU_RESET: FaultKind.RESET_WANTED,
    RecoveryAction.DRAIN_AND_RESET: FaultKind.RESET_WANTED,
    RecoveryAction.BUS_RESET: FaultKind.RESET_WANTED,
    RecoveryAction.NODE_REBOOT: FaultKind.REBOOT_WANTED,
    RecoveryAction.SYSTEM_REBOOT: FaultKind.REBOOT_WANTED,
    RecoveryAction.DRAIN_P2P: FaultKind.ACTION_WANTED,
    RecoveryAction.IMEX: FaultKind.ACTION_WANTED,
}


_FABRIC_ILLS: Final = (
    ("less bandwidth than it has", 0, 0x3, {1}),
    ("its routes are being recovered", 2, 0x3, {1}),
    ("its routes are unhealthy", 4, 0x3, {1}),
    ("recovering from an access timeout", 6, 0x3, {1}),
    ("it is configured wrongly", 8, 0xF, set(range(2, 16))),
)
"""Parts of nvmlGpuFabricInfo's healthMask: in words, their shift and mask, and the values that mean it."""


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


def finding_of(probe: Probe, in_look: str, before: Condition | None = None) -> Finding:
    """Say what is wrong with a GPU that answered.

    in_look: why the last look could not read it, "" where it could · before: its condition at the probe before.
    """
    found: dict[FaultKind, str] = {}
    if in_look:
        found[FaultKind.UNREADABLE] = in_look
    if probe.recovery:
        action = probe.recovery.name.lower().replace("_", " ")
        found[_WISHES[probe.recovery]] = f"the driver asks for: {action}"
    found.update(_conditions(probe.condition, before))
    return Finding(found, told=probe.recovery is not None)


def _conditions(now: Condition, before: Condition | None) -> Iterator[tuple[FaultKind, str]]:
    """Texts have no counts in them: one that changed with every error would be told with every error."""
    if now.ecc_uncorrectable:
        yield FaultKind.ECC_UNCORRECTABLE, "uncorrectable memory errors (ECC) since the last reset"
    if now.rows_pending:
        yield FaultKind.ROW_REMAP_PENDING, "memory rows are to be replaced: reset the GPU when it is free"
    if now.rows_failed:
        yield (
            FaultKind.ROW_REMAP_FAILED,
            "a bad memory row could not be replaced: reset the GPU, and exchange it if it stays",
        )
    if links := _links(now, before):
        yield FaultKind.NVLINK, links
    if fabric := _fabric(now.fabric):
        yield FaultKind.FABRIC, fabric
    if now.hot:
        yield FaultKind.THERMAL, "clocks are lowered because of heat"
    if now.braked:
        yield FaultKind.POWER_BRAKE, "clocks are lowered by the machine's power brake"


def _links(now: Condition, before: Condition | None) -> str:
    texts = []
    if now.links_down:
        texts.append(f"NVLinks are down: {', '.join(map(str, now.links_down))}")
    earlier = before.nvlink_recoveries if before else None
    if now.nvlink_recoveries is not None and earlier is not None and now.nvlink_recoveries > earlier:
        texts.append("an NVLink had to recover from errors")
    return "; ".join(texts)


def _fabric(fabric: Fabric | None) -> str:
    """A fabric that nobody has begun to join (NOT_STARTED) is no fault: some GPUs stay so for good."""
    if fabric is None or fabric.state in (FabricState.NOT_SUPPORTED, FabricState.NOT_STARTED):
        return ""
    if fabric.state is FabricState.IN_PROGRESS:
        return "the NVLink fabric has not been joined yet: is the fabric manager running?"
    if fabric.status:
        return f"joining the NVLink fabric failed (NVML code {fabric.status})"
    ills = [name for name, shift, width, ill in _FABRIC_ILLS if (fabric.health_mask or 0) >> shift & width in ill]
    return f"the NVLink fabric is unhealthy: {', '.join(ills)}" if ills else ""
