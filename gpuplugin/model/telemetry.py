"""What can be measured of a GPU, in one unit each, whichever call of NVML tells it.

Apart from the names that it is published under (`gpuplugin.metrics.registry`) and from the calls that it comes from
(`gpuplugin.discovery.telemetry`), so that neither has to know the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Quantity(StrEnum):
    """What is measured; the unit stands in the comment over each group."""

    # MHz
    SM_CLOCK = auto()
    MEMORY_CLOCK = auto()
    # °C
    GPU_TEMPERATURE = auto()
    MEMORY_TEMPERATURE = auto()
    # W, and mJ since the driver was loaded
    POWER = auto()
    ENERGY = auto()
    # percent of the time of the driver's last sampling period
    GPU_UTILIZATION = auto()
    MEMORY_UTILIZATION = auto()
    ENCODER_UTILIZATION = auto()
    DECODER_UTILIZATION = auto()
    # bytes
    MEMORY_FREE = auto()
    MEMORY_USED = auto()
    MEMORY_RESERVED = auto()
    # bytes since the driver was loaded, over all links
    NVLINK_TRANSMITTED = auto()
    NVLINK_RECEIVED = auto()
    NVLINK_TOTAL = auto()
    # events since the driver was loaded (aggregate ECC errors, rows and pages: of the GPU's life)
    PCIE_REPLAYS = auto()
    ECC_CORRECTED_VOLATILE = auto()
    ECC_UNCORRECTED_VOLATILE = auto()
    ECC_CORRECTED_AGGREGATE = auto()
    ECC_UNCORRECTED_AGGREGATE = auto()
    RETIRED_PAGES_CORRECTED = auto()
    RETIRED_PAGES_UNCORRECTED = auto()
    REMAPPED_ROWS_CORRECTED = auto()
    REMAPPED_ROWS_UNCORRECTED = auto()
    NVLINK_CRC_FLIT_ERRORS = auto()
    NVLINK_CRC_DATA_ERRORS = auto()
    NVLINK_REPLAYS = auto()
    NVLINK_RECOVERIES = auto()
    # 1: yes, 0: no
    RETIRED_PAGES_PENDING = auto()
    ROW_REMAP_PENDING = auto()
    ROW_REMAP_FAILED = auto()
    # ns of lowered clocks since the driver was loaded, by what lowered them
    THROTTLED_BY_POWER = auto()
    THROTTLED_BY_TEMPERATURE = auto()
    THROTTLED_BY_SYNC_BOOST = auto()
    THROTTLED_BY_BOARD_LIMIT = auto()
    THROTTLED_BY_LOW_UTILIZATION = auto()
    THROTTLED_BY_RELIABILITY = auto()
    # share of the time since the last look, 0 to 1 (GPM: Hopper and newer)
    GRAPHICS_ACTIVE = auto()
    SM_ACTIVE = auto()
    SM_OCCUPANCY = auto()
    TENSOR_ACTIVE = auto()
    DRAM_ACTIVE = auto()
    FP64_ACTIVE = auto()
    FP32_ACTIVE = auto()
    FP16_ACTIVE = auto()
    # bytes a second since the last look (GPM)
    PCIE_TRANSMIT_RATE = auto()
    PCIE_RECEIVE_RATE = auto()
    NVLINK_TRANSMIT_RATE = auto()
    NVLINK_RECEIVE_RATE = auto()


Values = MappingProxyType[Quantity, float]
"""What could be measured; what the GPU, its MIG mode or the driver does not tell is not in it."""

NOTHING: Values = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Telemetry:
    """One look at one GPU: its own numbers, and those of its GPU instances, by their id."""

    whole: Values
    instances: Mapping[int, Values]
