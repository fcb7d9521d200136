"""NVML's numbers and texts, against what NVIDIA documents."""

from __future__ import annotations

import pynvml
import pytest

from gpuplugin.discovery import nvml_decode as decode
from gpuplugin.errors import GpuLost, NvmlError, NvmlNotSupported, NvmlUnavailable
from gpuplugin.model.inventory import Fabric, FabricState

KINDS = {
    **dict.fromkeys((1, 9, 12, 18), NvmlUnavailable),
    **dict.fromkeys((3, 13, 25), NvmlNotSupported),
    **dict.fromkeys((15, 16), GpuLost),
}


@pytest.mark.parametrize("code", [*range(1, 31), 31, 999])
def test_every_code_has_its_kind_and_is_carried(code):
    error = decode.typed_error("nvmlDeviceGetUUID", code)
    assert type(error) is KINDS.get(code, NvmlError)
    assert (error.call, error.code) == ("nvmlDeviceGetUUID", code)
    assert str(error).startswith("nvmlDeviceGetUUID: ")


def test_a_mismatch_is_explained():
    text = str(decode.typed_error("nvmlInit", 18))
    assert "another version than the loaded kernel module" in text
    assert "restart the machine, or unload and reload the driver's modules" in text


def test_the_names_are_those_of_pynvml():
    theirs = {
        value: name.removeprefix("NVML_ERROR_")
        for name, value in vars(pynvml).items()
        if name.startswith("NVML_ERROR_")
    }
    assert {code: decode.said(code).split(":")[0] for code in theirs} == theirs


def test_the_brands_are_those_of_pynvml():
    no_gpus = {"UNKNOWN", "COUNT", "NVIDIA_DLA", "NVIDIA_VGAMEDEV", "NVIDIA_NPU"}
    theirs = {
        value: name.removeprefix("NVML_BRAND_").replace("_", "").lower()
        for name, value in vars(pynvml).items()
        if name.startswith("NVML_BRAND_") and name != "NVML_BRAND_NVIDIA_VGAMING"
        if name.removeprefix("NVML_BRAND_") not in no_gpus
    }
    assert {number: (decode.brand(number) or "").lower() for number in theirs} == theirs
    assert decode.brand(0) is None


def test_the_architectures_are_those_of_pynvml():
    prefix = "NVML_DEVICE_ARCH_"
    no_gpus = {"DLA", "DLA2", "NPU3", "UNKNOWN"}
    theirs = {
        value: None if name.removeprefix(prefix) in no_gpus else name.removeprefix(prefix).lower()
        for name, value in vars(pynvml).items()
        if name.startswith(prefix)
    }
    assert {number: decode.architecture(number) for number in theirs} == theirs


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "1g.5gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "1g.10gb+me"),
        ("A100-SXM4-40GB MIG 4c.7g.40gb", "4c.7g.40gb"),
        ("NVIDIA RTX PRO 6000 Blackwell MIG 1g.24gb+gfx", "1g.24gb+gfx"),
        ("NVIDIA RTX PRO 6000 Blackwell MIG 1g.24gb+me.all", "1g.24gb+me.all"),
        ("NVIDIA RTX PRO 6000 Blackwell MIG 2g.48gb-me", "2g.48gb-me"),
        ("NVIDIA H100 80GB HBM3", None),
    ],
)
def test_the_profile_in_a_name(name, profile):
    assert decode.profile_in_name(name) == profile


@pytest.mark.parametrize(
    ("gpu_mib", "sizes", "profile"),
    [
        (40536, (1, 1, 4864), "1g.5gb"),
        (40536, (2, 2, 9856), "2g.10gb"),
        (40536, (3, 3, 19968), "3g.20gb"),
        (40536, (7, 7, 40192), "7g.40gb"),
        (40536, (3, 1, 19968), "1c.3g.20gb"),
        (81559, (1, 1, 9984), "1g.10gb"),
        (81559, (1, 1, 20096), "1g.20gb"),
        (143771, (1, 1, 16384), "1g.18gb"),
        (143771, (1, 1, 33024), "1g.35gb"),
        (143771, (3, 3, 71168), "3g.71gb"),
        (183359, (1, 1, 22528), "1g.23gb"),
        (183359, (2, 2, 45312), "2g.45gb"),
        (183359, (3, 3, 90624), "3g.90gb"),
        (24576, (1, 1, 5836), "1g.6gb"),
        (24576, (4, 4, 23344), "4g.24gb"),
    ],
)
def test_the_profile_by_sizes_is_nvidias_name(gpu_mib, sizes, profile):
    assert decode.profile_from_sizes(*sizes, gpu_mib * decode.MIB) == profile


def test_the_profile_by_sizes_where_the_gpu_tells_no_memory():
    assert decode.profile_from_sizes(1, 1, 4864, None) == "1g.5gb"


@pytest.mark.parametrize(("number", "version"), [(13000, (13, 0)), (12080, (12, 8)), (11040, (11, 4))])
def test_cuda_versions(number, version):
    assert decode.cuda_version(number) == version


def test_the_fabrics_uuid_is_written_in_the_order_of_its_bytes():
    fabric = decode.fabric(3, bytes(range(16)), 4, 0, None)
    assert fabric == Fabric(FabricState.COMPLETED, "00010203-0405-0607-0809-0a0b0c0d0e0f", 4, 0)


def test_a_fabric_state_that_nobody_knows_yet_is_none():
    assert decode.fabric(4, bytes(16), 0, 0, None) is None


@pytest.mark.parametrize("code", [2, 3, 13, 25])
def test_a_driver_without_recovery_actions(code):
    assert decode.recovery_action("nvmlDeviceGetFieldValues", code, 0) is None


def test_a_recovery_action_that_could_not_be_read():
    with pytest.raises(GpuLost):
        decode.recovery_action("nvmlDeviceGetFieldValues", 15, 0)
