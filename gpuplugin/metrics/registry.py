"""Every series there is. Exposition, documentation, dashboard and alerts are made of, or held against, this table.

Names and labels of devices are dcgm-exporter's, so that dashboards and alerts for it keep working; where NVML is not
what it reads, the meaning is NVML's own. What is ours alone begins with ``gpuplugin_``.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from gpuplugin.metrics.series import Kind, Series
from gpuplugin.model.telemetry import Quantity

GPU_LABELS: Final = ("gpu", "UUID", "GPU_I_PROFILE", "GPU_I_ID")
"""What tells devices apart, and joins series of one: `GPU_I_…` are those of a MIG device, empty for a whole GPU."""

HOLDER_LABELS: Final = ("namespace", "pod", "container", "dra_claim_namespace", "dra_claim_name", "dra_device_name")
"""Who has it."""

DEVICE_LABELS: Final = (
    *("gpu", "UUID", "pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "GPU_I_ID"),
    *("Hostname", "DCGM_FI_DRIVER_VERSION"),
    *HOLDER_LABELS,
)

_MEBIBYTES: Final = 1 / (1 << 20)
_KIBIBYTES: Final = 1 / (1 << 10)

_GAUGES: Final = (
    ("DEV_SM_CLOCK", Quantity.SM_CLOCK, "Clock of the multiprocessors in MHz"),
    ("DEV_MEM_CLOCK", Quantity.MEMORY_CLOCK, "Clock of the memory in MHz"),
    ("DEV_GPU_TEMP", Quantity.GPU_TEMPERATURE, "Temperature of the GPU in degrees Celsius"),
    ("DEV_MEMORY_TEMP", Quantity.MEMORY_TEMPERATURE, "Temperature of the memory in degrees Celsius"),
    ("DEV_POWER_USAGE", Quantity.POWER, "Power draw in W"),
    ("DEV_GPU_UTIL", Quantity.GPU_UTILIZATION, "Percent of the time with a kernel on the GPU; not in MIG mode"),
    ("DEV_MEM_COPY_UTIL", Quantity.MEMORY_UTILIZATION, "Percent of the time with memory in use; not in MIG mode"),
    ("DEV_ENC_UTIL", Quantity.ENCODER_UTILIZATION, "Use of the video encoders in percent; not in MIG mode"),
    ("DEV_DEC_UTIL", Quantity.DECODER_UTILIZATION, "Use of the video decoders in percent; not in MIG mode"),
    ("DEV_RETIRED_PENDING", Quantity.RETIRED_PAGES_PENDING, "Whether pages wait for a reset to be retired"),
    ("DEV_ROW_REMAP_PENDING", Quantity.ROW_REMAP_PENDING, "Whether rows wait for a reset to be remapped"),
    ("DEV_ROW_REMAP_FAILURE", Quantity.ROW_REMAP_FAILED, "Whether remapping a row has failed: replace the GPU"),
    ("PROF_GR_ENGINE_ACTIVE", Quantity.GRAPHICS_ACTIVE, "Share of the time with the compute engine active"),
    ("PROF_SM_ACTIVE", Quantity.SM_ACTIVE, "Share of the time with a warp on a multiprocessor, over all of them"),
    ("PROF_SM_OCCUPANCY", Quantity.SM_OCCUPANCY, "Share of resident warps in what there is room for"),
    ("PROF_PIPE_TENSOR_ACTIVE", Quantity.TENSOR_ACTIVE, "Share of the time with the tensor cores active"),
    ("PROF_DRAM_ACTIVE", Quantity.DRAM_ACTIVE, "Share of the memory's bandwidth in use"),
    ("PROF_PIPE_FP64_ACTIVE", Quantity.FP64_ACTIVE, "Share of the time with the FP64 units active"),
    ("PROF_PIPE_FP32_ACTIVE", Quantity.FP32_ACTIVE, "Share of the time with the FP32 units active"),
    ("PROF_PIPE_FP16_ACTIVE", Quantity.FP16_ACTIVE, "Share of the time with the FP16 units active"),
    ("PROF_PCIE_TX_BYTES", Quantity.PCIE_TRANSMIT_RATE, "Bytes a second sent over PCIe"),
    ("PROF_PCIE_RX_BYTES", Quantity.PCIE_RECEIVE_RATE, "Bytes a second received over PCIe"),
    ("PROF_NVLINK_TX_BYTES", Quantity.NVLINK_TRANSMIT_RATE, "Bytes a second sent over NVLink"),
    ("PROF_NVLINK_RX_BYTES", Quantity.NVLINK_RECEIVE_RATE, "Bytes a second received over NVLink"),
)

_COUNTERS: Final = (
    ("DEV_TOTAL_ENERGY_CONSUMPTION", Quantity.ENERGY, "Energy used since the driver was loaded in mJ"),
    ("DEV_PCIE_REPLAY_COUNTER", Quantity.PCIE_REPLAYS, "PCIe replays"),
    ("DEV_CORRECTABLE_REMAPPED_ROWS", Quantity.REMAPPED_ROWS_CORRECTED, "Rows remapped for corrected errors"),
    ("DEV_UNCORRECTABLE_REMAPPED_ROWS", Quantity.REMAPPED_ROWS_UNCORRECTED, "Rows remapped for uncorrected errors"),
    ("DEV_ECC_SBE_VOL_TOTAL", Quantity.ECC_CORRECTED_VOLATILE, "Corrected ECC errors since the driver was loaded"),
    ("DEV_ECC_DBE_VOL_TOTAL", Quantity.ECC_UNCORRECTED_VOLATILE, "Uncorrected ECC errors since the driver was loaded"),
    ("DEV_ECC_SBE_AGG_TOTAL", Quantity.ECC_CORRECTED_AGGREGATE, "Corrected ECC errors of the GPU's life"),
    ("DEV_ECC_DBE_AGG_TOTAL", Quantity.ECC_UNCORRECTED_AGGREGATE, "Uncorrected ECC errors of the GPU's life"),
    ("DEV_RETIRED_SBE", Quantity.RETIRED_PAGES_CORRECTED, "Pages retired for corrected errors"),
    ("DEV_RETIRED_DBE", Quantity.RETIRED_PAGES_UNCORRECTED, "Pages retired for uncorrected errors"),
    ("DEV_POWER_VIOLATION", Quantity.THROTTLED_BY_POWER, "Time with clocks lowered to limit power in ns"),
    ("DEV_THERMAL_VIOLATION", Quantity.THROTTLED_BY_TEMPERATURE, "Time with clocks lowered to cool in ns"),
    ("DEV_SYNC_BOOST_VIOLATION", Quantity.THROTTLED_BY_SYNC_BOOST, "Time with clocks lowered by sync boost in ns"),
    ("DEV_BOARD_LIMIT_VIOLATION", Quantity.THROTTLED_BY_BOARD_LIMIT, "Time with clocks lowered by the board in ns"),
    ("DEV_LOW_UTIL_VIOLATION", Quantity.THROTTLED_BY_LOW_UTILIZATION, "Time with clocks lowered for low use in ns"),
    ("DEV_RELIABILITY_VIOLATION", Quantity.THROTTLED_BY_RELIABILITY, "Time with clocks lowered for reliability in ns"),
    ("DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", Quantity.NVLINK_CRC_FLIT_ERRORS, "NVLink flow control CRC errors"),
    ("DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", Quantity.NVLINK_CRC_DATA_ERRORS, "NVLink data CRC errors"),
    ("DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", Quantity.NVLINK_REPLAYS, "NVLink replays"),
    ("DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", Quantity.NVLINK_RECOVERIES, "NVLink recoveries"),
)

XID_ERRORS: Final = Series(
    "DCGM_FI_DEV_XID_ERRORS",
    Kind.GAUGE,
    "Code of the last XID since this daemon's start, 0 for none; gpuplugin_xid_errors_total counts them",
    DEVICE_LABELS,
)

DEVICE_SERIES: Final = (
    *(Series(f"DCGM_FI_{name}", Kind.GAUGE, text, DEVICE_LABELS, quantity) for name, quantity, text in _GAUGES),
    *(Series(f"DCGM_FI_{name}", Kind.COUNTER, text, DEVICE_LABELS, quantity) for name, quantity, text in _COUNTERS),
    *(
        Series(f"DCGM_FI_DEV_FB_{name}", Kind.GAUGE, f"{text} in MiB", DEVICE_LABELS, quantity, _MEBIBYTES)
        for name, quantity, text in (
            ("FREE", Quantity.MEMORY_FREE, "Free memory"),
            ("USED", Quantity.MEMORY_USED, "Used memory"),
            ("RESERVED", Quantity.MEMORY_RESERVED, "Memory that the driver keeps for itself"),
        )
    ),
    Series(
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
        Kind.COUNTER,
        "Data sent and received over NVLink since the driver was loaded in KiB",
        DEVICE_LABELS,
        Quantity.NVLINK_TOTAL,
        _KIBIBYTES,
    ),
    XID_ERRORS,
)
"""What dcgm-exporter has as well; a custom list chooses among these."""

NVLINK_SERIES: Final = (
    Series(
        "gpuplugin_nvlink_transmitted_bytes_total",
        Kind.COUNTER,
        "Data sent over all NVLinks of a GPU",
        GPU_LABELS,
        Quantity.NVLINK_TRANSMITTED,
    ),
    Series(
        "gpuplugin_nvlink_received_bytes_total",
        Kind.COUNTER,
        "Data received over all NVLinks of a GPU",
        GPU_LABELS,
        Quantity.NVLINK_RECEIVED,
    ),
)

ALLOCATION_INFO: Final = Series(
    "gpuplugin_allocation_info",
    Kind.GAUGE,
    "1 for each container and device that it has, however many share it; join device series to it on (UUID, GPU_I_ID)",
    (*GPU_LABELS, "resource", *HOLDER_LABELS),
)
DEVICE_HEALTHY: Final = Series(
    "gpuplugin_device_healthy", Kind.GAUGE, "1 where a device can be handed out, 0 where it cannot", GPU_LABELS
)
DEVICE_FAULT: Final = Series(
    "gpuplugin_device_fault_info",
    Kind.GAUGE,
    "1 for each device that cannot be handed out now, with the reason",
    (*GPU_LABELS, "state", "reason"),
)
GPU_FAULT: Final = Series(
    "gpuplugin_gpu_fault_info",
    Kind.GAUGE,
    "1 for each fault that a GPU has, with what is made of it; warnings too",
    ("gpu", "UUID", "fault", "policy"),
)
RESOURCE_DEVICES: Final = Series(
    "gpuplugin_resource_devices",
    Kind.GAUGE,
    "Devices that kubelet is told of, replicas counted, by whether they can be handed out",
    ("resource", "state"),
)
FREE_GPUS: Final = Series(
    "gpuplugin_free_gpus",
    Kind.GAUGE,
    "Whole GPUs that could be handed out now, by NUMA node and by who hands them out",
    ("handed_out_by", "numa_node"),
)
LARGEST_ALIGNED: Final = Series(
    "gpuplugin_largest_aligned_request_gpus",
    Kind.GAUGE,
    "The most whole GPUs that one pod can have now from one NUMA node",
    ("handed_out_by",),
)
XIDS: Final = Series(
    "gpuplugin_xid_errors_total",
    Kind.COUNTER,
    "XIDs since this daemon's start, by code",
    ("gpu", "UUID", "GPU_I_ID", "xid"),
)
XID_LAST_SEEN: Final = Series(
    "gpuplugin_xid_last_seen_timestamp_seconds",
    Kind.GAUGE,
    "When an XID was last seen",
    ("gpu", "UUID", "GPU_I_ID", "xid"),
)
ALLOCATIONS: Final = Series(
    "gpuplugin_allocations_total",
    Kind.COUNTER,
    "Containers that the device plugin has given devices, by resource",
    ("resource",),
)
ALLOCATION_ERRORS: Final = Series(
    "gpuplugin_allocation_errors_total",
    Kind.COUNTER,
    "Requests of kubelet's for devices that were refused",
    ("resource", "call", "reason"),
)
ADMISSION: Final = Series(
    "gpuplugin_admission_seconds",
    Kind.HISTOGRAM,
    "How long what kubelet calls to admit a pod or prepare a claim takes here",
    ("call",),
)
PREPARE_ERRORS: Final = Series(
    "gpuplugin_prepare_errors_total",
    Kind.COUNTER,
    "Claims that could not be prepared or unprepared, each time that kubelet asked",
    ("call", "reason"),
)
NVML_CALLS: Final = Series(
    "gpuplugin_nvml_call_seconds",
    Kind.HISTOGRAM,
    "How long calls of NVML take; each is several of its C API",
    ("call",),
)
NVML_ERRORS: Final = Series(
    "gpuplugin_nvml_errors_total", Kind.COUNTER, "Calls of NVML that failed or did not come back", ("call", "reason")
)
COLLECTED: Final = Series(
    "gpuplugin_collected_timestamp_seconds", Kind.GAUGE, "When the numbers of this answer were collected"
)
COLLECTION: Final = Series("gpuplugin_collection_seconds", Kind.GAUGE, "How long collecting them took")
GPUS_MEASURED: Final = Series(
    "gpuplugin_gpus_measured", Kind.GAUGE, "GPUs by whether they could be measured", ("measured",)
)
PODS_KNOWN: Final = Series(
    "gpuplugin_pod_resources_up", Kind.GAUGE, "1 where kubelet says which pods have which devices, 0 where it does not"
)
BUILD_INFO: Final = Series("gpuplugin_build_info", Kind.GAUGE, "1, with the version of the daemon", ("version",))
MEMORY: Final = Series("process_resident_memory_bytes", Kind.GAUGE, "Resident memory of the daemon")
CPU: Final = Series("process_cpu_seconds_total", Kind.COUNTER, "CPU time that the daemon has used")

OWN_SERIES: Final = (
    *NVLINK_SERIES,
    *(ALLOCATION_INFO, DEVICE_HEALTHY, DEVICE_FAULT, GPU_FAULT, RESOURCE_DEVICES, FREE_GPUS, LARGEST_ALIGNED),
    *(XIDS, XID_LAST_SEEN, ALLOCATIONS, ALLOCATION_ERRORS, ADMISSION, PREPARE_ERRORS, NVML_CALLS, NVML_ERRORS),
    *(COLLECTED, COLLECTION, GPUS_MEASURED, PODS_KNOWN, BUILD_INFO, MEMORY, CPU),
)

REGISTRY: Final = MappingProxyType({series.name: series for series in (*DEVICE_SERIES, *OWN_SERIES)})
"""All, by name."""
