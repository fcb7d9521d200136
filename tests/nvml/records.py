"""What RealNvml must say of a simulated machine, straight from its records; and how long a test waits."""

from __future__ import annotations

from gpuplugin.discovery.nvml import GpuReading, NvLinkEnd
from gpuplugin.model.ids import pci_address
from gpuplugin.model.inventory import AddressingMode, Fabric, FabricState, MigDevice, MigMode, MigPlacement

SOON = 10.0
BLOCKED = 0.1
ARCHITECTURES = {5: "volta", 6: "turing", 7: "ampere", 8: "ada", 9: "hopper", 10: "blackwell"}
ADDRESSING = {None: None, 0: AddressingMode.NONE, 1: AddressingMode.HMM, 2: AddressingMode.ATS}


def expected(snapshot, index):
    """What RealNvml must say of a GPU, straight from the records that the machine was made from."""
    gpu = snapshot.gpu(index)
    cluster = gpu.fabric_cluster
    return GpuReading(
        index=index,
        uuid=gpu.uuid,
        pci=pci_address(gpu.bus_id),
        minor=gpu.minor,
        model=gpu.name,
        architecture=ARCHITECTURES[gpu.architecture],
        brand="Tesla" if gpu.name.startswith("Tesla") else "Nvidia",
        module_id=gpu.module_id,
        addressing=ADDRESSING[gpu.addressing],
        memory_bytes=gpu.memory,
        compute_capability=(gpu.cc_major, gpu.cc_minor),
        mig=None if gpu.mig_current is None else MigMode(gpu.mig_current, gpu.mig_pending),
        mig_devices=tuple(
            MigDevice(
                uuid=mig.uuid,
                index=mig.slot,
                gpu_instance=mig.gi,
                compute_instance=mig.ci,
                profile=mig.profile,
                placement=MigPlacement(mig.start, mig.size),
                memory_bytes=mig.memory,
                multiprocessors=mig.multiprocessors,
                gpu_slices=mig.gi_slices,
                compute_slices=mig.ci_slices,
                copy_engines=mig.copy_engines,
                decoders=mig.decoders,
                encoders=mig.encoders,
                jpegs=mig.jpegs,
                ofas=mig.ofas,
            )
            for mig in sorted(snapshot.migs, key=lambda mig: mig.slot)
            if mig.gpu == index and gpu.mig_current
        ),
        fabric=None
        if gpu.fabric_state is None
        else Fabric(
            FabricState(gpu.fabric_state),
            "-".join((cluster[:8], cluster[8:12], cluster[12:16], cluster[16:20], cluster[20:])),
            gpu.fabric_clique,
            gpu.fabric_status,
            gpu.fabric_health,
        ),
        nvlinks=tuple(
            NvLinkEnd(
                link.link, link.remote_type == 2, None if link.remote_type == 2 else pci_address(link.remote_bus_id)
            )
            for link in sorted(snapshot.links, key=lambda link: link.link)
            if link.gpu == index and link.active
        ),
    )
