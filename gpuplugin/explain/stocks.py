"""Puts together what the node has: our own devices as decided here, the rest as kubelet tells of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplugin.explain.gpu import offers
from gpuplugin.explain.stock import CPU, SYSTEM, Stock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from gpuplugin.explain.gpu import Known
    from gpuplugin.plan.desired import OfferedResource

Piece = tuple[str, str]
"""Resource, and what kubelet calls the piece."""


def stocks(
    known: Known, others: Mapping[Piece, frozenset[int]], cpus: Collection[int], cpu_holders: Mapping[int, str]
) -> dict[str, Stock]:
    """By resource. others: devices of every plugin, with NUMA nodes, as kubelet says · cpus: those that pods may have.

    Devices of other plugins that are unhealthy are not told of by kubelet, so they do not count towards how few NUMA
    nodes would be enough.
    """
    holders = known.holders or {}
    found: dict[str, Stock] = {resource.name: _own(resource, holders) for resource in offers(known)}
    for name in dict.fromkeys(resource for resource, _ in others):
        if name not in found:
            nodes = {piece: its for (resource, piece), its in others.items() if resource == name}
            found[name] = Stock(name, nodes, _of(name, holders, nodes))
    return {**found, CPU: _cpus(known, cpus, cpu_holders)}


def machine(known: Known) -> frozenset[int]:
    """All NUMA nodes; one where the kernel tells of none."""
    return frozenset(node.id for node in known.inventory.numa_nodes) or frozenset({0})


def _own(resource: OfferedResource, holders: Mapping[Piece, str]) -> Stock:
    nodes: dict[str, frozenset[int]] = {}
    unusable: dict[str, str] = {}
    called: dict[str, str] = {}
    for device in resource.devices:
        for number, each in enumerate(device.ids):
            nodes[each] = frozenset(device.numa)
            called[each] = f"GPU {device.index}" + (f", replica {number}" if device.share else "")
            if not device.health.usable:
                unusable[each] = device.health.reason
    return Stock(resource.name, nodes, _of(resource.name, holders, nodes), unusable, called)


def _of(name: str, holders: Mapping[Piece, str], pieces: Collection[str]) -> dict[str, str]:
    return {piece: holder for (resource, piece), holder in holders.items() if resource == name and piece in pieces}


def _cpus(known: Known, allowed: Collection[int], holders: Mapping[int, str]) -> Stock:
    nodes = dict(_places(known, allowed))
    return Stock(
        CPU,
        nodes,
        {str(cpu): holder for cpu, holder in holders.items() if str(cpu) in nodes},
        {cpu: SYSTEM for cpu in nodes if int(cpu) not in allowed},
    )


def _places(known: Known, allowed: Collection[int]) -> Iterator[tuple[str, frozenset[int]]]:
    if not known.inventory.numa_nodes:
        yield from ((str(cpu), frozenset({0})) for cpu in allowed)
    for node in known.inventory.numa_nodes:
        yield from ((str(cpu), frozenset({int(node.id)})) for cpu in node.cpus)
