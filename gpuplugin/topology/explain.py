"""Why these GPUs: the facts behind a choice, for logs and for people, worked out only when somebody asks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from gpuplugin.topology.graph import components, mask_of, positions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuplugin.model.ids import NumaId, PciAddress
    from gpuplugin.model.links import PcieLevel
    from gpuplugin.topology.graph import Graph


@dataclass(frozen=True, slots=True)
class WeakestPair:
    """Two GPUs (NVML indices) that no other pair of the set is joined worse than."""

    a: int
    b: int
    links: int
    pcie: PcieLevel


@dataclass(frozen=True, slots=True)
class Reasons:
    """What a set of GPUs is like. GPUs are named by NVML index.

    islands: the parts that the set's own NVLinks join · nvlinks: between its GPUs, all pairs together · bundles: least
    and most links of its linked pairs, None without any · numa: known nodes spanned · switches: PCIe switches spanned ·
    nics: nearest NICs within one host bridge · kept: groups of two or more GPUs (an island, NUMA node or switch) that
    stay free as a whole, the largest only.
    """

    gpus: tuple[int, ...]
    islands: tuple[tuple[int, ...], ...]
    nvlinks: int
    bundles: tuple[int, int] | None
    weakest: WeakestPair | None
    numa: tuple[NumaId, ...]
    switches: tuple[PciAddress, ...]
    nics: tuple[str, ...]
    kept: tuple[tuple[int, ...], ...]
    exact: bool = True

    def __str__(self) -> str:
        count = len(self.gpus)
        facts = [f"{count} GPU{'s' if count != 1 else ''} ({ranges(self.gpus)})"]
        if count > 1:
            facts.append(self._nvlink())
        if self.weakest and not self.weakest.links:
            facts.append(f"PCIe {self.weakest.pcie.name} at the farthest")
        if self.numa:
            facts.append(f"NUMA {ranges(self.numa)}")
        if self.nics:
            facts.append(f"NIC{'s' if len(self.nics) > 1 else ''} {_name_ranges(self.nics)}")
        text = ", ".join(facts)
        if self.kept:
            text += f"; GPUs {' and '.join(map(ranges, self.kept))} kept whole"
        return text if self.exact else f"{text}; too many sets to be sure that none is better"

    def _nvlink(self) -> str:
        if self.bundles is None:
            return "no NVLink"
        islands = "one NVLink island" if len(self.islands) == 1 else f"{len(self.islands)} NVLink islands"
        least, most = self.bundles
        return f"{islands} (NV{least})" if least == most else f"{islands} (NV{least} to NV{most})"


def explain(graph: Graph, chosen: int, available: int, *, exact: bool = True) -> Reasons:
    """The facts about the set `chosen` out of `available`, both masks of positions."""
    members = positions(chosen)
    pairs = list(combinations(members, 2))
    bundles = [graph.links[i][j] for i, j in pairs if graph.links[i][j]]
    linked = tuple(mask_of(j for j, links in enumerate(row) if links) for row in graph.links)

    def named(mask: int) -> tuple[int, ...]:
        return tuple(graph.labels[i] for i in positions(mask))

    return Reasons(
        gpus=named(chosen),
        islands=tuple(named(part) for part in components(linked, chosen)),
        nvlinks=sum(bundles),
        bundles=(min(bundles), max(bundles)) if bundles else None,
        weakest=_weakest(graph, pairs),
        numa=tuple(sorted({node for i in members if (node := graph.numa[i]) is not None})),
        switches=tuple(sorted({switch for i in members if (switch := graph.switches[i]) is not None})),
        nics=tuple(dict.fromkeys(name for i in members for name in graph.nics[i])),
        kept=tuple(named(group) for group in _kept(graph, available & ~chosen)),
        exact=exact,
    )


def _weakest(graph: Graph, pairs: Iterable[tuple[int, int]]) -> WeakestPair | None:
    found = min(pairs, key=lambda pair: (graph.links[pair[0]][pair[1]], -graph.levels[pair[0]][pair[1]]), default=None)
    if found is None:
        return None
    i, j = found
    return WeakestPair(graph.labels[i], graph.labels[j], graph.links[i][j], graph.levels[i][j])


def _kept(graph: Graph, free: int) -> list[int]:
    """Whole free groups, by lowest position, without those that lie in another."""
    groups = {*graph.islands, *graph.nodes, *graph.branches}
    whole = [group for group in groups if group.bit_count() > 1 and not group & ~free]
    largest = [group for group in whole if not any(group != other and not group & ~other for other in whole)]
    return sorted(largest, key=positions)


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers the way the kernel writes lists: ``0-3,6`` for 0, 1, 2, 3, 6."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _name_ranges(names: Sequence[str]) -> str:
    """``mlx5_0-3`` for names that differ only in a number at the end."""
    stems: dict[str, list[int]] = {}
    plain = []
    for name in names:
        match = re.fullmatch(r"(.*?)(0|[1-9]\d*)", name)
        if match is None:
            plain.append(name)
        else:
            stems.setdefault(match[1], []).append(int(match[2]))
    numbered = [stem + part for stem, tails in stems.items() for part in ranges(sorted(tails)).split(",")]
    return ", ".join([*numbered, *plain])
