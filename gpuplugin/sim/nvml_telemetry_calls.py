"""Simulated NVML calls about how a GPU is doing: the same numbers every time, by which GPUs can be told apart.

Only the recovery action, the compute mode, the number of links and what somebody has set are of the state; the others
are there so that a program which reads them works.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuplugin.sim.abi import Code, Failed, check_version, fill, handle, number, pointee, put, put_handle
from gpuplugin.sim.nvml_session import Device, Key, Look, device_call, gpu_call, library_call
from gpuplugin.sim.state import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuplugin.sim.snapshot import GpuRecord

_IDLE_MILLIWATTS, _LIMIT_MILLIWATTS = 70_000, 700_000
_MEGAHERTZ = 1980
_VOLTA, _HOPPER = 5, 9
_COMPUTE_MODES = 4
_IDLE_CLOCKS = 1
_UNSIGNED_INT, _UNSIGNED_LONG_LONG = 1, 3
"""nvmlValueType_t."""


@device_call("nvmlDeviceGetTemperature")
def _temperature(_look: Look, device: Device, _sensor: Any, out: Any) -> None:
    put(out, _celsius(device.gpu))


@device_call("nvmlDeviceGetTemperatureV")
def _temperature_v(_look: Look, device: Device, out: Any) -> None:
    check_version(out, 1)
    fill(out, temperature=_celsius(device.gpu))


@gpu_call("nvmlDeviceGetPowerUsage")
def _power(_look: Look, gpu: GpuRecord, out: Any) -> None:
    put(out, _milliwatts(gpu))


@gpu_call("nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetEnforcedPowerLimit")
def _power_limit(_look: Look, _gpu: GpuRecord, out: Any) -> None:
    put(out, _LIMIT_MILLIWATTS)


@gpu_call("nvmlDeviceGetTotalEnergyConsumption")
def _energy(_look: Look, gpu: GpuRecord, out: Any) -> None:
    put(out, _milliwatts(gpu) * 3600)


@gpu_call("nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo")
def _clock(_look: Look, _gpu: GpuRecord, _kind: Any, out: Any) -> None:
    put(out, _MEGAHERTZ)


@gpu_call("nvmlDeviceGetUtilizationRates")
def _utilization(_look: Look, gpu: GpuRecord, out: Any) -> None:
    _need_whole(gpu)
    fill(out, gpu=10 * (gpu.index % 8), memory=5 * (gpu.index % 8))


@gpu_call("nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetDecoderUtilization")
def _codec_utilization(_look: Look, gpu: GpuRecord, out: Any, period: Any) -> None:
    _need_whole(gpu)
    put(out, 0)
    put(period, 167_000)


@gpu_call("nvmlGpmQueryDeviceSupport")
def _gpm_support(_look: Look, gpu: GpuRecord, out: Any) -> None:
    if pointee(out).version != 1:
        raise Failed(Code.ARGUMENT_VERSION_MISMATCH)
    fill(out, isSupportedDevice=int(gpu.architecture >= _HOPPER))


@library_call("nvmlGpmSampleAlloc")
def _gpm_alloc(look: Look, out: Any) -> None:
    number = look.session.new_number()
    look.session.samples[number] = None
    put_handle(out, number)


@library_call("nvmlGpmSampleFree")
def _gpm_free(look: Look, sample: Any) -> None:
    if look.session.samples.pop(handle(sample), -1) == -1:
        raise Failed(Code.INVALID_ARGUMENT)


@gpu_call("nvmlGpmSampleGet")
def _gpm_sample(look: Look, gpu: GpuRecord, sample: Any) -> None:
    _need_gpm(gpu)
    _need_whole(gpu)
    _take_sample(look, sample, Key("gpu", gpu.uuid))


@gpu_call("nvmlGpmMigSampleGet")
def _gpm_mig_sample(look: Look, gpu: GpuRecord, instance: Any, sample: Any) -> None:
    _need_gpm(gpu)
    if number(instance) not in {record.gi for record in look.instances(gpu)}:
        raise Failed(Code.NOT_FOUND)
    _take_sample(look, sample, Key("gi", gpu.uuid, number(instance)))


def _take_sample(look: Look, sample: Any, key: Key) -> None:
    if handle(sample) not in look.session.samples:
        raise Failed(Code.INVALID_ARGUMENT)
    look.session.samples[handle(sample)] = key


@library_call("nvmlGpmMetricsGet")
def _gpm_metrics(look: Look, wanted: Any) -> None:
    """Answer with one number for every metric: 10 and the GPU's index, as percent or MiB a second."""
    asked = pointee(wanted)
    if asked.version != 1:
        raise Failed(Code.ARGUMENT_VERSION_MISMATCH)
    keys = {look.session.samples.get(handle(sample)) for sample in (asked.sample1, asked.sample2)}
    key = keys.pop()
    if key is None or keys:
        raise Failed(Code.INVALID_ARGUMENT)
    index = look.gpu_by_uuid(key.uuid).index
    for place in range(asked.numMetrics):
        asked.metrics[place].nvmlReturn, asked.metrics[place].value = Code.SUCCESS, 10.0 + index


def _need_gpm(gpu: GpuRecord) -> None:
    if gpu.architecture < _HOPPER:
        raise Failed(Code.NOT_SUPPORTED)


