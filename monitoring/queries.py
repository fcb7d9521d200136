"""Recording rules and alerts, each with what to do about it; of series that the registry has, by their objects.

A series is named by its object and not by its name in quotes, so that one which is renamed or gone fails here and not
in somebody's cluster at night.
"""

# ruff: noqa: INP001  (a table beside the script that reads it, no package)
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpuplugin.metrics import registry
from gpuplugin.model.telemetry import Quantity
from gpuplugin.model.xid import CATALOGUE, XidKind

if TYPE_CHECKING:
    from gpuplugin.metrics.series import Series

DEVICE: Final = "GPU {{ $labels.gpu }} ({{ $labels.UUID }}) of {{ $labels.instance }}"


@dataclass(frozen=True, slots=True)
class Recording:
    """A series made of others. about: for the documentation."""

    name: str
    query: str
    about: str


@dataclass(frozen=True, slots=True)
class Alert:
    """severity: critical (a person, now), warning (a person, today), info (to look at) · lasts: before it fires."""

    name: str
    query: str
    severity: str
    summary: str
    runbook: str
    lasts: str = "0m"


def named(quantity: Quantity) -> str:
    """Give the name of dcgm-exporter's series of a quantity."""
    return next(series.name for series in registry.DEVICE_SERIES if series.quantity is quantity)


def of_gpu(query: str) -> str:
    """Leave out who has the GPU: an alert must not begin anew when a pod comes or goes."""
    return f"max by (instance, gpu, UUID) ({query})"


def grown(series: Series, window: str, selector: str = "") -> str:
    """Say that a counter of ours has grown, also where that was its first event, which `increase` does not see."""
    one = f"{series.name}{selector}"
    return f"(increase({one}[{window}]) > 0) or ({one} unless {one} offset {window})"


def xids(*kinds: XidKind) -> str:
    """Select XIDs of these kinds."""
    codes = sorted(code for code, kind in CATALOGUE.items() if kind in kinds)
    return f'{{xid=~"{"|".join(map(str, codes))}"}}'


HOLDERS: Final = "UUID, GPU_I_ID, namespace, pod, container"
ALLOCATION: Final = "gpuplugin:allocation:info"
UTILIZATION: Final = "gpuplugin:device_utilization:ratio"
POD_POWER: Final = "gpuplugin:pod_power:watts"
POD_UTILIZATION: Final = "gpuplugin:pod_utilization:ratio"
POD_MEMORY: Final = "gpuplugin:pod_memory_used:bytes"

RECORDINGS: Final = (
    Recording(
        ALLOCATION,
        f"max by ({HOLDERS}) ({registry.ALLOCATION_INFO.name})",
        "each device of each container, once, also while two daemons are scraped during an update",
    ),
    Recording(
        UTILIZATION,
        f"max by (UUID, GPU_I_ID) ({named(Quantity.GRAPHICS_ACTIVE)})"
        f" or max by (UUID, GPU_I_ID) ({named(Quantity.GPU_UTILIZATION)}) / 100",
        "how busy a GPU or MIG device is: by GPM where the GPU has it, else by the driver's coarser figure",
    ),
    Recording(
        POD_POWER,
        f"sum by (namespace, pod) ({ALLOCATION} * on (UUID) group_left () max by (UUID) ({named(Quantity.POWER)})"
        f" / on (UUID) group_left () count by (UUID) ({ALLOCATION}))",
        "power of a pod's GPUs; of a GPU with several holders each gets the same part",
    ),
    Recording(
        POD_UTILIZATION,
        f"avg by (namespace, pod) ({ALLOCATION} * on (UUID, GPU_I_ID) group_left () {UTILIZATION})",
        "how busy a pod's GPUs are; a shared GPU counts with all that runs on it",
    ),
    Recording(
        POD_MEMORY,
        f"sum by (namespace, pod) ({ALLOCATION} * on (UUID, GPU_I_ID) group_left ()"
        f" max by (UUID, GPU_I_ID) ({named(Quantity.MEMORY_USED)}) * 1048576)",
        "memory in use on a pod's GPUs; a shared GPU counts with all that runs on it",
    ),
)

_LAST_SEEN: Final = registry.XID_LAST_SEEN.name

