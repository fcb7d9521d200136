"""Inventories by a few words, for tables of decisions."""

from __future__ import annotations

from dataclasses import replace

from gpuplugin.config import Config
from gpuplugin.config.settings import Flags
from gpuplugin.model.ids import GpuUuid, MigUuid, NumaId, PciAddress
from gpuplugin.model.inventory import Driver, Gpu, Inventory, MigDevice, MigMode
from gpuplugin.model.links import NvLinks


def gpu(index: int, *profiles: str, mig: bool = False, **changes: object) -> Gpu:
    """A GPU, with MIG on and one instance for each profile where there are any."""
    in_mig = mig or bool(profiles)
    made = Gpu(
        index=index,
        uuid=GpuUuid(f"GPU-{index}"),
        pci=PciAddress(f"0000:{index:02x}:00.0"),
        minor=index,
        model="NVIDIA H100 80GB HBM3",
        architecture="hopper",
        memory_bytes=80 << 30,
        compute_capability=(9, 0),
        mig=MigMode(in_mig, in_mig),
        mig_devices=tuple(mig_device(index, slot, profile) for slot, profile in enumerate(profiles)),
        fabric=None,
        numa=NumaId(index // 4),
        pcie=None,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def mig_device(parent: int, slot: int, profile: str) -> MigDevice:
    """The MIG device in that slot, in GPU instance slot + 1."""
    return MigDevice(
        uuid=MigUuid(f"MIG-{parent}-{slot}"),
        index=slot,
        gpu_instance=slot + 1,
        compute_instance=0,
        profile=profile,
        placement=None,
        memory_bytes=None,
        multiprocessors=None,
        gpu_slices=None,
        compute_slices=None,
        copy_engines=None,
        decoders=None,
        encoders=None,
        jpegs=None,
        ofas=None,
    )


def inventory(*gpus: Gpu) -> Inventory:
    """A machine without NVLinks."""
    links = NvLinks(tuple((0,) * len(gpus) for _ in gpus), (0,) * len(gpus))
    return Inventory(1, Driver("580", "13", (13, 0)), gpus, (), links, (), ())


def strategy(name: str, **changes: object) -> Config:
    """A configuration with that MIG strategy."""
    return Config(flags=Flags(mig_strategy=name), **changes)  # type: ignore[arg-type]
