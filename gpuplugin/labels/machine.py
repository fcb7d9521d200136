"""Labels of the machine and its driver, as the reference has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuplugin.labels.text import sanitise, value

if TYPE_CHECKING:
    from gpuplugin.labels.facts import Labels, NodeFacts
    from gpuplugin.model.inventory import Driver

_MODES: Final = {0x0300: "graphics", 0x0302: "compute"}
_PARTS: Final = (2, 3)


def machine(facts: NodeFacts) -> Labels:
    """Labels of machine, driver, and of what holds for all GPUs together."""
    return {
        "nvidia.com/gpu.machine": value(facts.machine or "unknown"),
        **_versions(facts.inventory.driver),
        **_abilities(facts),
        "nvidia.com/gpu.mode": _mode(facts),
        **_clique(facts),
        **({} if facts.timestamp is None else {"nvidia.com/gfd.timestamp": f"{facts.timestamp}"}),
    }


def _versions(driver: Driver) -> Labels:
    """Versions, also under the names that the reference calls deprecated and that selectors still use."""
    labels = {"nvidia.com/cuda.driver-version.full": value(driver.version)}
    parts = sanitise(driver.version).split(".")
    if len(parts) in _PARTS:
        major, minor, revision = map(value, (*parts, "")[:3])
        labels |= {
            "nvidia.com/cuda.driver-version.major": major,
            "nvidia.com/cuda.driver-version.minor": minor,
            "nvidia.com/cuda.driver-version.revision": revision,
            "nvidia.com/cuda.driver.major": major,
            "nvidia.com/cuda.driver.minor": minor,
            "nvidia.com/cuda.driver.rev": revision,
        }
    if driver.cuda:
        major, minor = map(str, driver.cuda)
        labels |= {
            "nvidia.com/cuda.runtime-version.major": major,
            "nvidia.com/cuda.runtime-version.minor": minor,
            "nvidia.com/cuda.runtime-version.full": f"{major}.{minor}",
            "nvidia.com/cuda.runtime.major": major,
            "nvidia.com/cuda.runtime.minor": minor,
        }
    return labels


def _abilities(facts: NodeFacts) -> Labels:
    in_mig = any(gpu.mig is not None and gpu.mig.current for gpu in facts.gpus)
    return {
        "nvidia.com/mig.capable": _word(any(gpu.mig is not None for gpu in facts.gpus)),
        "nvidia.com/mps.capable": _word(facts.mps and not in_mig),
        **({} if facts.strategy == "none" else {"nvidia.com/mig.strategy": facts.strategy}),
    }


def _mode(facts: NodeFacts) -> str:
    """Graphics or compute, where all GPUs are of one PCI class; a GPU whose class cannot be read leaves it open."""
    found = {facts.pci_classes.get(gpu.pci) for gpu in facts.gpus}
    one = found.pop() if len(found) == 1 else None
    return _MODES.get(one, "unknown") if one is not None else "unknown"


def _clique(facts: NodeFacts) -> Labels:
    keys = {gpu.fabric.key for gpu in facts.gpus if gpu.fabric and gpu.fabric.key}
    return {"nvidia.com/gpu.clique": value(keys.pop())} if len(keys) == 1 else {}


def _word(yes: bool) -> str:  # noqa: FBT001 - it is what it is about
    return "true" if yes else "false"
