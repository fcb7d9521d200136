"""The form of a machine file, and errors in it told the way a person can mend them.

::

    about: what this machine is, in a line or two
    driver: {version: 580.95.05, cuda: "13.0"}
    numa:                                     # node 0, node 1 …
      - {cpus: "0-55,112-167", memory_gib: 1024, distances: [10, 21]}
    gpus:                                     # groups in index order
      - count: 8
        model: NVIDIA H100 80GB HBM3          # as NVML names it; MIG profiles follow from it
        architecture: hopper
        memory_mib: 81559                     # null: NVML does not tell
        compute_capability: "9.0"
        pci_device: "0x2330"
        fabric: {}                            # has a fabric; completed, on this node only, unless said otherwise
        recovery: true                        # the driver tells field 230
        addressing: HMM                       # None, HMM or ATS
    minors: [0, 1, 2, 3, 7, 6, 5, 4]          # of /dev/nvidiaN; left out: as the indexes
    module_ids: [2, 4, 1, 3, 6, 8, 5, 7]      # places on the baseboard; cards of a model all have the same
    nics:                                     # groups, too
      - {names: [mlx5_0, mlx5_1], link_layer: InfiniBand, rate: 400 Gb/sec (4X NDR), pci_device: "0x1021"}
    pcie:                                     # what hangs where; addresses are numbered from it as firmware does
      - root: "0000:15"                       # pci0000:15
        numa: 0                               # null: the kernel does not know (-1)
        ports:                                # each entry on a root port of its own
          - switch: [gpu0, gpu1, mlx5_0]      # a switch, with devices or further switches below it
          - nvme0                             # anything that is neither gpuN nor one of `nics` is another device
        devices: []                           # on the root bus itself, as in a virtual machine
    nvlink:
      switched: 18                            # links of every GPU into NVSwitches
      direct: [[0, 1, 2], [0, 3, 1]]          # GPU, GPU, how many links between them, both ways
      one_way: [[0, 2, 1]]                    # only the first GPU reports them
      down: [[0, 5]]                          # GPU, link: not active, on this end
    mig: {0: [3g.40gb@0, 3g.40gb@4]}          # GPUs with MIG on from the start, and what is on them

May be left out: gpus' `fabric` (none), `recovery` (true) and `addressing`, `minors`, `module_ids` (the driver does not
tell them), `nics`, `nvlink`, `mig`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta, Struct

from gpuplugin.errors import MachineFileError, Problem

if TYPE_CHECKING:
    from pathlib import Path

ARCHITECTURES = {
    "kepler": 2,
    "maxwell": 3,
    "pascal": 4,
    "volta": 5,
    "turing": 6,
    "ampere": 7,
    "ada": 8,
    "hopper": 9,
    "blackwell": 10,
}
"""nvmlDeviceArchitecture_t by name."""

ADDRESSING_MODES = {"None": 0, "HMM": 1, "ATS": 2}
"""nvmlDeviceAddressingModeType_t by name."""

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Hex4 = Annotated[str, Meta(pattern=r"^0x[0-9a-f]{4}$")]
Line = Annotated[str, Meta(pattern=r"^[^\t\r\n]+$")]


class DriverForm(Struct, frozen=True, forbid_unknown_fields=True):
    """The driver's version and the highest CUDA that it serves."""

    version: Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+)+$")]
    cuda: Annotated[str, Meta(pattern=r"^[0-9]+\.[0-9]$")]


class NumaForm(Struct, frozen=True, forbid_unknown_fields=True):
    """One NUMA node; `distances` in the order of the nodes."""

    cpus: Annotated[str, Meta(pattern=r"^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$")]
    memory_gib: Count
    distances: tuple[Annotated[int, Meta(ge=10, le=254)], ...]