ALERTS: Final = (
    Alert(
        "GpuWithdrawn",
        f"{registry.DEVICE_HEALTHY.name} == 0",
        "warning",
        f"{DEVICE} is not handed out",
        f"{registry.DEVICE_FAULT.name} has the reason; it comes back by itself once that has ended. Drain its pods if"
        " the reason asks for a reset.",
        "5m",
    ),
    Alert(
        "GpuNeedsRepair",
        f'max by (instance, gpu, UUID, fault, policy) ({registry.GPU_FAULT.name}{{policy=~"reset|reboot"}})',
        "critical",
        f"{DEVICE} waits for a {{{{ $labels.policy }}}} ({{{{ $labels.fault }}}})",
        "Drain the GPU's pods, or the node's for a reboot, and do that; a fault that comes back asks for another GPU.",
        "10m",
    ),
    Alert(
        "GpuXidNeedsReset",
        f"time() - {_LAST_SEEN}{xids(XidKind.RESET_GPU)} < 600",
        "critical",
        f"XID {{{{ $labels.xid }}}} on {DEVICE}",
        "Drain the GPU's pods, then nvidia-smi --gpu-reset; if it comes back, have the GPU replaced.",
    ),
    Alert(
        "GpuXidNeedsRestart",
        f"time() - {_LAST_SEEN}{xids(XidKind.RESTART_MACHINE, XidKind.RESTART_VM, XidKind.MECHANICAL)} < 600",
        "critical",
        f"XID {{{{ $labels.xid }}}} on {DEVICE}",
        "Drain the node and restart the machine; after a second one check seating, power cables and the GPU itself.",
    ),
    Alert(
        "GpuXidToLookInto",
        f"time() - {_LAST_SEEN}{xids(XidKind.INVESTIGATE, XidKind.UPDATE_SOFTWARE, XidKind.UVM)} < 600",
        "warning",
        f"XID {{{{ $labels.xid }}}} on {DEVICE}",
        "Look the code up in NVIDIA's XID catalogue, and into dmesg of the node around that time.",
    ),
    Alert(
        "GpuRowRemapFailed",
        f"{of_gpu(named(Quantity.ROW_REMAP_FAILED))} == 1",
        "critical",
        f"{DEVICE} has no spare rows left for broken memory",
        "Drain its pods and have the GPU replaced: this does not mend.",
    ),
    Alert(
        "GpuRowRemapPending",
        f"{of_gpu(named(Quantity.ROW_REMAP_PENDING))} == 1 or {of_gpu(named(Quantity.RETIRED_PAGES_PENDING))} == 1",
        "warning",
        f"{DEVICE} has broken memory that a reset takes out of use",
        "Reset the GPU (nvidia-smi --gpu-reset) when its pods have ended.",
        "1h",
    ),
    Alert(
        "GpuEccUncorrected",
        of_gpu(f"increase({named(Quantity.ECC_UNCORRECTED_VOLATILE)}[1h])") + " > 0",
        "warning",
        f"{DEVICE} had memory errors that could not be corrected",
        "What ran on it then may have ended or be wrong. More than a few a month: run NVIDIA's field diagnostic.",
    ),
    Alert(
        "GpuThrottledByHeat",
        of_gpu(f"rate({named(Quantity.THROTTLED_BY_TEMPERATURE)}[5m])") + " / 1e9 > 0.1",
        "warning",
        f"{DEVICE} lowers its clocks to cool for more than a tenth of the time",
        "Check fans, air flow and inlet temperature of the machine.",
        "10m",
    ),
    Alert(
        "GpuThrottledByPower",
        of_gpu(f"rate({named(Quantity.THROTTLED_BY_POWER)}[5m])") + " / 1e9 > 0.5",
        "info",
        f"{DEVICE} lowers its clocks to limit power for more than half of the time",
        "Usual at full load. Compare its power with that of its neighbours: a lower cap or a power brake differs.",
        "30m",
    ),
    Alert(
        "GpuNvLinkErrors",
        " or ".join(
            of_gpu(f"increase({named(quantity)}[1h])") + " > 0"
            for quantity in (Quantity.NVLINK_RECOVERIES, Quantity.NVLINK_CRC_DATA_ERRORS, Quantity.NVLINK_REPLAYS)
        ),
        "warning",
        f"NVLink errors on {DEVICE}",
        "Training slows or hangs when they go on: look at nvidia-smi nvlink -e on both ends, reseat, then replace.",
        "15m",
    ),
    Alert(
        "GpuPcieReplays",
        of_gpu(f"rate({named(Quantity.PCIE_REPLAYS)}[15m])") + " > 0.1",
        "warning",
        f"{DEVICE} repeats what it sends over PCIe",
        "Reseat the GPU or its riser; compare PCIe speed and width with those of its neighbours.",
        "15m",
    ),
    Alert(
        "GpuNotMeasured",
        f'{registry.GPUS_MEASURED.name}{{measured="no"}} > 0',
        "warning",
        "{{ $value }} GPUs of {{ $labels.instance }} cannot be measured",
        f"{registry.NVML_ERRORS.name} says by which call and why; a lost GPU needs a reset or a restart.",
        "10m",
    ),
    Alert(
        "GpuNvmlHangs",
        grown(registry.NVML_ERRORS, "15m", '{reason="nvml_hung"}'),
        "critical",
        "A call of NVML ({{ $labels.call }}) on {{ $labels.instance }} did not come back",
        "The driver is stuck on a GPU: its log names it. Drain the node and restart the machine.",
    ),
    Alert(
        "GpuHeldButIdle",
        f"{POD_UTILIZATION} < 0.01",
        "info",
        "Pod {{ $labels.namespace }}/{{ $labels.pod }} has GPUs and does not use them",
        "Ask its owner; a shared GPU, a MIG device or a notebook that culls itself may be enough.",
        "2h",
    ),
    Alert(
        "GpusFragmented",
        f"sum by (instance, handed_out_by) ({registry.FREE_GPUS.name}) >= 4"
        f" and on (instance, handed_out_by) {registry.LARGEST_ALIGNED.name} < 4",
        "info",
        "{{ $value }} GPUs are free on {{ $labels.instance }}, and none of its NUMA nodes has four of them",
        "Pods of four GPUs are refused or not aligned there: let small pods end, or move them.",
        "1h",
    ),
    Alert(
        "GpuClaimsNotPrepared",
        grown(registry.PREPARE_ERRORS, "10m"),
        "warning",
        "Claims cannot be prepared on {{ $labels.instance }} ({{ $labels.reason }})",
        "The pods' Events have the reason in words; kubelet tries again by itself.",
        "10m",
    ),
    Alert(
        "GpuAllocationsRefused",
        grown(registry.ALLOCATION_ERRORS, "10m"),
        "warning",
        "{{ $labels.resource }} was refused to pods on {{ $labels.instance }} ({{ $labels.reason }})",
        "The pods' Events have the reason in words; UnexpectedAdmissionError is how kubelet calls it.",
    ),
    Alert(
        "GpuAdmissionSlow",
        f"histogram_quantile(0.99, sum by (le, instance, call) (rate({registry.ADMISSION.name}_bucket[15m]))) > 1",
        "warning",
        "{{ $labels.call }} takes {{ $value }} s on {{ $labels.instance }}",
        "Look at CPU limits and load of the node; for claims, at how the API server answers.",
        "15m",
    ),
    Alert(
        "GpuPodsUnknown",
        f"{registry.PODS_KNOWN.name} == 0",
        "warning",
        "Kubelet on {{ $labels.instance }} does not say which pods have which GPUs",
        "Check that kubelet's folder pod-resources is mounted into the daemon, and that kubelet runs.",
        "15m",
    ),
    Alert(
        "GpuMetricsStale",
        f"time() - {registry.COLLECTED.name} > 120",
        "warning",
        "Metrics of {{ $labels.instance }} are of {{ $value }} s ago",
        "The daemon answers but does not collect: NVML hangs, or the driver is being unloaded. Its log says which.",
        "5m",
    ),
    Alert(
        "GpuPluginDown",
        'up{job=~".*gpuplugin.*"} == 0',
        "critical",
        "gpuplugin on {{ $labels.instance }} does not answer",
        "kubectl describe its pod: the readiness probe's message says why. Running pods keep their GPUs.",
        "5m",
    ),
    Alert(
        "GpuPluginLarge",
        f"{registry.MEMORY.name} > 209715200 and on (instance) {registry.BUILD_INFO.name}",
        "warning",
        "gpuplugin on {{ $labels.instance }} has {{ $value | humanize1024 }}B in memory",
        "Half of that is usual on eight GPUs. Please file an issue with its log.",
        "30m",
    ),
)

GIVEN_BY_PROMETHEUS: Final = frozenset({"up"})
"""Series that alerts use and that are not ours."""
