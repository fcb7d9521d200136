"""NVML on the machine's own GPUs, beside what nvidia-smi says of them. Reads only.

Every test is left out, and says why, where the driver's library or a GPU is missing.
"""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pynvml
import pytest

from gpuplugin.discovery.nvml_real import RealNvml
from gpuplugin.discovery.sysfs import Sysfs
from gpuplugin.errors import NvmlUnavailable
from gpuplugin.model.ids import pci_address
from gpuplugin.model.links import NvLinks, PcieLevel, pcie_level
from tests.hardware import nvidia_smi

pytestmark = pytest.mark.hardware


@pytest.fixture
def nvml():
    nvml = RealNvml()
    try:
        nvml.open()
    except NvmlUnavailable as unavailable:
        pytest.skip(str(unavailable))
    yield nvml
    nvml.close()


@pytest.fixture
def gpus(nvml):
    if not nvml.gpu_count():
        pytest.skip("the driver counts no GPU")
    return [nvml.gpu(index) for index in range(nvml.gpu_count())]


@pytest.fixture
def smi():
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no nvidia-smi on the PATH to compare with")
    return nvidia_smi


def ancestor(one, other) -> PcieLevel:
    """NVML's own word on how near two GPUs are by PCIe."""
    handles = [pynvml.nvmlDeviceGetHandleByIndex(gpu.index) for gpu in (one, other)]
    return PcieLevel(pynvml.nvmlDeviceGetTopologyCommonAncestor(*handles))


def nvlinks(gpus) -> NvLinks:
    direct = [Counter(end.pci for end in gpu.nvlinks if not end.to_switch) for gpu in gpus]
    return NvLinks(
        tuple(tuple(links[other.pci] for other in gpus) for links in direct),
        tuple(sum(end.to_switch for end in gpu.nvlinks) for gpu in gpus),
    )


def test_the_versions(nvml, gpus, smi):
    driver = nvml.driver()
    assert driver.version == smi.query(["driver_version"])[0]["driver_version"]
    assert driver.cuda is not None


def test_each_gpu_is_what_nvidia_smi_says_it_is(gpus, smi):
    fields = ["index", "uuid", "pci.bus_id", "name", "memory.total", "compute_cap"]
    assert len(gpus) == len(smi.query(fields))
    for gpu, said in zip(gpus, smi.query(fields), strict=True):
        memory = "[N/A]" if gpu.memory_bytes is None else str(gpu.memory_bytes >> 20)
        assert (str(gpu.index), gpu.uuid, gpu.model) == (said["index"], said["uuid"], said["name"])
        assert gpu.pci == pci_address(said["pci.bus_id"])
        assert said["memory.total"] in (memory, "[Not Supported]" if gpu.memory_bytes is None else memory)
        assert gpu.compute_capability is not None
        assert "{}.{}".format(*gpu.compute_capability) == said["compute_cap"]
        assert gpu.architecture is not None


def test_each_gpu_answers_a_probe(nvml, gpus):
    for gpu in gpus:
        print(gpu.uuid, nvml.probe(gpu.uuid))


def test_the_pcie_tree_gives_nvmls_own_levels(gpus):
    if len(gpus) == 1:
        pytest.skip("one GPU alone has no matrix")
    places = [Sysfs().pci(gpu.pci) for gpu in gpus]
    for (one, (numa, path)), (other, (numa_other, path_other)) in itertools.combinations(
        zip(gpus, places, strict=True), 2
    ):
        assert pcie_level(path, path_other, numa, numa_other) == ancestor(one, other), f"{one.pci} and {other.pci}"


def test_the_matrix_is_nvidia_smis(gpus, smi):
    matrix = smi.topology()
    if not matrix:
        pytest.skip("one GPU alone has no matrix")
    links = nvlinks(gpus)
    for (i, j), cell in matrix.items():
        count = links.between(i, j)
        assert cell == (f"NV{count}" if count else ancestor(gpus[i], gpus[j]).name), f"GPU{i} and GPU{j}"


def test_every_gpu_can_be_watched(nvml, gpus):
    assert nvml.watch() == {}
    assert nvml.wait(0.01) is None


def test_it_can_be_opened_again_and_says_the_same(nvml, gpus):
    nvml.close()
    nvml.open()
    assert [nvml.gpu(gpu.index) for gpu in gpus] == gpus


def test_closing_ends_a_wait(nvml, gpus):
    nvml.watch()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(nvml.wait, 20)
        with pytest.raises(TimeoutError):
            waiting.result(0.5)
        nvml.close()
        assert waiting.result(10) is None
