"""A GPU's numbers out of NVML, with as few calls as it can be done: all of them are asked every second or so.

What NVML has as field values is asked in one call. What counts the time between two looks (GPM) needs the sample of
the look before, which is kept here. All that is kept is kept by GPU: a call that hangs leaves its own GPU's samples
in use, and the other GPUs are read on by another thread.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pynvml

from gpuplugin.errors import GpuLost, NvmlError, NvmlNotSupported, NvmlUnavailable
from gpuplugin.model.telemetry import Quantity, Telemetry, Values

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from gpuplugin.model.ids import GpuUuid

_ALL_LINKS: Final = 0xFFFFFFFF
_MILLI: Final = 1e-3
_PERCENT: Final = 1e-2
_KIB, _MIB = 1 << 10, 1 << 20

_FIELDS: Final = {
    Quantity.ECC_CORRECTED_VOLATILE: 3,
    Quantity.ECC_UNCORRECTED_VOLATILE: 4,
    Quantity.ECC_CORRECTED_AGGREGATE: 5,
    Quantity.ECC_UNCORRECTED_AGGREGATE: 6,
    Quantity.RETIRED_PAGES_CORRECTED: 29,
    Quantity.RETIRED_PAGES_UNCORRECTED: 30,
    Quantity.RETIRED_PAGES_PENDING: 31,
    Quantity.NVLINK_CRC_FLIT_ERRORS: 38,
    Quantity.NVLINK_CRC_DATA_ERRORS: 45,
    Quantity.NVLINK_REPLAYS: 52,
    Quantity.NVLINK_RECOVERIES: 59,
    Quantity.THROTTLED_BY_POWER: 74,
    Quantity.THROTTLED_BY_TEMPERATURE: 75,
    Quantity.THROTTLED_BY_SYNC_BOOST: 76,
    Quantity.THROTTLED_BY_BOARD_LIMIT: 77,
    Quantity.THROTTLED_BY_LOW_UTILIZATION: 78,
    Quantity.THROTTLED_BY_RELIABILITY: 79,
    Quantity.MEMORY_TEMPERATURE: 82,
    Quantity.ENERGY: 83,
    Quantity.PCIE_REPLAYS: 94,
    Quantity.REMAPPED_ROWS_CORRECTED: 142,
    Quantity.REMAPPED_ROWS_UNCORRECTED: 143,
    Quantity.ROW_REMAP_PENDING: 144,
    Quantity.ROW_REMAP_FAILED: 145,
}
"""Quantity → NVML_FI_DEV_*."""

_NVLINK: Final = {
    Quantity.NVLINK_TRANSMITTED: ((202, 1), (138, _KIB)),
    Quantity.NVLINK_RECEIVED: ((204, 1), (139, _KIB)),
}
"""Fields that are asked over all links, the first that is supported counts: NVLink 5 counts bytes, others KiB."""

_GPM: Final = {
    Quantity.GRAPHICS_ACTIVE: (1, _PERCENT),
    Quantity.SM_ACTIVE: (2, _PERCENT),
    Quantity.SM_OCCUPANCY: (3, _PERCENT),
    Quantity.TENSOR_ACTIVE: (5, _PERCENT),
    Quantity.DRAM_ACTIVE: (10, _PERCENT),
    Quantity.FP64_ACTIVE: (11, _PERCENT),
    Quantity.FP32_ACTIVE: (12, _PERCENT),
    Quantity.FP16_ACTIVE: (13, _PERCENT),
    Quantity.PCIE_TRANSMIT_RATE: (20, _MIB),
    Quantity.PCIE_RECEIVE_RATE: (21, _MIB),
    Quantity.NVLINK_RECEIVE_RATE: (60, _MIB),
    Quantity.NVLINK_TRANSMIT_RATE: (61, _MIB),
}
"""Quantity → NVML_GPM_METRIC_* and what its value is multiplied by."""

_MEMORY: Final = {
    Quantity.MEMORY_FREE: "free",
    Quantity.MEMORY_USED: "used",
    Quantity.MEMORY_RESERVED: "reserved",
}
"""Quantity → member of nvmlMemory_v2_t."""


_VALUE_TYPES: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""nvmlValueType_t → the member of nvmlValue_t that has the value."""

_Found = dict[Quantity, float]


