"""NVML through pynvml: the one place where its ctypes, its process-wide state and its untyped results end.

pynvml keeps one library and a cache of its functions for the whole process, so `open` puts its own library in and
empties the cache; two open RealNvml with different libraries in one process would disturb each other. Handles are
looked up for every question and never outlive a shutdown.
"""

from __future__ import annotations

import _ctypes
import contextlib
import math
from ctypes import CDLL, byref, c_uint, c_void_p, cast
from dataclasses import dataclass
from pathlib import Path
from threading import Condition
from typing import TYPE_CHECKING, Any

import pynvml

from gpuplugin.discovery import condition, nvml_mig
from gpuplugin.discovery import nvml_decode as decode
from gpuplugin.discovery.nvml import ComputeMode, GpuReading, NvLinkEnd, Probe
from gpuplugin.discovery.telemetry import TelemetryReader
from gpuplugin.errors import GpuLost, NvmlError, NvmlHung, NvmlNotSupported, NvmlUnavailable
from gpuplugin.model.health import XidEvent
from gpuplugin.model.ids import GpuUuid, PciAddress, pci_address
from gpuplugin.model.inventory import Driver, Fabric

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from gpuplugin.model.telemetry import Quantity, Telemetry

LIBRARY = "libnvidia-ml.so.1"

_LINGER_SECONDS = 2.0
_NO_INSTANCE = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class _Watch:
    """An event set, and the GPUs registered in it by the address of their handle.

    By address, because the GPU that an event is about may be too broken to tell its UUID.
    """

    events: Any
    gpus: Mapping[int, GpuUuid]


