"""The records of a simulated machine's NVML state file, as text and as objects.

Apart from who writes the file and when (`state`), because a C stand-in for libnvidia-ml.so.1 reads the same text: this
module is its definition.

The file is UTF-8 lines of TAB-separated fields in the order of the fields of the record classes below, after a first
line ``gpuplugin-nvml-state<TAB>1``; ``-`` stands for "none" or "not supported", ``*`` in a fault for "any".
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from gpuplugin.errors import MachineFileError

if TYPE_CHECKING:
    from collections.abc import Callable

HEADER = "gpuplugin-nvml-state\t1"
NO_CLUSTER = "0" * 32


class Loaded(StrEnum):
    """Whether nvmlInit works: the kernel module is there, is not, or is of another version than the library."""

    NO = "0"
    YES = "1"
    MISMATCH = "mismatch"


@dataclass(frozen=True, slots=True)
class _Field:
    """How one field is read, and the sign that stands for None there (no sign: it is never None)."""

    read: Callable[[str], Any]
    none: str | None = None


def _bit(text: str) -> bool:
    return {"0": False, "1": True}[text]


_INT, _TEXT, _BIT = _Field(int), _Field(str), _Field(_bit)
_OPT_INT, _OPT_TEXT, _OPT_BIT = _Field(int, "-"), _Field(str, "-"), _Field(_bit, "-")
_ANY_INT = _Field(int, "*")


@dataclass(frozen=True, slots=True)
class DriverRecord:
    """`cuda` is nvmlSystemGetCudaDriverVersion's number: 13000 for 13.0."""

    KEYWORD: ClassVar = "driver"
    FORM: ClassVar = (_Field(Loaded), _TEXT, _TEXT, _INT)

    loaded: Loaded
    version: str
    nvml: str
    cuda: int


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """One physical GPU.

    bus_id: as NVML writes it (``00000000:1B:00.0``) · architecture: nvmlDeviceArchitecture_t · memory: bytes, None
    where NVML does not tell · mig_current, mig_pending: None where the GPU has no MIG · fabric_state: None where it has
    no fabric, else 0-3 · fabric_cluster: 32 hex digits · fabric_health: nvmlGpuFabricInfoV_t.healthMask ·
    recovery: nvmlDeviceGpuRecoveryAction_t · module_id: nvmlDeviceGetModuleId's · addressing:
    nvmlDeviceAddressingModeType_t; these three: None where not told · lost: getters give GPU_IS_LOST.
    """

    KEYWORD: ClassVar = "gpu"
    FORM: ClassVar = (
        *(_INT, _TEXT, _OPT_INT, _TEXT, _TEXT, _INT, _OPT_INT, _INT, _INT, _OPT_BIT, _OPT_BIT),
        *(_OPT_INT, _TEXT, _INT, _INT, _INT, _OPT_INT, _OPT_INT, _OPT_INT, _BIT),
    )

    index: int
    uuid: str
    minor: int | None
    bus_id: str
    name: str
    architecture: int
    memory: int | None
    cc_major: int
    cc_minor: int
    mig_current: bool | None = None
    mig_pending: bool | None = None
    fabric_state: int | None = None
    fabric_cluster: str = NO_CLUSTER
    fabric_clique: int = 0
    fabric_status: int = 0
    fabric_health: int = 0
    recovery: int | None = 0
    module_id: int | None = None
    addressing: int | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class LinkRecord:
    """One NVLink of one GPU. `remote_type`: 0 a GPU, 2 a switch; `remote_bus_id` is None where it is not told."""

    KEYWORD: ClassVar = "link"
    FORM: ClassVar = (_INT, _INT, _BIT, _INT, _OPT_TEXT)

    gpu: int
    link: int
    active: bool
    remote_type: int
    remote_bus_id: str | None


@dataclass(frozen=True, slots=True)
class MigRecord:
    """One MIG device. `slot` is its index on the parent; `profile_id` NVML's GPU-instance profile id (19, 9 …).

    `start` and `size` are memory slices, `memory` is bytes.
    """

    KEYWORD: ClassVar = "mig"
    FORM: ClassVar = (_INT, _INT, _TEXT, *(_INT,) * 5, _TEXT, *(_INT,) * 9)

    gpu: int
    slot: int
    uuid: str
    gi: int
    ci: int
    profile_id: int
    start: int
    size: int
    profile: str
    memory: int
    multiprocessors: int
    gi_slices: int
    ci_slices: int
    copy_engines: int
    decoders: int
    encoders: int
    jpegs: int
    ofas: int


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """A call that goes wrong, in all its versions (``_v2`` …); every way to initialise is nvmlInit.

    gpu: None means for every GPU, and for calls that are about none · code: nvmlReturn_t; None means that the call
    hangs until this record is gone · times: how often in each process that looks, None without end.
    """

    KEYWORD: ClassVar = "fault"
    FORM: ClassVar = (_INT, _TEXT, _ANY_INT, _Field(int, "hang"), _ANY_INT)

    id: int
    call: str
    gpu: int | None
    code: int | None
    times: int | None


