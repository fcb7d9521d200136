"""Labels of the devices: what they are, how many, and how they are shared.

A label holds one value, and a node may have several models. The one that the labels of ``nvidia.com/gpu`` describe is
chosen by a rule (whole GPUs before MIG parents, then the most, then by name), so that they never change by chance.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from gpuplugin.labels.text import LONGEST, key_part, value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuplugin.labels.facts import Labels, NodeFacts, Offer
    from gpuplugin.model.inventory import Gpu, MigDevice

GPU: Final = "nvidia.com/gpu"
_MIB: Final = 20
_LONGEST_SUFFIX: Final = len("mig-.sharing-strategy")


def products(facts: NodeFacts) -> Labels:
    """Labels of whole GPUs and, as the strategy has it, of MIG devices."""
    slices = [offer for offer in facts.offers if offer.mig and not offer.isolated]
    if facts.strategy == "single" and slices:
        return _of_gpus(facts, _most_devices(slices)) | _of_slices(GPU, slices)
    labels = _of_gpus(facts, _described(facts.gpus))
    if facts.strategy == "single" and any(map(_in_mig, facts.gpus)) and all(offer.isolated for offer in facts.offers):
        return labels | _invalid(_described(facts.gpus))
    if facts.strategy == "mixed":
        profiles = dict.fromkeys(offer.mig.profile for offer in slices if offer.mig)
        for profile in sorted(profiles):
            same = [offer for offer in slices if offer.mig and offer.mig.profile == profile]
            name = key_part(profile.replace("+", "."), LONGEST - _LONGEST_SUFFIX)
            labels |= _of_slices(f"nvidia.com/mig-{name}", same)
    return labels


def family(capability: tuple[int, int]) -> str:
    """Name the architecture as the reference does."""
    match capability:
        case (7, minor):
            return "volta" if minor < 5 else "turing"  # noqa: PLR2004 - compute capability 7.5
        case (8, minor):
            return "ampere" if minor < 9 else "ada-lovelace"  # noqa: PLR2004 - 8.9
        case (major, _):
            return _FAMILIES.get(major, "undefined")


_FAMILIES: Final = {
    1: "tesla",
    2: "fermi",
    3: "kepler",
    5: "maxwell",
    6: "pascal",
    9: "hopper",
    10: "blackwell",
    12: "blackwell",
    13: "rubin",
}


def _in_mig(gpu: Gpu) -> bool:
    return gpu.mig is not None and gpu.mig.current


def _described(gpus: Sequence[Gpu]) -> str:
    counts = Counter(gpu.model for gpu in gpus)
    whole = {gpu.model for gpu in gpus if not _in_mig(gpu)}
    return min(counts, key=lambda model: (model not in whole, -counts[model], model))


def _most_devices(offers: Iterable[Offer]) -> str:
    counts = Counter(offer.gpu.model for offer in offers)
    return min(counts, key=lambda model: (-counts[model], model))


def _of_gpus(facts: NodeFacts, model: str) -> Labels:
    same = [gpu for gpu in facts.gpus if gpu.model == model]
    first = next((gpu for gpu in same if not _in_mig(gpu)), same[0])
    labels = {f"{GPU}.product": value(model), f"{GPU}.count": f"{len(same)}"}
    labels |= {f"{GPU}.replicas": "0", f"{GPU}.sharing-strategy": "none"}
    if first.memory_bytes:
        labels[f"{GPU}.memory"] = f"{first.memory_bytes >> _MIB}"
    if first.compute_capability:
        major, minor = first.compute_capability
        labels |= {
            f"{GPU}.family": family(first.compute_capability),
            f"{GPU}.compute.major": f"{major}",
            f"{GPU}.compute.minor": f"{minor}",
        }
    if not _in_mig(first):
        whole = [offer for offer in facts.offers if offer.mig is None and offer.gpu.model == model]
        labels |= _shared(GPU, whole, model)
    return labels


def _of_slices(resource: str, offers: Sequence[Offer]) -> Labels:
    """Labels of MIG devices of one profile; its attributes are those of the first, on the model that has the most."""
    model = _most_devices(offers)
    device = next(offer.mig for offer in offers if offer.mig and offer.gpu.model == model)
    labels = {f"{resource}.count": f"{len(offers)}", **_shared(resource, offers, model, "MIG", device.profile)}
    return labels | {f"{resource}.{name}": f"{number}" for name, number in _attributes(device) if number is not None}


def _attributes(device: MigDevice) -> tuple[tuple[str, int | None], ...]:
    memory = device.memory_bytes
    return (
        ("memory", None if memory is None else memory >> _MIB),
        ("multiprocessors", device.multiprocessors),
        ("slices.gi", device.gpu_slices),
        ("slices.ci", device.compute_slices),
        ("engines.copy", device.copy_engines),
        ("engines.decoder", device.decoders),
        ("engines.encoder", device.encoders),
        ("engines.jpeg", device.jpegs),
        ("engines.ofa", device.ofas),
    )


def _shared(resource: str, offers: Iterable[Offer], *name: str) -> Labels:
    """Say how devices are shared; where some are shared more than others, the most counts."""
    most = max(offers, key=lambda offer: offer.replicas, default=None)
    replicas = most.replicas if most else 1
    shared = most is not None and replicas > 1
    suffix = ("SHARED",) if shared and most is not None and not most.renamed else ()
    return {
        f"{resource}.product": value(*name, *suffix),
        f"{resource}.replicas": f"{replicas}",
        f"{resource}.sharing-strategy": most.sharing if shared and most is not None else "none",
    }


def _invalid(model: str) -> Labels:
    """Say, as the reference does, that the strategy ``single`` can offer nothing of this node."""
    return {
        f"{GPU}.product": value(model, "MIG", "INVALID"),
        f"{GPU}.count": "0",
        f"{GPU}.replicas": "0",
        f"{GPU}.sharing-strategy": "",
        f"{GPU}.memory": "0",
    }
