"""Labels that the reference has not: what decides whether a job of several GPUs runs well on this node."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from gpuplugin.labels.text import LONGEST, key_part, value
from gpuplugin.topology.graph import components, mask_of, nearest_nics

if TYPE_CHECKING:
    from gpuplugin.labels.facts import Labels, NodeFacts
    from gpuplugin.model.inventory import Gpu

PREFIX: Final = "gpuplugin.io/"
DRIVER_READY: Final = f"{PREFIX}driver.ready"


def own(facts: NodeFacts) -> Labels:
    """Labels under our own prefix."""
    return {
        DRIVER_READY: "true",
        **_models(facts),
        **_islands(facts),
        **{f"{PREFIX}numa-{node}.gpus": f"{count}" for node, count in _numa(facts).items()},
        **_nics(facts),
        **_mig(facts),
    }


def _models(facts: NodeFacts) -> Labels:
    """How many GPUs of each model there are, and how many whole ones pods can have."""
    room = LONGEST - len("model.")
    counts = Counter(key_part(gpu.model, room) for gpu in facts.gpus)
    whole = sum(offer.mig is None and not offer.isolated for offer in facts.offers)
    return {
        **{f"{PREFIX}model.{name}": f"{count}" for name, count in counts.items()},
        f"{PREFIX}gpu.whole": f"{whole}",
    }


def _islands(facts: NodeFacts) -> Labels:
    """How many groups of GPUs NVLink joins, and how many GPUs the largest has; a GPU by itself is no group."""
    theirs = {gpu.uuid for gpu in facts.gpus}
    count, nvlinks = range(len(facts.inventory.gpus)), facts.inventory.nvlinks
    joined = tuple(mask_of(j for j in count if nvlinks.between(i, j)) for i in count)
    usable = mask_of(i for i, gpu in enumerate(facts.inventory.gpus) if gpu.uuid in theirs)
    sizes = [island.bit_count() for island in components(joined, usable)]
    groups = [size for size in sizes if size > 1]
    return {
        f"{PREFIX}nvlink.islands": f"{len(groups)}",
        f"{PREFIX}nvlink.island-size": f"{max(groups, default=0)}",
    }


def _numa(facts: NodeFacts) -> Counter[int]:
    return Counter(gpu.numa for gpu in facts.gpus if gpu.numa is not None)


def _nics(facts: NodeFacts) -> Labels:
    """How many RDMA ports there are, on which kind of link, and how many GPUs have one within their PCIe switches."""
    nics = facts.inventory.nics
    if not nics:
        return {f"{PREFIX}nic.count": "0"}
    links = {nic.link_layer or "unknown" for nic in nics}
    near = sum(bool(nearest_nics(gpu, nics)) for gpu in facts.gpus)
    return {
        f"{PREFIX}nic.count": f"{len(nics)}",
        f"{PREFIX}nic.link": value(links.pop()) if len(links) == 1 else "mixed",
        f"{PREFIX}nic.gpus": f"{near}",
    }


def _mig(facts: NodeFacts) -> Labels:
    """How many GPUs are in MIG mode and the layout that they have, ``mixed`` where it is not the same on all."""
    split = [gpu for gpu in facts.gpus if gpu.mig is not None and gpu.mig.current]
    if not split:
        return {}
    layouts = {_layout(gpu) for gpu in split}
    return {
        f"{PREFIX}mig.gpus": f"{len(split)}",
        f"{PREFIX}mig.layout": layouts.pop() if len(layouts) == 1 else "mixed",
    }


def _layout(gpu: Gpu) -> str:
    """``1g.10gb-x2_3g.40gb-x1``, profiles in order of name; ``empty`` without instances."""
    counts = Counter(key_part(device.profile.replace("+", "."), LONGEST) for device in gpu.mig_devices)
    text = "_".join(f"{profile}-x{count}" for profile, count in sorted(counts.items()))
    return key_part(text, LONGEST) if text else "empty"