class FabricForm(Struct, frozen=True, forbid_unknown_fields=True):
    """nvmlGpuFabricInfo: by default one that completed and reaches no further than this node."""

    state: Annotated[int, Meta(ge=0, le=3)] = 3
    cluster: Annotated[str, Meta(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")] = (
        "00000000-0000-0000-0000-000000000000"
    )
    clique: Natural = 0
    status: Natural = 0
    health: Natural = 0


class GpuForm(Struct, frozen=True, forbid_unknown_fields=True):
    """A group of equal GPUs."""

    count: Count
    model: Line
    architecture: Literal[
        "kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell"
    ]  # the keys of ARCHITECTURES
    memory_mib: Count | None
    compute_capability: Annotated[str, Meta(pattern=r"^[0-9]+\.[0-9]$")]
    pci_device: Hex4
    fabric: FabricForm | None = None
    recovery: bool = True
    addressing: Literal["None", "HMM", "ATS"] | None = None


class NicForm(Struct, frozen=True, forbid_unknown_fields=True):
    """A group of equal RDMA NICs; `rate` and `state` as sysfs writes them."""

    names: tuple[Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*$")], ...]
    link_layer: Literal["InfiniBand", "Ethernet"]
    rate: Line
    pci_device: Hex4
    state: Annotated[str, Meta(pattern=r"^[0-9]: [A-Z_]+$")] = "4: ACTIVE"


class SwitchForm(Struct, frozen=True, forbid_unknown_fields=True):
    """A PCIe switch and what is below it, each on a downstream port."""

    switch: tuple[str | SwitchForm, ...]


class RootForm(Struct, frozen=True, forbid_unknown_fields=True):
    """A PCIe root complex: domain and first bus."""

    root: Annotated[str, Meta(pattern=r"^[0-9a-f]{4}:[0-9a-f]{2}$")]
    numa: Natural | None
    ports: tuple[str | SwitchForm, ...] = ()
    devices: tuple[str, ...] = ()


class NvlinkForm(Struct, frozen=True, forbid_unknown_fields=True):
    """NVLinks; see the module."""

    switched: Natural = 0
    direct: tuple[tuple[Natural, Natural, Count], ...] = ()
    one_way: tuple[tuple[Natural, Natural, Count], ...] = ()
    down: tuple[tuple[Natural, Natural], ...] = ()


class MachineForm(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    about: str
    driver: DriverForm
    numa: tuple[NumaForm, ...]
    gpus: tuple[GpuForm, ...]
    pcie: tuple[RootForm, ...]
    minors: tuple[Natural, ...] | None = None
    module_ids: tuple[Natural, ...] | None = None
    nics: tuple[NicForm, ...] = ()
    nvlink: NvlinkForm = NvlinkForm()
    mig: dict[int, tuple[str, ...]] = {}


_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>[^`]*)`")
_PLACE = re.compile(r" - at `(?:key in )?\$\.?(?P<path>[^`]*)`$")
_FORMS: dict[str, type[Struct]] = {
    "": MachineForm,
    "driver": DriverForm,
    "numa": NumaForm,
    "gpus": GpuForm,
    "gpus.fabric": FabricForm,
    "nics": NicForm,
    "pcie": RootForm,
    "nvlink": NvlinkForm,
}


def wrong(file: Path, key: str, value: object, allowed: str, advice: str = "") -> MachineFileError:
    """Say what is wrong in a machine file, in the words of all our configuration errors."""
    return MachineFileError(str(Problem(str(file), key, value, allowed, advice)))


def read(file: Path) -> MachineForm:
    """Read a machine file's form; whether it makes sense as a machine is `machine`'s to say.

    MachineFileError names file, key, value and what is allowed.
    """
    try:
        raw = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise MachineFileError(f"{file}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise MachineFileError(f"{file}: is not YAML: {' '.join(str(error).split())}") from error
    try:
        return msgspec.convert(raw, MachineForm)
    except msgspec.ValidationError as error:
        raise _explain(file, raw, str(error)) from error


def _explain(file: Path, raw: Any, message: str) -> MachineFileError:
    place = _PLACE.search(message)
    path = place["path"] if place else ""
    reason = _PLACE.sub("", message)
    unknown = _UNKNOWN.match(reason)
    value = _at(raw, path)
    if unknown is None:
        return wrong(file, path, value, reason)
    form = _FORMS.get(re.sub(r"\[[^]]*\]", "", path), SwitchForm)
    field = unknown["field"]
    key = f"{path}.{field}".lstrip(".")
    return wrong(file, key, _at(value, field), "one of the keys " + ", ".join(form.__struct_fields__))


def _at(raw: Any, path: str) -> Any:
    for step in re.findall(r"[^.\[\]]+", path):
        try:
            raw = raw[int(step)] if isinstance(raw, list) else raw[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return raw
    return raw
