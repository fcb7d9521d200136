"""Simulated NVML calls about the library, the driver and whole GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplugin.model.ids import PciAddress, pci_address
from gpuplugin.model.links import PcieLevel, pcie_level
from gpuplugin.sim.abi import Code, Failed, check_version, fill, number, put, put_handle, put_text, text
from gpuplugin.sim.nvml_session import Device, Key, Look, device_call, device_of, gpu_call, library_call

if TYPE_CHECKING:
    from gpuplugin.sim.snapshot import GpuRecord, LinkRecord

_NO_PCI = 0xFFFFFFFF
_TESLA, _NVIDIA = 2, 14
"""nvmlBrandType_t: drivers changed what they call data centre GPUs when the GPUs' names lost the word Tesla."""
_RESERVED_PARTS = 128
"""The driver keeps one part in so many of the memory for itself."""


@library_call("nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags")
def _init(look: Look, *_flags: Any) -> None:
    look.session.begin()


@library_call("nvmlShutdown")
def _shutdown(look: Look) -> None:
    look.session.end()


@library_call("nvmlSystemGetDriverVersion")
def _driver_version(look: Look, buffer: Any, size: Any) -> None:
    put_text(buffer, size, look.now.driver.version)


@library_call("nvmlSystemGetNVMLVersion")
def _nvml_version(look: Look, buffer: Any, size: Any) -> None:
    put_text(buffer, size, look.now.driver.nvml)


@library_call("nvmlSystemGetCudaDriverVersion", "nvmlSystemGetCudaDriverVersion_v2")
def _cuda_version(look: Look, out: Any) -> None:
    put(out, look.now.driver.cuda)


@library_call("nvmlDeviceGetCount", "nvmlDeviceGetCount_v2")
def _count(look: Look, out: Any) -> None:
    put(out, len(look.now.gpus))


@library_call("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByIndex_v2")
def _handle_by_index(look: Look, index: Any, out: Any) -> None:
    wanted = number(index)
    for gpu in look.now.gpus:
        if gpu.index == wanted:
            look.session.take_fault(look.call, gpu.index)
            put_handle(out, look.session.handle_of(Key("gpu", gpu.uuid)))
            return
    raise Failed(Code.INVALID_ARGUMENT)


@library_call("nvmlDeviceGetHandleByUUID")
def _handle_by_uuid(look: Look, uuid: Any, out: Any) -> None:
    wanted = text(uuid)
    gpus = {gpu.uuid: (gpu, Key("gpu", gpu.uuid)) for gpu in look.now.gpus}
    migs = {mig.uuid: (look.now.gpu(mig.gpu), Key("mig", mig.uuid)) for mig in look.now.migs}
    _put_found(look, (gpus | migs).get(wanted), out)


@library_call("nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetHandleByPciBusId_v2")
def _handle_by_pci(look: Look, bus_id: Any, out: Any) -> None:
    try:
        wanted = pci_address(text(bus_id))
    except ValueError:
        raise Failed(Code.INVALID_ARGUMENT) from None
    found = [(gpu, Key("gpu", gpu.uuid)) for gpu in look.now.gpus if pci_address(gpu.bus_id) == wanted]
    _put_found(look, found[0] if found else None, out)


def _put_found(look: Look, found: tuple[GpuRecord, Key] | None, out: Any) -> None:
    if found is None:
        raise Failed(Code.NOT_FOUND)
    look.reach(found[0])
    put_handle(out, look.session.handle_of(found[1]))


@device_call("nvmlDeviceGetUUID")
def _uuid(_look: Look, device: Device, buffer: Any, size: Any) -> None:
    put_text(buffer, size, device.mig.uuid if device.mig else device.gpu.uuid)


@device_call("nvmlDeviceGetName")
def _name(_look: Look, device: Device, buffer: Any, size: Any) -> None:
    put_text(buffer, size, f"{device.gpu.name} MIG {device.mig.profile}" if device.mig else device.gpu.name)


@device_call("nvmlDeviceGetIndex")
def _index(_look: Look, device: Device, out: Any) -> None:
    put(out, device.mig.slot if device.mig else device.gpu.index)


@gpu_call("nvmlDeviceGetMinorNumber")
def _minor(_look: Look, gpu: GpuRecord, out: Any) -> None:
    put(out, _supported(gpu.minor))


@device_call("nvmlDeviceGetArchitecture")
def _architecture(_look: Look, device: Device, out: Any) -> None:
    put(out, device.gpu.architecture)


@device_call("nvmlDeviceGetBrand")
def _brand(_look: Look, device: Device, out: Any) -> None:
    put(out, _TESLA if device.gpu.name.startswith("Tesla") else _NVIDIA)


@device_call("nvmlDeviceGetCudaComputeCapability")
def _compute_capability(_look: Look, device: Device, major: Any, minor: Any) -> None:
    put(major, device.gpu.cc_major)
    put(minor, device.gpu.cc_minor)


@device_call("nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo_v3")
def _pci_info(look: Look, device: Device, out: Any) -> None:
    _fill_pci(look, out, device.gpu.bus_id)