class RealNvml:
    """`Nvml` on the given library.

    library: None: the loader's ``libnvidia-ml.so.1`` · a path: that file, for a driver installed elsewhere ·
    any other object: its attributes are the C functions (a simulation). find: with no library given, where it is now,
    asked each time; a driver may come, in a folder not known before, while we wait for it.

    A library whose initialisation fails is unloaded again, so that the next `open` takes the file that is there then.
    One that has worked stays loaded: a call that hangs may still be inside it.
    """

    def __init__(self, library: object | Path | None = None, find: Callable[[], Path | None] | None = None) -> None:
        self._library, self._find_library = library, find
        self._worked: object | None = None
        self._open = False
        self._indices: dict[GpuUuid, int] = {}
        self._links: dict[GpuUuid, set[int]] = {}
        self._watch: _Watch | None = None
        self._outdated: list[Any] = []
        self._waiting = 0
        self._waits = Condition()
        self._telemetry = TelemetryReader(_ask)

    def open(self) -> None:
        """See `Nvml`. Any failure of initialisation is NvmlUnavailable, whatever its code."""
        if self._open:
            return
        with self._waits:
            if not self._waits.wait_for(lambda: self._waiting == 0, _LINGER_SECONDS):
                raise NvmlHung("nvmlEventSetWait_v2", _LINGER_SECONDS)
        library = self._worked or self._load()
        _install(library)
        try:
            _ask("nvmlInit")
        except NvmlError as error:
            why = error.name
            if self._worked is None:
                _unload(library)
            elif error.code == decode.LIB_RM_VERSION_MISMATCH:
                why = f"{why}; this process still holds the library from before: restart it"
            raise NvmlUnavailable(error.call, error.code, why) from error
        self._worked = library
        self._open = True

    def close(self) -> None:
        """See `Nvml`."""
        if not self._open:
            return
        self._open = False
        with self._waits:
            watch, self._watch = self._watch, None
            free = [] if watch is None or self._waiting else [*self._outdated, watch.events]
            self._outdated = []
        self._indices, self._links = {}, {}
        self._telemetry.forget()
        _free(free)
        with contextlib.suppress(NvmlError):
            _ask("nvmlShutdown")

    def driver(self) -> Driver:
        """See `Nvml`."""
        return Driver(_ask("nvmlSystemGetDriverVersion"), _ask("nvmlSystemGetNVMLVersion"), _cuda_version())

    def gpu_count(self) -> int:
        """See `Nvml`."""
        return int(_ask("nvmlDeviceGetCount"))

    def gpu(self, index: int) -> GpuReading:
        """See `Nvml`. A MIG device that cannot be read raises: it must not be taken for one that is gone."""
        handle = _ask("nvmlDeviceGetHandleByIndex", index)
        uuid = GpuUuid(_ask("nvmlDeviceGetUUID", handle))
        self._indices[uuid] = index
        nvlinks = tuple(_nvlinks(handle))
        self._links.setdefault(uuid, set()).update(end.link for end in nvlinks)
        number = _ask_if_supported("nvmlDeviceGetArchitecture", handle)
        brand = _ask_if_supported("nvmlDeviceGetBrand", handle)
        memory = _memory(handle)
        addressing = _ask_if_told("nvmlDeviceGetAddressingMode", handle)
        mig = nvml_mig.mode(_ask, handle)
        return GpuReading(
            index=index,
            uuid=uuid,
            pci=_pci(handle),
            minor=_ask_if_supported("nvmlDeviceGetMinorNumber", handle),
            model=_ask("nvmlDeviceGetName", handle),
            architecture=None if number is None else decode.architecture(number),
            memory_bytes=memory,
            compute_capability=_ask_if_supported("nvmlDeviceGetCudaComputeCapability", handle),
            mig=mig,
            mig_devices=tuple(nvml_mig.devices(_ask, handle, memory)) if mig and mig.current else (),
            fabric=_fabric(handle),
            nvlinks=nvlinks,
            brand=None if brand is None else decode.brand(brand),
            # A number of our own for the answer: pynvml's default is one for all calls.
            module_id=_ask_if_told("nvmlDeviceGetModuleId", handle, c_uint()) or None,
            addressing=None if addressing is None else decode.addressing_mode(addressing),
        )

    def gpu_pci(self, index: int) -> PciAddress:
        """See `Nvml`."""
        return _pci(_ask("nvmlDeviceGetHandleByIndex", index))

    def probe(self, uuid: GpuUuid) -> Probe:
        """See `Nvml`. Reads the temperature, which the driver has to fetch from the GPU."""
        handle = self._find(uuid)
        for call in ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"):
            with contextlib.suppress(NvmlNotSupported):
                _ask(call, handle, pynvml.NVML_TEMPERATURE_GPU)
                break
        return condition.probe(_ask, handle, self._links.get(uuid, ()), _fabric)

    def compute_mode(self, uuid: GpuUuid) -> ComputeMode:
        """See `Nvml`."""
        return ComputeMode(_ask("nvmlDeviceGetComputeMode", self._find(uuid)))

    def set_compute_mode(self, uuid: GpuUuid, mode: ComputeMode) -> None:
        """See `Nvml`."""
        _ask("nvmlDeviceSetComputeMode", self._find(uuid), mode)

    def telemetry(self, uuid: GpuUuid, instances: Mapping[int, int], wanted: Collection[Quantity]) -> Telemetry:
        """See `Nvml`."""
        return self._telemetry.read(self._find(uuid), uuid, instances, wanted)

    def watch(self) -> dict[GpuUuid, str]:
        """See `Nvml`. A GPU that does not tell its UUID is left out of the answer too; `gpu` says why."""
        events = _ask("nvmlEventSetCreate")
        try:
            gpus, failed = self._register_all(events)
        except NvmlError:
            _free([events])
            raise
        with self._waits:
            if self._watch is not None:
                self._outdated.append(self._watch.events)
            self._watch = _Watch(events, gpus)
        self._free_outdated(waiting=0)
        return failed

    def wait(self, seconds: float) -> XidEvent | None:
        """See `Nvml`. NvmlUnavailable when nothing is watched."""
        with self._waits:
            watch = self._watch
            if watch is None:
                raise NvmlUnavailable("nvmlEventSetWait_v2", decode.UNINITIALIZED, "nothing watched: call watch first")
            self._waiting += 1
        try:
            milliseconds = math.ceil(max(seconds, 0) * 1000)
            return _xid_event(_ask("nvmlEventSetWait_v2", watch.events, milliseconds), watch.gpus)
        except NvmlError as error:
            if error.code == decode.TIMEOUT or self._watch is not watch:
                return None
            raise
        finally:
            self._free_outdated(waiting=1)
            with self._waits:
                self._waiting -= 1
                self._waits.notify_all()

    def _load(self) -> object:
        if self._library is not None and not isinstance(self._library, Path):
            return self._library
        try:
            return CDLL(str(self._library or (self._find_library and self._find_library()) or LIBRARY))
        except OSError as error:
            text = f"{decode.said(decode.LIBRARY_NOT_FOUND)} ({error})"
            raise NvmlUnavailable("nvmlInit", decode.LIBRARY_NOT_FOUND, text) from error

    def _find(self, uuid: GpuUuid) -> Any:
        """Look a handle up, by index where that still is this GPU: a look-up by UUID touches the other GPUs too."""
        index = self._indices.get(uuid)
        if index is not None:
            handle = _ask("nvmlDeviceGetHandleByIndex", index)
            if _ask("nvmlDeviceGetUUID", handle) == uuid:
                return handle
        return _ask("nvmlDeviceGetHandleByUUID", uuid)

    def _register_all(self, events: Any) -> tuple[dict[int, GpuUuid], dict[GpuUuid, str]]:
        gpus: dict[int, GpuUuid] = {}
        failed: dict[GpuUuid, str] = {}
        for index in range(self.gpu_count()):
            try:
                handle = _ask("nvmlDeviceGetHandleByIndex", index)
                uuid = GpuUuid(_ask("nvmlDeviceGetUUID", handle))
            except NvmlUnavailable:
                raise
            except NvmlError:
                continue
            self._indices[uuid] = index
            try:
                _ask("nvmlDeviceRegisterEvents", handle, pynvml.nvmlEventTypeXidCriticalError, events)
            except NvmlError as error:
                failed[uuid] = str(error)
            else:
                gpus[_address(handle)] = uuid
        return gpus, failed

    def _free_outdated(self, waiting: int) -> None:
        """Free event sets that a newer one has replaced, unless more than `waiting` waits may still be in them."""
        with self._waits:
            if self._waiting > waiting:
                return
            outdated, self._outdated = self._outdated, []
        _free(outdated)