@dataclass(frozen=True, slots=True)
class EventRecord:
    """A critical XID. An event set delivers those whose `seq` is above the highest at its creation, each once."""

    KEYWORD: ClassVar = "event"
    FORM: ClassVar = (_INT, _INT, _INT, _OPT_INT, _OPT_INT)

    seq: int
    gpu: int
    xid: int
    gi: int | None = None
    ci: int | None = None


@dataclass(frozen=True, slots=True)
class FieldRecord:
    """What nvmlDeviceGetFieldValues answers for one field (NVML_FI_DEV_*) of one GPU, instead of what it would."""

    KEYWORD: ClassVar = "field"
    FORM: ClassVar = (_INT, _INT, _INT)

    gpu: int
    field: int
    value: int


@dataclass(frozen=True, slots=True)
class ClocksRecord:
    """Why a GPU's clocks are lowered (nvmlClocksEventReason* bits), where it is not for want of work."""

    KEYWORD: ClassVar = "clocks"
    FORM: ClassVar = (_INT, _INT)

    gpu: int
    reasons: int


_Record = DriverRecord | GpuRecord | LinkRecord | MigRecord | FaultRecord | EventRecord | FieldRecord | ClocksRecord
_RECORDS: dict[str, type[_Record]] = {cls.KEYWORD: cls for cls in get_args(_Record)}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole file at one moment. GPUs are in NVML's index order, events in the order they came."""

    driver: DriverRecord
    gpus: tuple[GpuRecord, ...] = ()
    links: tuple[LinkRecord, ...] = ()
    migs: tuple[MigRecord, ...] = ()
    faults: tuple[FaultRecord, ...] = ()
    events: tuple[EventRecord, ...] = ()
    fields: tuple[FieldRecord, ...] = ()
    clocks: tuple[ClocksRecord, ...] = ()

    def render(self) -> str:
        """Give the file's text. ValueError when a text field holds a TAB or a line break."""
        records: tuple[_Record, ...] = (
            self.driver,
            *self.gpus,
            *self.links,
            *self.migs,
            *self.faults,
            *self.events,
            *self.fields,
            *self.clocks,
        )
        return "\n".join([HEADER, *map(_render, records)]) + "\n"

    @classmethod
    def parse(cls, text: str, source: str = "nvml.state") -> Snapshot:
        """Read the file's text. MachineFileError names `source`, line and field."""
        lines = text.split("\n")
        if lines[0] != HEADER:
            raise MachineFileError(f"{source}: line 1: {lines[0]!r} is not allowed; allowed: {HEADER!r}")
        found: dict[str, list[Any]] = {keyword: [] for keyword in _RECORDS}
        for number, line in enumerate(lines[1:], 2):
            if line:
                record = _parse(line, f"{source}: line {number}")
                found[record.KEYWORD].append(record)
        if len(found["driver"]) != 1:
            raise MachineFileError(f"{source}: {len(found['driver'])} driver records; allowed: exactly one")
        return cls(
            found["driver"][0],
            *(tuple(found[keyword]) for keyword in ("gpu", "link", "mig", "fault", "event", "field", "clocks")),
        )

    def gpu(self, index: int) -> GpuRecord:
        """Give the GPU with that NVML index. LookupError when there is none."""
        for gpu in self.gpus:
            if gpu.index == index:
                return gpu
        raise LookupError(f"no GPU has index {index}; there are {[gpu.index for gpu in self.gpus]}")


def _render(record: _Record) -> str:
    texts = [record.KEYWORD]
    for spec, form in zip(fields(record), record.FORM, strict=True):
        value = getattr(record, spec.name)
        text = form.none if value is None else str(int(value)) if isinstance(value, bool) else str(value)
        if text is None or len(text.splitlines()) != 1 or "\t" in text or (value is not None and text == form.none):
            raise ValueError(f"{record.KEYWORD} record: {spec.name} cannot be written: {value!r}")
        texts.append(text)
    return "\t".join(texts)


def _parse(line: str, where: str) -> _Record:
    keyword, *texts = line.split("\t")
    cls = _RECORDS.get(keyword)
    if cls is None:
        raise MachineFileError(f"{where}: record {keyword!r} is not allowed; allowed: {', '.join(_RECORDS)}")
    if len(texts) != len(cls.FORM):
        raise MachineFileError(f"{where}: {len(texts)} fields in a {keyword} record; allowed: {len(cls.FORM)}")
    values: list[Any] = []
    for spec, form, text in zip(fields(cls), cls.FORM, texts, strict=True):
        try:
            values.append(None if text == form.none else form.read(text))
        except (ValueError, KeyError):
            raise MachineFileError(f"{where}: {keyword} record: {spec.name}: {text!r} makes no sense") from None
    return cls(*values)