@device_call("nvmlDeviceGetMemoryInfo")
def _memory_info(_look: Look, device: Device, out: Any) -> None:
    total = _supported(device.mig.memory if device.mig else device.gpu.memory)
    used = total // _RESERVED_PARTS
    fill(out, total=total, free=total - used, used=used)


@device_call("nvmlDeviceGetMemoryInfo_v2")
def _memory_info_v2(_look: Look, device: Device, out: Any) -> None:
    check_version(out, 2)
    total = _supported(device.mig.memory if device.mig else device.gpu.memory)
    reserved = total // _RESERVED_PARTS
    fill(out, total=total, reserved=reserved, free=total - reserved, used=0)


@gpu_call("nvmlDeviceGetModuleId")
def _module_id(_look: Look, gpu: GpuRecord, out: Any) -> None:
    put(out, _supported(gpu.module_id))


@gpu_call("nvmlDeviceGetAddressingMode")
def _addressing_mode(_look: Look, gpu: GpuRecord, out: Any) -> None:
    check_version(out, 1)
    fill(out, value=_supported(gpu.addressing))


@gpu_call("nvmlDeviceGetGpuFabricInfo")
def _fabric_info(_look: Look, gpu: GpuRecord, out: Any) -> None:
    _fill_fabric(gpu, out)


@gpu_call("nvmlDeviceGetGpuFabricInfoV")
def _fabric_info_v(_look: Look, gpu: GpuRecord, out: Any) -> None:
    check_version(out, 2, 3)
    _fill_fabric(gpu, out)


def _fill_fabric(gpu: GpuRecord, out: Any) -> None:
    degraded = gpu.fabric_health & 0x3 == 1 or gpu.fabric_health >> 4 & 0x3 == 1
    fill(
        out,
        clusterUuid=tuple(bytes.fromhex(gpu.fabric_cluster)),
        status=gpu.fabric_status,
        cliqueId=gpu.fabric_clique,
        state=_supported(gpu.fabric_state),
        healthMask=gpu.fabric_health,
        healthSummary=0 if gpu.fabric_health == 0 else 2 if degraded else 1,
    )


@gpu_call("nvmlDeviceGetNvLinkState")
def _nvlink_state(look: Look, gpu: GpuRecord, link: Any, out: Any) -> None:
    put(out, int(_link(look, gpu, link).active))


@gpu_call("nvmlDeviceGetNvLinkRemoteDeviceType")
def _nvlink_remote_type(look: Look, gpu: GpuRecord, link: Any, out: Any) -> None:
    put(out, _active_link(look, gpu, link).remote_type)


@gpu_call("nvmlDeviceGetNvLinkRemotePciInfo", "nvmlDeviceGetNvLinkRemotePciInfo_v2")
def _nvlink_remote_pci(look: Look, gpu: GpuRecord, link: Any, out: Any) -> None:
    _fill_pci(look, out, _active_link(look, gpu, link).remote_bus_id)


def _link(look: Look, gpu: GpuRecord, link: Any) -> LinkRecord:
    links = [record for record in look.now.links if record.gpu == gpu.index]
    if not links:
        raise Failed(Code.NOT_SUPPORTED)
    for record in links:
        if record.link == number(link):
            return record
    raise Failed(Code.INVALID_ARGUMENT)


def _active_link(look: Look, gpu: GpuRecord, link: Any) -> LinkRecord:
    record = _link(look, gpu, link)
    if not record.active:
        raise Failed(Code.NOT_SUPPORTED)
    return record


@gpu_call("nvmlDeviceGetTopologyCommonAncestor")
def _common_ancestor(look: Look, gpu: GpuRecord, other: Any, out: Any) -> None:
    if look.session.machine is None:
        raise Failed(Code.NOT_SUPPORTED)
    places = {place.record.uuid: place for place in look.session.machine.gpus}
    try:
        a, b = places[gpu.uuid], places[device_of(look, other).gpu.uuid]
    except KeyError:
        raise Failed(Code.NOT_SUPPORTED) from None
    put(out, PcieLevel.SELF if a is b else pcie_level(a.pcie, b.pcie, a.numa, b.numa))


def _fill_pci(look: Look, out: Any, bus_id: str | None) -> None:
    if bus_id is None:
        fill(out, busId=b"FFFFFFFF:FF:FF.0", domain=_NO_PCI, bus=0xFF, device=0xFF, pciDeviceId=_NO_PCI)
        return
    domain, bus, rest = bus_id.split(":")
    fill(
        out,
        busId=bus_id.encode(),
        busIdLegacy=bus_id[4:].encode(),
        domain=int(domain, 16),
        bus=int(bus, 16),
        device=int(rest.partition(".")[0], 16),
        pciDeviceId=_pci_device(look, pci_address(bus_id)) << 16 | 0x10DE,
        pciSubSystemId=0x10DE,
    )


def _pci_device(look: Look, pci: PciAddress) -> int:
    machine = look.session.machine
    return next((int(gpu.pci_device, 16) for gpu in machine.gpus if gpu.pci == pci), 0) if machine else 0


def _supported(value: int | None) -> int:
    if value is None:
        raise Failed(Code.NOT_SUPPORTED)
    return value
