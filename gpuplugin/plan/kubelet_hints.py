"""What kubelet's settings mean for GPUs on this machine, in words for people: pure, a rule a function.

Our plugin tells kubelet on which NUMA node each GPU is. Whether kubelet uses that, and whether it can start at all with
what it is told, depends on its settings together with the machine, and kubelet itself says little of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuplugin.model.inventory import Inventory
    from gpuplugin.model.kubelet import KubeletSettings

POLICIES: Final = ("none", "best-effort", "restricted", "single-numa-node")
SCOPES: Final = ("container", "pod")
STRICT: Final = ("restricted", "single-numa-node")
MAX_NODES: Final = "max-allowable-numa-nodes"
PREFER_CLOSEST: Final = "prefer-closest-numa-nodes"
DEFAULT_MAX_NODES: Final = 8
_LOCAL: Final = 10


Level = Literal["error", "warning", "info"]
"""error: kubelet does not start with that · warning: alignment is lost · info: a consequence to know of."""


@dataclass(frozen=True, slots=True)
class Hint:
    """One thing to tell, with what to do about it."""

    level: Level
    text: str


def hints(settings: KubeletSettings, inventory: Inventory) -> tuple[Hint, ...]:
    """Give all that there is to say, worst first. What is not known of the settings is not guessed at."""
    return tuple(Hint(level, text) for level, rules in _RULES for rule in rules for text in rule(settings, inventory))


def _unknown_values(settings: KubeletSettings, _: Inventory) -> Iterator[str]:
    for key, value, allowed in (
        ("topologyManagerPolicy", settings.topology_policy, POLICIES),
        ("topologyManagerScope", settings.topology_scope, SCOPES),
        ("cpuManagerPolicy", settings.cpu_policy, ("none", "static")),
        ("memoryManagerPolicy", settings.memory_policy, ("None", "Static")),
    ):
        if value is not None and value not in allowed:
            yield f"kubelet does not start with {key}: {value!r}; allowed: {', '.join(allowed)}"
    if _aligns(settings):
        for option in sorted(settings.topology_options.keys() - {MAX_NODES, PREFER_CLOSEST}):
            allowed_options = f"{PREFER_CLOSEST}, {MAX_NODES}"
            yield f"kubelet does not start with topologyManagerPolicyOptions.{option}; allowed: {allowed_options}"


def _too_many_nodes(settings: KubeletSettings, inventory: Inventory) -> Iterator[str]:
    nodes = len(inventory.numa_nodes)
    given = settings.topology_options.get(MAX_NODES, str(DEFAULT_MAX_NODES))
    if not _aligns(settings):
        return
    if not given.isdecimal() or int(given) < DEFAULT_MAX_NODES:
        yield (
            f"kubelet does not start with topologyManagerPolicyOptions.{MAX_NODES}: {given!r}; "
            f"allowed: a number, {DEFAULT_MAX_NODES} or more"
        )
    elif nodes > int(given):
        yield (
            f"kubelet does not start: topologyManagerPolicy is {settings.topology_policy}, and this machine has "
            f'{nodes} NUMA nodes where it takes {given}. Set topologyManagerPolicyOptions: {{{MAX_NODES}: "{nodes}"}}'
        )


def _static_without_reservation(settings: KubeletSettings, _: Inventory) -> Iterator[str]:
    if settings.cpu_policy == "static" and settings.reserves_cpu is False:
        yield (
            "kubelet does not start: cpuManagerPolicy static needs CPU set aside for the system. "
            'Set reservedSystemCPUs (such as "0,1"), or cpu in kubeReserved or systemReserved'
        )


def _socket_against_node(settings: KubeletSettings, _: Inventory) -> Iterator[str]:
    by_socket = settings.cpu_options.get("align-by-socket", "").lower() in {"true", "t", "1"}
    if settings.cpu_policy == "static" and settings.topology_policy == "single-numa-node" and by_socket:
        yield (
            "kubelet does not start: cpuManagerPolicyOptions.align-by-socket and topologyManagerPolicy "
            "single-numa-node exclude each other. Remove the option, or use restricted"
        )


def _another_state(settings: KubeletSettings, _: Inventory) -> Iterator[str]:
    for key, configured, state, file in (
        ("cpuManagerPolicy", settings.cpu_policy, settings.cpu_state, "cpu_manager_state"),
        ("memoryManagerPolicy", settings.memory_policy, settings.memory_state, "memory_manager_state"),
    ):
        if configured is not None and state is not None and configured != state:
            yield (
                f"kubelet does not start the next time: {key} is {configured}, and its file {file} was written under "
                f"{state}. Drain the node, remove that file from kubelet's folder, and restart kubelet"
            )


def _no_alignment(settings: KubeletSettings, inventory: Inventory) -> Iterator[str]:
    if settings.topology_policy == "none" and len(inventory.numa_nodes) > 1:
        yield (
            "topologyManagerPolicy is none: kubelet does not look at NUMA nodes, so a container's CPUs may be far from "
            "its GPUs. Set it to best-effort, restricted or single-numa-node. GPUs are close to each other in any case"
        )


def _gpus_without_node(settings: KubeletSettings, inventory: Inventory) -> Iterator[str]:
    unplaced = [gpu.index for gpu in inventory.gpus if gpu.numa is None]
    if not unplaced or not _aligns(settings) or len(inventory.numa_nodes) < 2:  # noqa: PLR2004 - with one it does not matter
        return
    if len(unplaced) == len(inventory.gpus):
        what = "the kernel ties no GPU to a NUMA node (numa_node is -1), so kubelet aligns CPUs alone"
    else:
        what = f"the kernel ties GPU {', '.join(map(str, unplaced))} to no NUMA node, so kubelet takes them last"
    yield (
        f"topologyManagerPolicy is {settings.topology_policy}, but {what}. On bare metal look for NUMA in the "
        "firmware's settings; in a virtual machine give the guest PCI host bridges on its NUMA nodes"
    )


def _cpus_not_pinned(settings: KubeletSettings, inventory: Inventory) -> Iterator[str]:
    if _aligns(settings) and settings.pins_cpus is False and len(inventory.numa_nodes) > 1:
        yield (
            f"topologyManagerPolicy is {settings.topology_policy}, but cpuManagerPolicy is none: GPUs are kept on few "
            "NUMA nodes, and CPUs may be on any. Set cpuManagerPolicy: static; it serves Guaranteed pods that ask for "
            "whole CPUs"
        )


def _node_reserved(settings: KubeletSettings, inventory: Inventory) -> Iterator[str]:
    reserved = set(settings.reserved_cpus or ())
    if not (_aligns(settings) and settings.pins_cpus):
        return
    for node in inventory.numa_nodes:
        gpus = [str(gpu.index) for gpu in inventory.gpus if gpu.numa == node.id]
        if gpus and reserved.issuperset(node.cpus):
            why = f"NUMA node {node.id} has no CPUs"
            if node.cpus:
                why = f"reservedSystemCPUs has every CPU of NUMA node {node.id}. Reserve CPUs of other nodes"
            yield f"no container can have CPUs near GPU {', '.join(gpus)}: {why}"


def _far_nodes(settings: KubeletSettings, inventory: Inventory) -> Iterator[str]:
    distances = {distance for node in inventory.numa_nodes for distance in node.distances if distance > _LOCAL}
    closest = settings.topology_options.get(PREFER_CLOSEST, "").lower() in {"true", "t", "1"}
    if settings.topology_policy in {"best-effort", "restricted"} and len(distances) > 1 and not closest:
        yield (
            f"NUMA nodes here are near or far (distances {', '.join(map(str, sorted(distances)))}), and "
            f'kubelet does not tell them apart. Set topologyManagerPolicyOptions: {{{PREFER_CLOSEST}: "true"}}'
        )


def _nothing_to_align(settings: KubeletSettings, inventory: Inventory) -> Iterator[str]:
    if _aligns(settings) and len(inventory.numa_nodes) == 1:
        yield (
            f"topologyManagerPolicy is {settings.topology_policy}, and this machine has one NUMA node: there is "
            "nothing to align"
        )


def _never_admitted(settings: KubeletSettings, inventory: Inventory) -> Iterator[str]:
    sizes = Counter(gpu.numa for gpu in inventory.gpus if gpu.numa is not None)
    most = max(sizes.values(), default=0)
    if not most or most == len(inventory.gpus):
        return
    unit = "pod" if settings.topology_scope == "pod" else "container"
    if settings.topology_policy == "single-numa-node":
        yield (
            f"single-numa-node: no {unit} of more than {most} GPU{'s' * (most > 1)} is ever admitted, since no NUMA "
            "node has more. Use restricted or best-effort where larger ones are wanted"
        )
    elif settings.topology_policy == "restricted" and settings.pins_cpus:
        yield (
            f"restricted: a {unit} of more than {most} GPU{'s' * (most > 1)} that has CPUs of its own is admitted only "
            "if it asks for so many CPUs that they need as many NUMA nodes as the GPUs. Use best-effort where that is "
            "not wanted"
        )


def _memory_left_out(settings: KubeletSettings, inventory: Inventory) -> Iterator[str]:
    if settings.topology_policy in STRICT and settings.memory_policy == "None" and len(inventory.numa_nodes) > 1:
        yield (
            f"topologyManagerPolicy is {settings.topology_policy} and memoryManagerPolicy is None: memory is taken "
            "near the CPUs while there is some, and is not held to it. memoryManagerPolicy: Static does that"
        )


def _aligns(settings: KubeletSettings) -> bool:
    return settings.topology_policy not in {None, "none"}


_RULES: Final[tuple[tuple[Level, tuple[Callable[[KubeletSettings, Inventory], Iterator[str]], ...]], ...]] = (
    ("error", (_unknown_values, _too_many_nodes, _static_without_reservation, _socket_against_node, _another_state)),
    ("warning", (_no_alignment, _gpus_without_node, _cpus_not_pinned, _node_reserved, _far_nodes)),
    ("info", (_nothing_to_align, _never_admitted, _memory_left_out)),
)
