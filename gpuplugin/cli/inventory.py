"""``gpuplugin inventory``: everything that was found in the machine, and what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplugin.cli.kubelet import add_kubelet, look_at_kubelet
from gpuplugin.cli.look import add_troubles, look
from gpuplugin.cli.output import Cell, Page, show_json
from gpuplugin.topology.explain import ranges

if TYPE_CHECKING:
    from gpuplugin.model.inventory import Gpu, Inventory, MigDevice

UNKNOWN = "?"


def show(simulate: str | None, *, as_json: bool) -> None:
    """Print the inventory of this machine, with how its kubelet is set up, or of a simulated one."""
    found = look(simulate)
    if as_json:
        show_json(found)
        return
    result = page(found)
    if simulate is None:
        add_kubelet(result, look_at_kubelet(), found)
    result.show()


def page(found: Inventory) -> Page:
    """Lay the inventory out; what could not be told is a question mark."""
    result = Page()
    cuda = ".".join(map(str, found.driver.cuda)) if found.driver.cuda else UNKNOWN
    result.line(Cell("Driver", "bold"), f" {found.driver.version}, NVML {found.driver.nvml}, CUDA up to {cuda}")
    result.heading(f"GPUs ({len(found.gpus)})")
    result.table(
        ("", "model", "memory", "compute", "PCI", "/dev", "slot", "NUMA", "PCIe switch", "MIG", "UUID", "state"),
        [_gpu(gpu) for gpu in found.gpus],
    )
    if any(gpu.mig_devices for gpu in found.gpus):
        result.heading("MIG devices")
        result.table(
            ("", "profile", "placement", "memory", "SMs", "GI/CI", "UUID"),
            [_mig(gpu, device) for gpu in found.gpus for device in gpu.mig_devices],
        )
    if found.nics:
        result.heading(f"NICs ({len(found.nics)})")
        result.table(
            ("", "link", "rate", "state", "PCI", "NUMA", "PCIe switch", "netdev", "/dev/infiniband"),
            [
                (
                    Cell(nic.name, "bold"),
                    nic.link_layer or UNKNOWN,
                    nic.rate or UNKNOWN,
                    nic.state or UNKNOWN,
                    nic.pci,
                    _text(nic.numa),
                    (nic.pcie and nic.pcie.switch) or "",
                    nic.netdev or "",
                    nic.uverbs or "",
                )
                for nic in found.nics
            ],
        )
    if found.numa_nodes:
        result.heading(f"NUMA nodes ({len(found.numa_nodes)})")
        result.table(
            ("", "CPUs", "distances"),
            [
                (Cell(str(node.id), "bold"), ranges(node.cpus), " ".join(map(str, node.distances)))
                for node in found.numa_nodes
            ],
        )
    add_troubles(result, found)
    return result


def _gpu(gpu: Gpu) -> tuple[str | Cell, ...]:
    return (
        Cell(f"GPU{gpu.index}", "bold red" if gpu.fault else "bold"),
        gpu.model,
        _memory(gpu.memory_bytes),
        ".".join(map(str, gpu.compute_capability)) if gpu.compute_capability else UNKNOWN,
        gpu.pci,
        UNKNOWN if gpu.minor is None else f"nvidia{gpu.minor}",
        "" if gpu.slot is None else str(gpu.slot),
        _text(gpu.numa),
        UNKNOWN if gpu.pcie is None else gpu.pcie.switch or "",
        _mig_mode(gpu),
        gpu.uuid,
        Cell("fault", "red") if gpu.fault else Cell("ok", "green"),
    )


def _mig(gpu: Gpu, device: MigDevice) -> tuple[str | Cell, ...]:
    placement = device.placement
    return (
        Cell(f"GPU{gpu.index}:{device.index}", "bold"),
        device.profile,
        UNKNOWN if placement is None else f"{placement.start}+{placement.size}",
        _memory(device.memory_bytes),
        _text(device.multiprocessors),
        f"{device.gpu_instance}/{device.compute_instance}",
        device.uuid,
    )


def _mig_mode(gpu: Gpu) -> str:
    if gpu.mig is None:
        return ""
    now = "on" if gpu.mig.current else "off"
    after = "on" if gpu.mig.pending else "off"
    return now if now == after else f"{now}, {after} after a reset"


def _memory(amount: int | None) -> str:
    return UNKNOWN if amount is None else f"{amount / 2**30:.1f} GiB"


def _text(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)
