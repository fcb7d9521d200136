"""From what the daemon knows to what labels are made from; the few facts that only labels need are read here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuplugin.labels.facts import NodeFacts, Offer
from gpuplugin.model.ids import PciAddress
from gpuplugin.plan.desired import all_units
from gpuplugin.plan.sharing import Kind
from gpuplugin.plan.units import units

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuplugin.config import Config
    from gpuplugin.labels.facts import Sharing
    from gpuplugin.model.inventory import Gpu, Inventory
    from gpuplugin.plan.units import Unit

_LONGEST_LINE: Final = 4096
_SHARING: Final[dict[Kind, Sharing]] = {Kind.TIME_SLICING: "time-slicing", Kind.MPS: "mps"}


def facts(inventory: Inventory, config: Config, sysfs: Path, timestamp: int | None = None) -> NodeFacts:
    """Give them. sysfs: where the host's is seen. Blocks for a small file a GPU."""
    gpus = tuple(gpu for gpu in inventory.gpus if _counts(gpu, config))
    return NodeFacts(
        inventory=inventory,
        gpus=gpus,
        offers=tuple(_offers(inventory, config)),
        strategy=config.flags.mig_strategy,
        mps=config.sharing.mps is not None,
        machine=machine_model(config.flags.gfd.machine_type_file, sysfs),
        pci_classes={gpu.pci: found for gpu in gpus if (found := _pci_class(gpu, sysfs)) is not None},
        timestamp=timestamp,
    )


def machine_model(file: str, sysfs: Path) -> str | None:
    """Read the file that names the machine; below ``/sys`` it is the host's that counts."""
    if not file:
        return None
    inside = file.removeprefix("/sys/")
    return _line(sysfs / inside if inside != file else Path(file)) or None


def _counts(gpu: Gpu, config: Config) -> bool:
    return not gpu.only_for_display and config.devices.excluding(gpu) is None


def _offers(inventory: Inventory, config: Config) -> Iterator[Offer]:
    """All devices, as the device plugin or claims hand them out; only the former's are ever shared."""
    plain = units(inventory, config).units
    shared = {unit.uuid: unit for unit in all_units(inventory, config).units}
    for unit in plain:
        if _counts(unit.gpu, config):
            yield _offer(unit, shared.get(unit.uuid, unit))


def _offer(plain: Unit, unit: Unit) -> Offer:
    share = unit.share
    return Offer(
        gpu=unit.gpu,
        mig=unit.mig,
        replicas=share.replicas if share else 1,
        sharing=_SHARING[share.kind] if share else "none",
        renamed=unit.resource != plain.resource,
        isolated=bool(unit.isolated),
    )


def _pci_class(gpu: Gpu, sysfs: Path) -> int | None:
    """Give class and subclass: the upper two of the three bytes in sysfs (``0x030200``)."""
    text = _line(sysfs / "bus/pci/devices" / PciAddress(gpu.pci) / "class")
    try:
        return int(text, 16) >> 8
    except ValueError:
        return None


def _line(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(_LONGEST_LINE).decode(errors="replace").strip()
    except OSError:
        return ""