@dataclass(slots=True)
class _Gpm:
    """What GPM needs of a GPU. samples: the last one, by GPU instance, None for the whole · asked: room for answers."""

    supported: bool
    samples: dict[int | None, Any] = field(default_factory=dict)
    spare: list[Any] = field(default_factory=list)
    asked: Any = field(default_factory=pynvml.c_nvmlGpmMetricsGet_t)


class TelemetryReader:
    """Reads one GPU at a time. ask: makes a call of pynvml's by name, and raises NvmlError's kinds.

    What one call does not tell is left out; that the GPU or the driver is gone raises.
    """

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask
        self._gpm: dict[GpuUuid, _Gpm] = {}

    def read(self, handle: Any, uuid: GpuUuid, instances: Mapping[int, int], wanted: Collection[Quantity]) -> Telemetry:
        """Read what is wanted. instances: GPU instance id → slot of a MIG device in it."""
        whole: _Found = {}
        for quantities, read in _READS:
            if not quantities.isdisjoint(wanted):
                self._put(whole, read, handle)
        self._put(whole, self._fields, handle, wanted)
        of_instances: dict[int, _Found] = {instance: {} for instance in instances}
        if not _MEMORY.keys().isdisjoint(wanted):
            for instance, slot in instances.items():
                self._put(of_instances[instance], self._instance_memory, handle, slot)
        self._read_gpm(handle, uuid, whole, of_instances, wanted)
        return Telemetry(
            _only(whole, wanted), MappingProxyType({gi: _only(found, wanted) for gi, found in of_instances.items()})
        )

    def forget(self) -> None:
        """Let go of what NVML's shutdown makes void. Samples aren't freed: a call that hangs may still be using one."""
        self._gpm.clear()

    def _put(self, found: _Found, read: Callable[..., Iterator[tuple[Quantity, float]]], *arguments: Any) -> None:
        try:
            found.update(read(self._ask, *arguments))
        except (GpuLost, NvmlUnavailable):
            raise
        except NvmlError:
            pass

    @staticmethod
    def _instance_memory(ask: Callable[..., Any], handle: Any, slot: int) -> Iterator[tuple[Quantity, float]]:
        return _memory(ask, ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot))

    @staticmethod
    def _fields(ask: Callable[..., Any], handle: Any, wanted: Collection[Quantity]) -> Iterator[tuple[Quantity, float]]:
        plain = [quantity for quantity in _FIELDS if quantity in wanted]
        links = [quantity for quantity in _NVLINK if quantity in wanted or Quantity.NVLINK_TOTAL in wanted]
        ids: list[int | tuple[int, int]] = [_FIELDS[quantity] for quantity in plain]
        ids += [(number, _ALL_LINKS) for quantity in links for number, _ in _NVLINK[quantity]]
        if not ids:
            return
        values = iter(ask("nvmlDeviceGetFieldValues", handle, ids))
        for quantity in plain:
            value = _value(next(values))
            if value is not None:
                yield quantity, value
        total: list[float] = []
        for quantity in links:
            known = [(_value(next(values)), scale) for _, scale in _NVLINK[quantity]]
            value = next((value * scale for value, scale in known if value is not None), None)
            if value is not None:
                total.append(value)
                yield quantity, value
        if total:
            yield Quantity.NVLINK_TOTAL, sum(total)

    # -- GPM ----------------------------------------------------------------

    def _read_gpm(
        self, handle: Any, uuid: GpuUuid, whole: _Found, instances: Mapping[int, _Found], wanted: Collection[Quantity]
    ) -> None:
        metrics = [(quantity, *entry) for quantity, entry in _GPM.items() if quantity in wanted]
        if not metrics:
            return
        gpm = self._gpm.get(uuid)
        if gpm is None:
            gpm = self._gpm[uuid] = _Gpm(self._has_gpm(handle))
        if not gpm.supported:
            return
        for gone in gpm.samples.keys() - instances.keys() - {None}:
            gpm.spare.append(gpm.samples.pop(gone))
        for instance, found in ((None, whole), *instances.items()):
            try:
                found.update(self._between_looks(handle, gpm, instance, metrics))
            except (GpuLost, NvmlUnavailable):
                raise
            except NvmlError:
                if (sample := gpm.samples.pop(instance, None)) is not None:
                    gpm.spare.append(sample)

    def _has_gpm(self, handle: Any) -> bool:
        with suppress(NvmlError):
            return bool(self._ask("nvmlGpmQueryDeviceSupport", handle).isSupportedDevice)
        return False

    def _between_looks(
        self, handle: Any, gpm: _Gpm, instance: int | None, metrics: list[tuple[Quantity, int, float]]
    ) -> Iterator[tuple[Quantity, float]]:
        """Take a sample, and compare it with the one before. A sample that cannot be taken is kept as spare."""
        fresh = gpm.spare.pop() if gpm.spare else self._ask("nvmlGpmSampleAlloc")
        try:
            if instance is None:
                self._ask("nvmlGpmSampleGet", handle, fresh)
            else:
                self._ask("nvmlGpmMigSampleGet", handle, instance, fresh)
        except NvmlError:
            gpm.spare.append(fresh)
            raise
        earlier, gpm.samples[instance] = gpm.samples.get(instance), fresh
        if earlier is None:
            return
        gpm.spare.append(earlier)
        asked = gpm.asked
        asked.version, asked.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(metrics)
        asked.sample1, asked.sample2 = earlier, fresh
        for place, (_, number, _) in enumerate(metrics):
            asked.metrics[place].metricId = number
        self._ask("nvmlGpmMetricsGet", asked)
        for place, (quantity, _, scale) in enumerate(metrics):
            answer = asked.metrics[place]
            if answer.nvmlReturn == pynvml.NVML_SUCCESS and isfinite(answer.value):
                yield quantity, answer.value * scale


