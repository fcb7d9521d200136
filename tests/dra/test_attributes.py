"""What the scheduler is told of one GPU: all that the reference's driver tells, in its words, and where the GPU is."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.attributes import gpu_attributes, gpu_capacity, quantity, semver
from dra.limits import ATTRIBUTES_AND_CAPACITIES
from gpuplugin.discovery import nvml_decode as decode
from gpuplugin.kube.objects import Attribute
from gpuplugin.model.inventory import AddressingMode, Fabric, FabricState, Gpu, Inventory
from tests.topology import machines

REFERENCE = {
    "type": {"string": "gpu"},
    "uuid": {"string": "GPU-00000000-0000-0000-0000-000000000000"},
    "productName": {"string": "NVIDIA Test"},
    "brand": {"string": "Nvidia"},
    "architecture": {"string": "Hopper"},
    "cudaComputeCapability": {"version": "9.0.0"},
    "driverVersion": {"version": "580.95.5"},
    "cudaDriverVersion": {"version": "13.0.0"},
    "addressingMode": {"string": "HMM"},
    "resource.kubernetes.io/pciBusID": {"string": "0000:01:00.0"},
    "resource.kubernetes.io/pcieRoot": {"string": "pci0000:10"},
    "resource.kubernetes.io/numaNode": {"int": 0},
    # with its gate FabricManagerPartitioning; it also has the partitions then, which only the fabric manager knows
    "gpuModuleID": {"int": 3},
}
"""All that kubernetes-sigs/dra-driver-nvidia-gpu says of a whole GPU, at 0.5.0-dev of August 2026."""

OLDER_REFERENCE = {"pcieBusID": {"string": "0000:01:00.0"}}
"""What it said up to 25.8, and selectors may still ask for."""

OWN = {
    "gpuplugin.io/nvlinkIsland": {"string": "gpu-0"},
    "gpuplugin.io/pcieSwitch": {"string": "0000:10:00.1"},
    "gpuplugin.io/clique": {"string": "1a2b3c4d-0000-0000-0000-00000000ffff.4095"},
    "gpuplugin.io/slot": {"int": 3},
}

BRANDS = {
    "QUADRO": "Quadro",
    "TESLA": "Tesla",
    "NVS": "NVS",
    "GRID": "Grid",
    "GEFORCE": "GeForce",
    "TITAN": "Titan",
    "NVIDIA_VAPPS": "NvidiaVApps",
    "NVIDIA_VPC": "NvidiaVPC",
    "NVIDIA_VCS": "NvidiaVCS",
    "NVIDIA_VWS": "NvidiaVWS",
    "NVIDIA_CLOUD_GAMING": "NvidiaCloudGaming",
    "QUADRO_RTX": "QuadroRTX",
    "NVIDIA_RTX": "NvidiaRTX",
    "NVIDIA": "Nvidia",
    "GEFORCE_RTX": "GeForceRTX",
    "TITAN_RTX": "TitanRTX",
}
ARCHITECTURES = {
    "KEPLER": "Kepler",
    "MAXWELL": "Maxwell",
    "PASCAL": "Pascal",
    "VOLTA": "Volta",
    "TURING": "Turing",
    "AMPERE": "Ampere",
    "ADA": "Ada Lovelace",
    "HOPPER": "Hopper",
    "BLACKWELL": "Blackwell",
}
MODES = {"NONE": "None", "HMM": "HMM", "ATS": "ATS"}
"""NVML's name of a value → what the reference makes of it. What it calls Unknown, we leave out."""


def whole(**facts: object) -> tuple[Gpu, Inventory]:
    """A GPU of which everything is known."""
    inventory = machines.hgx_h100()
    fabric = Fabric(FabricState.COMPLETED, "1a2b3c4d-0000-0000-0000-00000000ffff", 4095, 0)
    told = {"brand": "Nvidia", "fabric": fabric, "slot": 3, "addressing": AddressingMode.HMM} | facts
    return replace(inventory.gpus[0], **told), inventory