def _need_whole(gpu: GpuRecord) -> None:
    if gpu.mig_current:
        raise Failed(Code.NOT_SUPPORTED)


@gpu_call("nvmlDeviceGetComputeMode")
def _compute_mode(look: Look, gpu: GpuRecord, out: Any) -> None:
    put(out, State(Path(look.session.path)).compute_mode(gpu.index))


@gpu_call("nvmlDeviceSetComputeMode")
def _set_compute_mode(look: Look, gpu: GpuRecord, mode: Any) -> None:
    if number(mode) not in range(_COMPUTE_MODES):
        raise Failed(Code.INVALID_ARGUMENT)
    State(Path(look.session.path)).set_compute_mode(gpu.index, number(mode))


@gpu_call("nvmlDeviceGetPersistenceMode")
def _persistence_mode(_look: Look, _gpu: GpuRecord, out: Any) -> None:
    put(out, 1)


@gpu_call("nvmlDeviceGetEccMode")
def _ecc_mode(_look: Look, _gpu: GpuRecord, current: Any, pending: Any) -> None:
    put(current, 1)
    put(pending, 1)


@gpu_call("nvmlDeviceGetTotalEccErrors")
def _ecc_errors(_look: Look, _gpu: GpuRecord, _error: Any, _counter: Any, out: Any) -> None:
    put(out, 0)


@gpu_call("nvmlDeviceGetPcieReplayCounter")
def _pcie_replays(_look: Look, _gpu: GpuRecord, out: Any) -> None:
    put(out, 0)


@gpu_call("nvmlDeviceGetRemappedRows")
def _remapped_rows(_look: Look, gpu: GpuRecord, *outs: Any) -> None:
    if gpu.architecture <= _VOLTA:
        raise Failed(Code.NOT_SUPPORTED)
    for out in outs:
        put(out, 0)


@device_call(
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
)
def _processes(_look: Look, _device: Device, count: Any, _rows: Any) -> None:
    put(count, 0)


@gpu_call("nvmlDeviceGetFieldValues")
def _field_values(look: Look, gpu: GpuRecord, count: Any, rows: Any) -> None:
    array = getattr(rows, "_obj", rows)
    for at in range(number(count)):
        entry = array[at]
        value = _field(look, gpu, entry.fieldId)
        if value is None:
            entry.nvmlReturn = Code.NOT_SUPPORTED
            continue
        entry.nvmlReturn = Code.SUCCESS
        if entry.fieldId in _LONG:
            entry.valueType, entry.value.ullVal = _UNSIGNED_LONG_LONG, value
        else:
            entry.valueType, entry.value.uiVal = _UNSIGNED_INT, value


def _field(look: Look, gpu: GpuRecord, field: int) -> int | None:
    for record in look.now.fields:
        if (record.gpu, record.field) == (gpu.index, field):
            return record.value
    return _FIELDS[field](look, gpu) if field in _FIELDS else None


@gpu_call("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
def _clock_reasons(look: Look, gpu: GpuRecord, out: Any) -> None:
    put(out, next((record.reasons for record in look.now.clocks if record.gpu == gpu.index), _IDLE_CLOCKS))


def _celsius(gpu: GpuRecord) -> int:
    return 32 + gpu.index % 8


def _milliwatts(gpu: GpuRecord) -> int:
    return _IDLE_MILLIWATTS + 1000 * (gpu.index % 8)


def _links(look: Look, gpu: GpuRecord) -> int:
    return sum(record.gpu == gpu.index for record in look.now.links)


def _nvlink_traffic(look: Look, gpu: GpuRecord) -> int | None:
    return 1000 * (gpu.index + 1) if _links(look, gpu) else None


def _zero_with_nvlink(look: Look, gpu: GpuRecord) -> int | None:
    return 0 if _links(look, gpu) else None


def _zero(_look: Look, _gpu: GpuRecord) -> int:
    return 0


def _zero_since_ampere(_look: Look, gpu: GpuRecord) -> int | None:
    return 0 if gpu.architecture > _VOLTA else None


_ECC, _RETIRED, _REPLAYS, _NVLINK_TRAFFIC, _REMAPPED = (
    range(3, 7),
    range(29, 32),
    range(94, 96),
    (138, 139),
    range(142, 146),
)
_NVLINK_ERRORS, _THROTTLED = (38, 45, 52, 59), range(74, 80)
_FIELDS: dict[int, Callable[[Look, GpuRecord], int | None]] = {
    **dict.fromkeys((*_ECC, *_RETIRED, *_REPLAYS, *_THROTTLED), _zero),
    **dict.fromkeys(_NVLINK_ERRORS, _zero_with_nvlink),
    **dict.fromkeys(_NVLINK_TRAFFIC, _nvlink_traffic),
    **dict.fromkeys(_REMAPPED, _zero_since_ampere),
    82: lambda _look, gpu: _celsius(gpu) + 6,
    83: lambda _look, gpu: _milliwatts(gpu) * 3600,
    91: _links,
    185: lambda _look, gpu: _milliwatts(gpu),
    186: lambda _look, gpu: _milliwatts(gpu),
    230: lambda _look, gpu: gpu.recovery,
}
_LONG = {*_ECC, 83, *_NVLINK_TRAFFIC, *_NVLINK_ERRORS, *_THROTTLED}