def _install(library: object | None) -> None:
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 (it holds functions of the library before)


def _unload(library: object) -> None:
    _install(None)
    if isinstance(library, CDLL):
        _ctypes.dlclose(library._handle)  # noqa: SLF001 (documented; ctypes has no other way to unload)


def _ask(call: str, *arguments: object) -> Any:
    """Make a call of pynvml's. The one seam: what comes out is untyped, what goes wrong is an NvmlError."""
    try:
        return getattr(pynvml, call)(*arguments)
    except pynvml.NVMLError as error:
        raise decode.typed_error(call, error.value) from error
    except UnicodeDecodeError as error:
        raise NvmlError(call, decode.UNKNOWN, f"answered with what is no text: {error.object!r}") from error


def _ask_if_supported(call: str, *arguments: object) -> Any:
    """Ask for an optional fact: None where the GPU or the driver does not have it."""
    try:
        return _ask(call, *arguments)
    except NvmlNotSupported:
        return None


def _ask_if_told(call: str, *arguments: object) -> Any:
    """Ask for a fact that no GPU is to be missed for: None whatever goes wrong, except that the GPU is gone."""
    try:
        return _ask(call, *arguments)
    except (GpuLost, NvmlUnavailable):
        raise
    except NvmlError:
        return None


def _free(event_sets: list[Any]) -> None:
    for events in event_sets:
        with contextlib.suppress(NvmlError):
            _ask("nvmlEventSetFree", events)


def _address(handle: Any) -> int:
    return cast(handle, c_void_p).value or 0


def _cuda_version() -> tuple[int, int] | None:
    """The first call asks libcuda.so.1, which need not be where the loader looks; the second knows without it."""
    for call in ("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"):
        try:
            return decode.cuda_version(_ask(call))
        except NvmlError as error:
            if error.code != decode.LIBRARY_NOT_FOUND and not isinstance(error, NvmlNotSupported):
                raise
    return None


def _pci(handle: Any) -> PciAddress:
    return _pci_address("nvmlDeviceGetPciInfo_v3", handle)


def _pci_address(call: str, *arguments: object) -> PciAddress:
    """Make a call that answers with nvmlPciInfo_t."""
    bus_id: str = _ask(call, *arguments).busId
    try:
        return pci_address(bus_id)
    except ValueError:
        raise NvmlError(call, decode.UNKNOWN, f"answered with what is no PCI address: {bus_id!r}") from None


def _memory(handle: Any) -> int | None:
    memory = _ask_if_supported("nvmlDeviceGetMemoryInfo", handle)
    return None if memory is None else int(memory.total)


def _fabric(handle: Any) -> Fabric | None:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    health = True
    if _ask_if_supported("nvmlDeviceGetGpuFabricInfoV", handle, byref(info)) is None:
        info = pynvml.c_nvmlGpuFabricInfo_t()
        health = False
        if _ask_if_supported("nvmlDeviceGetGpuFabricInfo", handle, byref(info)) is None:
            return None
    mask = info.healthMask if health else None
    return decode.fabric(info.state, bytes(info.clusterUuid), info.cliqueId, info.status, mask)


def _nvlinks(handle: Any) -> Iterator[NvLinkEnd]:
    """Ask every link there can be; what a link does not tell leaves that link out, but a lost GPU has told nothing."""
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            end = _nvlink(handle, link)
        except (GpuLost, NvmlUnavailable):
            raise
        except NvmlError:
            continue
        if end is not None:
            yield end


def _nvlink(handle: Any, link: int) -> NvLinkEnd | None:
    """Read one link: None where it is down, or ends neither at a GPU nor at a switch.

    A driver that does not tell types is believed to mean a GPU: whether the address is one, is seen later.
    """
    if _ask("nvmlDeviceGetNvLinkState", handle, link) == pynvml.NVML_FEATURE_DISABLED:
        return None
    kind = _ask_if_supported("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
    if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
        return NvLinkEnd(link, to_switch=True, pci=None)
    if kind not in (pynvml.NVML_NVLINK_DEVICE_TYPE_GPU, None):
        return None
    return NvLinkEnd(link, to_switch=False, pci=_pci_address("nvmlDeviceGetNvLinkRemotePciInfo", handle, link))


def _xid_event(data: Any, watched: Mapping[int, GpuUuid]) -> XidEvent:
    uuid = watched.get(_address(data.device)) or GpuUuid(_ask("nvmlDeviceGetUUID", data.device))
    gi, ci = (None if number == _NO_INSTANCE else number for number in (data.gpuInstanceId, data.computeInstanceId))
    return XidEvent(uuid, data.eventData, gi, ci)
