"""How good a choice of GPUs is beside all others that kubelet left open, by the sum that go-gpuallocator made usual.

A pair counts 100 for each NVLink, by way of switches too, and for PCIe 10 across CPUs, 20 on one CPU, 30 below one host
bridge, 40 below several switches, 50 below one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from gpuplugin.model.inventory import PciePath
from gpuplugin.sim.machine import Machine, SimGpu

Pair = frozenset[str]

_SWITCH = 2


@dataclass(frozen=True, slots=True)
class Quality:
    """Pair sums of one choice: what was chosen, the best and the mean of all that could have been."""

    chosen: int
    best: int
    mean: float


def pair_scores(machine: Machine) -> Mapping[Pair, int]:
    """Score each pair of the machine's GPUs, by UUID."""
    return {
        frozenset({one.record.uuid, other.record.uuid}): 100 * _nvlinks(machine, one, other) + _pcie(one, other)
        for one, other in combinations(machine.gpus, 2)
    }


def quality(
    scores: Mapping[Pair, int], chosen: Collection[str], near: Collection[str], free: Collection[str]
) -> Quality | None:
    """Compare with all sets that kubelet would have taken; None where it left no choice.

    near: free GPUs on the NUMA nodes that the container is kept to: kubelet takes them before any other of `free`.
    """
    if len(near) >= len(chosen):
        options = list(combinations(sorted(near), len(chosen)))
    else:
        others = sorted(set(free) - set(near))
        options = [(*near, *more) for more in combinations(others, len(chosen) - len(near))]
    if len(options) < 2 or len(chosen) < 2:
        return None
    sums = [_total(scores, option) for option in options]
    return Quality(_total(scores, chosen), max(sums), fmean(sums))


def _total(scores: Mapping[Pair, int], gpus: Iterable[str]) -> int:
    return sum(scores[frozenset(pair)] for pair in combinations(gpus, 2))


def _nvlinks(machine: Machine, one: SimGpu, other: SimGpu) -> int:
    links = [link for link in machine.snapshot.links if link.active]

    def to_switches(gpu: SimGpu) -> int:
        return sum(1 for link in links if link.gpu == gpu.record.index and link.remote_type == _SWITCH)

    direct = [link for link in links if link.gpu == one.record.index and link.remote_bus_id == other.record.bus_id]
    return len(direct) + min(to_switches(one), to_switches(other))


def _pcie(one: SimGpu, other: SimGpu) -> int:
    if one.numa != other.numa or one.numa is None:
        return 10
    if one.pcie.root != other.pcie.root:
        return 20
    shared = _shared(one.pcie, other.pcie)
    if not shared:
        return 30
    return 50 if shared >= len(one.pcie.bridges) - 1 and shared >= len(other.pcie.bridges) - 1 else 40


def _shared(one: PciePath, other: PciePath) -> int:
    count = 0
    for mine, its in zip(one.bridges, other.bridges, strict=False):
        if mine != its:
            break
        count += 1
    return count