def attributes(gpu: Gpu, inventory: Inventory) -> dict[str, Attribute]:
    return gpu_attributes(gpu, inventory.driver, "gpu-0")


def test_a_gpu_says_what_the_reference_says_and_where_it_is():
    assert msgspec.to_builtins(attributes(*whole())) == REFERENCE | OLDER_REFERENCE | OWN
    assert msgspec.to_builtins(gpu_capacity(whole()[0])) == {"memory": {"value": "80Gi"}}


def test_all_of_it_is_within_what_the_api_takes():
    gpu, inventory = whole()
    assert len(attributes(gpu, inventory)) + len(gpu_capacity(gpu)) <= ATTRIBUTES_AND_CAPACITIES


def test_what_is_not_known_is_left_out():
    gpu, inventory = whole(
        architecture=None,
        compute_capability=None,
        memory_bytes=None,
        numa=None,
        pcie=None,
        brand=None,
        fabric=None,
        slot=None,
        addressing=None,
    )
    driver = replace(inventory.driver, version="unknown", cuda=None)
    assert set(gpu_attributes(gpu, driver, "gpu-0")) == {
        "type", "uuid", "productName", "pcieBusID", "resource.kubernetes.io/pciBusID", "gpuplugin.io/nvlinkIsland"
    }  # fmt: skip
    assert gpu_capacity(gpu) == {}


def test_numbers_of_nought_are_known():
    found = attributes(*whole(numa=0))
    assert found["resource.kubernetes.io/numaNode"] == Attribute(number=0)


@pytest.mark.parametrize(("name", "words"), BRANDS.items())
def test_brands_are_in_the_references_words(name: str, words: str):
    brand = decode.brand(getattr(pynvml, f"NVML_BRAND_{name}"))
    assert attributes(*whole(brand=brand))["brand"] == Attribute(string=words)


@pytest.mark.parametrize(("name", "words"), ARCHITECTURES.items())
def test_architectures_are_in_the_references_words(name: str, words: str):
    architecture = decode.architecture(getattr(pynvml, f"NVML_DEVICE_ARCH_{name}"))
    assert attributes(*whole(architecture=architecture))["architecture"] == Attribute(string=words)


@pytest.mark.parametrize(("name", "words"), MODES.items())
def test_addressing_modes_are_in_the_references_words(name: str, words: str):
    mode = decode.addressing_mode(getattr(pynvml, f"NVML_DEVICE_ADDRESSING_MODE_{name}"))
    assert attributes(*whole(addressing=mode))["addressingMode"] == Attribute(string=words)


def test_a_fabric_that_was_not_joined_is_no_clique():
    fabric = Fabric(FabricState.IN_PROGRESS, "1a2b3c4d-0000-0000-0000-00000000ffff", 4095, 0)
    assert "gpuplugin.io/clique" not in attributes(*whole(fabric=fabric))


def test_a_name_too_long_for_the_api_is_cut_and_not_the_slice_lost():
    assert attributes(*whole(model="é" * 50))["productName"].string == "é" * 32


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("580.95.05", "580.95.5"),
        ("13.0", "13.0.0"),
        ("535", "535.0.0"),
        ("570.86.10.1", "570.86.10+1"),
        ("1.2.3.4.5", "1.2.3+4.5"),
        ("", None),
        ("r580", None),
        ("580.95.05-beta", None),
    ],
)
def test_versions_become_semantic_ones(text: str, version: str | None):
    assert semver(text) == version


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (1, "1"), (1023, "1023"), (1024, "1Ki"), (81559 << 20, "81559Mi"), (80 << 30, "80Gi")],
)
def test_quantities_are_written_as_the_server_writes_them(number: int, text: str):
    assert quantity(number) == text


@given(st.integers(0, 2**62))
def test_a_quantity_loses_nothing(number: int):
    text = quantity(number)
    digits = text.rstrip("KMGTPEi")
    assert int(digits) * 1024 ** ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei").index(text[len(digits) :]) == number
