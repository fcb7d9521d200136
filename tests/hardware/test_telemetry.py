"""The numbers of the machine's own GPUs, beside those of nvidia-smi. Reads only."""

from __future__ import annotations

import time

import pytest

from gpuplugin.model.telemetry import Quantity
from tests.hardware import nvidia_smi
from tests.hardware.test_nvml import gpus, nvml

pytestmark = pytest.mark.hardware
__all__ = ["gpus", "nvml"]

EVERYTHING = frozenset(Quantity)
STEADY = {
    "memory.total": lambda found: (
        sum(found[quantity] for quantity in (Quantity.MEMORY_FREE, Quantity.MEMORY_USED, Quantity.MEMORY_RESERVED))
        / (1 << 20)
    ),
    "ecc.errors.uncorrected.volatile.total": lambda found: found.get(Quantity.ECC_UNCORRECTED_VOLATILE),
}
"""Fields of nvidia-smi → the same of ours: what does not change between two looks."""


def look(nvml, gpu):
    instances = {mig.gpu_instance: mig.index for mig in gpu.mig_devices}
    nvml.telemetry(gpu.uuid, instances, EVERYTHING)
    time.sleep(0.2)  # what GPM compares is to be a tenth of a second apart or more
    return nvml.telemetry(gpu.uuid, instances, EVERYTHING)


def test_what_does_not_change_is_what_nvidia_smi_says(nvml, gpus):
    for gpu, theirs in zip(gpus, nvidia_smi.query(STEADY), strict=True):
        found = look(nvml, gpu).whole
        for field, ours in STEADY.items():
            if theirs[field].lstrip("[").startswith("N/A"):
                continue
            assert ours(found) == pytest.approx(float(theirs[field]), abs=1), f"GPU {gpu.index}: {field}"


def test_numbers_are_in_their_units(nvml, gpus):
    for gpu in gpus:
        found = look(nvml, gpu).whole
        missing = ", ".join(sorted(EVERYTHING - found.keys())) or "nothing"
        print(f"\nGPU {gpu.index} ({gpu.model}) does not tell: {missing}")
        assert 0 < found[Quantity.GPU_TEMPERATURE] < 120
        assert 1 < found.get(Quantity.POWER, 100) < 3000
        assert 0 < found.get(Quantity.SM_CLOCK, 1000) < 10_000
        for quantity in EVERYTHING & found.keys():
            assert found[quantity] >= 0
            if quantity.endswith(("_active", "occupancy")):
                assert found[quantity] <= 1.01


def test_hopper_and_newer_have_counters_of_their_units(nvml, gpus):
    newer = [gpu for gpu in gpus if (gpu.compute_capability or (0, 0)) >= (9, 0) and not gpu.mig_devices]
    if not newer:
        pytest.skip("no whole GPU of Hopper or newer here")
    for gpu in newer:
        assert Quantity.SM_ACTIVE in look(nvml, gpu).whole


def test_what_a_look_takes(nvml, gpus):
    for gpu in gpus:
        look(nvml, gpu)
        began, cpu = time.perf_counter(), time.process_time()
        nvml.telemetry(gpu.uuid, {}, EVERYTHING)
        took, used = (time.perf_counter() - began) * 1000, (time.process_time() - cpu) * 1000
        print(f"\nGPU {gpu.index}: one look {took:.1f} ms, {used:.1f} ms of CPU")
