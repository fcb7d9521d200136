"""How many processes may use a GPU: read and changed through pynvml, over both doubles."""

from __future__ import annotations

import pynvml
import pytest

from gpuplugin.discovery.nvml import ComputeMode
from gpuplugin.errors import GpuLost, NvmlError


def uuid(rig, index):
    return rig.state.snapshot.gpu(index).uuid


def test_a_change_is_of_one_gpu_and_outlives_the_library(rig):
    assert {rig.nvml.compute_mode(uuid(rig, index)) for index in range(8)} == {ComputeMode.DEFAULT}
    rig.nvml.set_compute_mode(uuid(rig, 3), ComputeMode.EXCLUSIVE_PROCESS)
    rig.nvml.close()
    rig.nvml.open()
    modes = {index: rig.nvml.compute_mode(uuid(rig, index)) for index in range(8)}
    assert modes == {**dict.fromkeys(range(8), ComputeMode.DEFAULT), 3: ComputeMode.EXCLUSIVE_PROCESS}
    assert rig.state.compute_mode(3) == ComputeMode.EXCLUSIVE_PROCESS


def test_what_a_person_sets_is_read(rig):
    rig.state.set_compute_mode(1, ComputeMode.PROHIBITED)
    assert rig.nvml.compute_mode(uuid(rig, 1)) is ComputeMode.PROHIBITED


def test_what_is_no_mode_is_refused(rig):
    with pytest.raises(NvmlError) as refused:
        rig.nvml.set_compute_mode(uuid(rig, 0), 4)
    assert refused.value.code == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert rig.nvml.compute_mode(uuid(rig, 0)) is ComputeMode.DEFAULT


def test_a_lost_gpu_and_a_refusal_are_said(rig):
    rig.state.lose(2)
    with pytest.raises(GpuLost):
        rig.nvml.compute_mode(uuid(rig, 2))
    rig.state.fail("nvmlDeviceSetComputeMode", pynvml.NVML_ERROR_NO_PERMISSION, gpu=4)
    with pytest.raises(NvmlError) as refused:
        rig.nvml.set_compute_mode(uuid(rig, 4), ComputeMode.EXCLUSIVE_PROCESS)
    assert refused.value.code == pynvml.NVML_ERROR_NO_PERMISSION