def _only(found: _Found, wanted: Collection[Quantity]) -> Values:
    return MappingProxyType({quantity: value for quantity, value in found.items() if quantity in wanted})


def _value(entry: Any) -> float | None:
    if entry.nvmlReturn != pynvml.NVML_SUCCESS or entry.valueType >= len(_VALUE_TYPES):
        return None
    value: float = getattr(entry.value, _VALUE_TYPES[entry.valueType])
    return value


def _memory(ask: Callable[..., Any], handle: Any) -> Iterator[tuple[Quantity, float]]:
    memory = ask("nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2)
    return ((quantity, getattr(memory, name)) for quantity, name in _MEMORY.items())


def _clock(ask: Callable[..., Any], handle: Any) -> Iterator[tuple[Quantity, float]]:
    yield Quantity.SM_CLOCK, ask("nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_SM)


def _memory_clock(ask: Callable[..., Any], handle: Any) -> Iterator[tuple[Quantity, float]]:
    yield Quantity.MEMORY_CLOCK, ask("nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_MEM)


def _temperature(ask: Callable[..., Any], handle: Any) -> Iterator[tuple[Quantity, float]]:
    try:
        celsius = ask("nvmlDeviceGetTemperatureV", handle, pynvml.NVML_TEMPERATURE_GPU)
    except NvmlNotSupported:
        celsius = ask("nvmlDeviceGetTemperature", handle, pynvml.NVML_TEMPERATURE_GPU)
    yield Quantity.GPU_TEMPERATURE, celsius


def _power(ask: Callable[..., Any], handle: Any) -> Iterator[tuple[Quantity, float]]:
    yield Quantity.POWER, ask("nvmlDeviceGetPowerUsage", handle) * _MILLI


def _utilization(ask: Callable[..., Any], handle: Any) -> Iterator[tuple[Quantity, float]]:
    rates = ask("nvmlDeviceGetUtilizationRates", handle)
    yield Quantity.GPU_UTILIZATION, rates.gpu
    yield Quantity.MEMORY_UTILIZATION, rates.memory


def _encoder(ask: Callable[..., Any], handle: Any) -> Iterator[tuple[Quantity, float]]:
    yield Quantity.ENCODER_UTILIZATION, ask("nvmlDeviceGetEncoderUtilization", handle)[0]


def _decoder(ask: Callable[..., Any], handle: Any) -> Iterator[tuple[Quantity, float]]:
    yield Quantity.DECODER_UTILIZATION, ask("nvmlDeviceGetDecoderUtilization", handle)[0]


_READS: Final = (
    (frozenset({Quantity.SM_CLOCK}), _clock),
    (frozenset({Quantity.MEMORY_CLOCK}), _memory_clock),
    (frozenset({Quantity.GPU_TEMPERATURE}), _temperature),
    (frozenset({Quantity.POWER}), _power),
    (frozenset({Quantity.GPU_UTILIZATION, Quantity.MEMORY_UTILIZATION}), _utilization),
    (frozenset({Quantity.ENCODER_UTILIZATION}), _encoder),
    (frozenset({Quantity.DECODER_UTILIZATION}), _decoder),
    (frozenset(_MEMORY), _memory),
)
"""What one call tells each, beside the field values."""
