"""What a GPU is said to be in a ResourceSlice, for selectors and constraints to look at.

Names without a domain are the reference's, so that selectors written for it go on working; ``resource.kubernetes.io``
is Kubernetes' own; ``gpuplugin.io`` is ours alone. A fact that is not known is left out, never made up: a selector can
ask whether it is there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuplugin.kube.objects import Attribute, Capacity

if TYPE_CHECKING:
    from gpuplugin.model.inventory import Driver, Gpu

STANDARD = "resource.kubernetes.io"
OWN = "gpuplugin.io"
LONGEST_STRING = 64

_ARCHITECTURES = {"ada": "Ada Lovelace"}
_VERSION = re.compile(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:\.(\d+(?:\.\d+)*))?")


def gpu_attributes(gpu: Gpu, driver: Driver, island: str) -> dict[str, Attribute]:
    """All of a whole GPU. island: what GPUs that NVLinks join have in common, for ``matchAttribute``."""
    path = gpu.pcie
    strings = {
        "type": "gpu",
        "uuid": gpu.uuid,
        "productName": gpu.model,
        "brand": gpu.brand,
        "architecture": gpu.architecture and _ARCHITECTURES.get(gpu.architecture, gpu.architecture.capitalize()),
        "pcieBusID": gpu.pci,
        "addressingMode": gpu.addressing,
        f"{STANDARD}/pciBusID": gpu.pci,
        f"{STANDARD}/pcieRoot": path and path.root,
        f"{OWN}/nvlinkIsland": island,
        f"{OWN}/pcieSwitch": path and path.switch,
        f"{OWN}/clique": gpu.fabric and gpu.fabric.key,
    }
    versions = {
        "cudaComputeCapability": gpu.compute_capability and ".".join(map(str, gpu.compute_capability)),
        "driverVersion": driver.version,
        "cudaDriverVersion": driver.cuda and ".".join(map(str, driver.cuda)),
    }
    numbers = {
        "gpuModuleID": gpu.slot,
        f"{STANDARD}/numaNode": gpu.numa,
        f"{OWN}/slot": gpu.slot,
    }
    found = {name: Attribute(string=_short(text)) for name, text in strings.items() if text}
    found |= {name: Attribute(version=version) for name, text in versions.items() if (version := semver(text or ""))}
    return found | {name: Attribute(number=number) for name, number in numbers.items() if number is not None}


def gpu_capacity(gpu: Gpu) -> dict[str, Capacity]:
    """Memory, where NVML tells how much."""
    return {} if gpu.memory_bytes is None else {"memory": Capacity(value=quantity(gpu.memory_bytes))}


def semver(text: str) -> str | None:
    """A semantic version from a driver's: ``580.95.05`` is 580.95.5, a fourth number and on are build metadata.

    None where the text is no version.
    """
    match = _VERSION.fullmatch(text)
    if match is None:
        return None
    core = ".".join(str(int(part or "0")) for part in match.groups()[:3])
    return f"{core}+{match[4]}" if match[4] else core


def quantity(number: int) -> str:
    """A Kubernetes quantity in binary units, the way the API server writes it back: ``81559Mi``, 1025 as ``1025``."""
    units = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
    step = 0
    while number and number % 1024 == 0 and step < len(units) - 1:
        number //= 1024
        step += 1
    return f"{number}{units[step]}"


def _short(text: str) -> str:
    """The first 64 bytes: the API takes no more, and one long product name must not cost the whole slice."""
    return text.encode()[:LONGEST_STRING].decode(errors="ignore")
