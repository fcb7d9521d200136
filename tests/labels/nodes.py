"""Nodes for labels, written down by what labels tell of."""

from __future__ import annotations

from dataclasses import replace

from gpuplugin.labels.facts import NodeFacts, Offer
from gpuplugin.model.ids import GpuUuid, MigUuid, PciAddress
from gpuplugin.model.inventory import Driver, Fabric, FabricState, Gpu, Inventory, MigDevice, MigMode
from gpuplugin.model.links import NvLinks

H100 = "NVIDIA H100 80GB HBM3"
UUID = "5d1e4ec4-1b5c-4c83-9d0b-41bdf5f4bd0e"


def gpu(index=0, model=H100, *, mig=None, profiles=(), **facts) -> Gpu:
    found = Gpu(
        index=index,
        uuid=GpuUuid(f"GPU-{index:08x}"),
        pci=PciAddress(f"0000:{index + 1:02x}:00.0"),
        minor=index,
        model=model,
        architecture="hopper",
        memory_bytes=81559 << 20,
        compute_capability=(9, 0),
        mig=None if mig is None else MigMode(mig, mig),
        mig_devices=tuple(instance(index, place, profile) for place, profile in enumerate(profiles)),
        fabric=None,
        numa=None,
        pcie=None,
    )
    return replace(found, **facts)


def instance(parent: int, index: int, profile: str) -> MigDevice:
    return MigDevice(
        uuid=MigUuid(f"MIG-{parent}-{index}"),
        index=index,
        gpu_instance=index,
        compute_instance=0,
        profile=profile,
        placement=None,
        memory_bytes=9856 << 20,
        multiprocessors=16,
        gpu_slices=1,
        compute_slices=1,
        copy_engines=1,
        decoders=1,
        encoders=0,
        jpegs=1,
        ofas=None,
    )


def fabric(cluster=UUID, clique=7, state=FabricState.COMPLETED) -> Fabric:
    return Fabric(state, cluster, clique, 0)


def offers(*gpus: Gpu, strategy="none", **share) -> tuple[Offer, ...]:
    found: list[Offer] = []
    for one in gpus:
        if strategy == "none" or one.mig is None or not one.mig.current:
            found.append(Offer(one, **share))
        else:
            found += (Offer(one, device, **share) for device in one.mig_devices)
    return tuple(found)


def facts(*gpus: Gpu, strategy="none", share=None, driver="580.65.06", links=None, nics=(), **others) -> NodeFacts:
    direct = links or tuple((0,) * len(gpus) for _ in gpus)
    inventory = Inventory(
        number=1,
        driver=Driver(driver, driver, (13, 0)),
        gpus=gpus,
        unreadable=(),
        nvlinks=NvLinks(direct, (0,) * len(gpus)),
        nics=nics,
        numa_nodes=(),
    )
    others.setdefault("offers", offers(*gpus, strategy=strategy, **(share or {})))
    return NodeFacts(inventory=inventory, gpus=gpus, strategy=strategy, **others)
