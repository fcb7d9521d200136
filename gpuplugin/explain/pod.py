"""Why a pod has these GPUs: what they have in common, what else was free then, and what is free beside them now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuplugin.explain.gpu import offers
from gpuplugin.explain.podfile import Said  # noqa: TC001 - msgspec looks it up
from gpuplugin.explain.questions import FitAnswer  # noqa: TC001 - likewise
from gpuplugin.model.ids import ResourceName, without_replica
from gpuplugin.model.refusals import Refusal  # noqa: TC001 - likewise
from gpuplugin.topology.explain import explain, ranges
from gpuplugin.topology.graph import mask_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpuplugin.explain.gpu import Known
    from gpuplugin.model.choices import Choice
    from gpuplugin.plan.desired import OfferedResource
    from gpuplugin.topology.graph import Graph


@dataclass(frozen=True, slots=True)
class Had:
    """What one container has: device ids of one resource, as kubelet says."""

    container: str
    resource: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a container has its devices.

    gpus: NVML indices · cpus: CPUs of its own, as the kernel writes lists, "" for none · common: what its GPUs have in
    common · at: when, seconds since 1970 · free_then, free_now: GPUs, by index, None where it is not known · why: in
    words.
    """

    container: str
    resource: str
    devices: tuple[str, ...]
    gpus: tuple[int, ...]
    cpus: str
    common: str
    why: str
    at: float | None = None
    free_then: tuple[int, ...] | None = None
    free_now: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a pod has nothing. said: its status · means: that in other words · ours: refusals of ours that it is about.

    now: what would become of it now; None where that cannot be told, and why_not_now says why.
    """

    said: Said
    means: str
    ours: tuple[Refusal, ...] = ()
    now: FitAnswer | None = None
    why_not_now: str = ""


@dataclass(frozen=True, slots=True)
class PodAnswer:
    """All containers of a pod that have GPUs of ours. claims: devices by claim · refused: where it has nothing."""

    pod: str
    containers: tuple[Reason, ...]
    claims: tuple[str, ...] = ()
    refused: Refused | None = None


def why_these(
    known: Known,
    graph: Graph,
    pod: str,
    had: Iterable[Had],
    cpus: dict[str, tuple[int, ...]],
    choices: Sequence[Choice],
    claims: Sequence[str] = (),
) -> PodAnswer:
    """Answer for a pod, ``namespace/name``. cpus: of its own, by container. Without any container, it has nothing."""
    resources = {resource.name: resource for resource in offers(known)}
    reasons = tuple(
        _reason(known, graph, each, resources[ResourceName(each.resource)], cpus.get(each.container, ()), choices)
        for each in had
        if each.resource in resources
    )
    return PodAnswer(pod, reasons, tuple(claims))


def _reason(
    known: Known, graph: Graph, had: Had, resource: OfferedResource, cpus: Sequence[int], choices: Sequence[Choice]
) -> Reason:
    positions = {device.id: device.position for device in resource.devices}

    def places(ids: Iterable[str]) -> set[int]:
        return {positions[base] for each in ids if (base := without_replica(each)[0]) in positions}

    chosen = mask_of(places(had.devices))
    choice = next((each for each in reversed(choices) if set(each.devices) == set(had.devices)), None)
    then = None if choice is None or not choice.free else mask_of(places(choice.free))
    now = None if known.holders is None else mask_of(places(_free_now(known, resource)))
    facts = explain(graph, chosen, chosen if then is None else then | chosen)
    free_then = None if then is None else _labels(graph, then)
    return Reason(
        container=had.container,
        resource=had.resource,
        devices=had.devices,
        gpus=_labels(graph, chosen),
        cpus=ranges(sorted(cpus)),
        common=str(facts),
        why=_in_words(_labels(graph, chosen), free_then),
        at=None if choice is None else choice.at,
        free_then=free_then,
        free_now=None if now is None else _labels(graph, now),
    )


def _in_words(gpus: tuple[int, ...], free: tuple[int, ...] | None) -> str:
    if free is None:
        return (
            "what else was free then is not known: kubelet had no choice to leave to us, or the daemon has started "
            "since"
        )
    others = tuple(gpu for gpu in free if gpu not in gpus)
    if not others:
        return "nothing else was free on the NUMA nodes that kubelet had decided on"
    return (
        f"kubelet left GPU {ranges(free)} open, and of those these are joined best and break up least of what is whole"
    )


def _free_now(known: Known, resource: OfferedResource) -> Iterator[str]:
    holders = known.holders or {}
    for device in resource.devices:
        if device.health.usable:
            yield from (each for each in device.ids if (resource.name, each) not in holders)


def _labels(graph: Graph, mask: int) -> tuple[int, ...]:
    return tuple(label for position, label in enumerate(graph.labels) if mask >> position & 1)
