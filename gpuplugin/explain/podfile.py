"""What a Pod object asks for itself, and what kubelet has said of it; read from a file, or from the API server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gpuplugin.errors import NothingToExplain
from gpuplugin.explain.fit import Asked
from gpuplugin.explain.memory import is_memory
from gpuplugin.explain.quantity import quantity, whole
from gpuplugin.explain.stock import CPU

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Amounts = Mapping[str, str]

_COUNTED: Final = ("cpu", "memory")
_FAILED: Final = "Failed"


@dataclass(frozen=True, slots=True)
class Toleration:
    """One of a pod's. key: "" for all · operator: Exists or Equal · effect: "" for all."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Said:
    """What the status of a pod says. reason, message: kubelet's where it refused it, the scheduler's while it waits."""

    phase: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PodObject:
    """A Pod, as far as it matters here.

    name: with its namespace · node: where it was sent, "" for nowhere · selector: labels that its node must have ·
    affinity: whether it wants more of its node than that · init: names of containers that go first · claims: its
    ResourceClaims, with their namespace.
    """

    name: str
    containers: tuple[Asked, ...]
    node: str = ""
    tolerations: tuple[Toleration, ...] = ()
    selector: dict[str, str] | None = None
    affinity: bool = False
    init: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    said: Said | None = None


def pod_object(pod: Any) -> PodObject:
    """Read a Pod as ``kubectl get pod -o json`` prints it. Raises NothingToExplain."""
    try:
        if pod["kind"] != "Pod":
            raise NothingToExplain(f"a Pod is wanted, and this is a {pod['kind']}: take one of its pods")
        spec, meta = pod["spec"], pod.get("metadata") or {}
        found = [(str(each["name"]), *_resources(each)) for each in spec["containers"]]
        first = [(str(each["name"]), *_resources(each)) for each in spec.get("initContainers") or ()]
        pinned = _is_guaranteed((requests, limits) for _, requests, limits in (*found, *first))
        namespace, status = meta.get("namespace", "default"), pod.get("status") or {}
        return PodObject(
            f"{namespace}/{meta.get('name', '')}",
            tuple(Asked(name, dict(_wanted(limits, pinned=pinned))) for name, _, limits in found),
            str(spec.get("nodeName") or ""),
            tuple(map(_toleration, spec.get("tolerations") or ())),
            {str(key): str(value) for key, value in (spec.get("nodeSelector") or {}).items()},
            bool((spec.get("affinity") or {}).get("nodeAffinity")),
            tuple(name for name, *_ in first),
            tuple(f"{namespace}/{name}" for name in _claims(spec, status)),
            _said(status),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise NothingToExplain(f"this is no Pod as Kubernetes writes it: {error!r} is missing or no mapping") from None
    except ValueError as error:
        raise NothingToExplain(f"this is no Pod as Kubernetes writes it: {error}") from None


def _resources(container: Mapping[str, Any]) -> tuple[Amounts, Amounts]:
    """Requests and limits; what has a limit alone requests as much."""
    given = container.get("resources") or {}
    limits = {name: str(value) for name, value in (given.get("limits") or {}).items()}
    requests = {name: str(value) for name, value in (given.get("requests") or {}).items()}
    return {**limits, **requests}, limits


def _is_guaranteed(resources: Iterable[tuple[Amounts, Amounts]]) -> bool:
    return all(
        name in limits and quantity(limits[name]) == quantity(requests[name])
        for requests, limits in resources
        for name in _COUNTED
    )


def _wanted(limits: Amounts, *, pinned: bool) -> Iterator[tuple[str, int]]:
    """What kubelet would give to one container alone.

    CPUs count where kubelet would pin them, whole ones of a Guaranteed pod, and memory and huge pages of such a pod.
    """
    for name, value in limits.items():
        if name == CPU:
            if pinned and quantity(value).denominator == 1:
                yield name, whole(value)
        elif is_memory(name):
            if pinned:
                yield name, whole(value)
        elif "/" in name:
            yield name, whole(value)


def _claims(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[str]:
    own = [status["extendedResourceClaimStatus"]] if status.get("extendedResourceClaimStatus") else []
    for each in (*(spec.get("resourceClaims") or ()), *(status.get("resourceClaimStatuses") or ()), *own):
        if name := each.get("resourceClaimName"):
            yield str(name)


def _toleration(given: Mapping[str, Any]) -> Toleration:
    return Toleration(*(str(given.get(name) or "") for name in ("key", "operator", "value", "effect")))


def _said(status: Mapping[str, Any]) -> Said | None:
    phase = str(status.get("phase") or "")
    if not phase:
        return None
    waiting = [each for each in status.get("conditions") or () if each.get("type") == "PodScheduled"]
    if phase != _FAILED and waiting and waiting[0].get("status") == "False":
        return Said(phase, str(waiting[0].get("reason") or ""), str(waiting[0].get("message") or ""))
    return Said(phase, str(status.get("reason") or ""), str(status.get("message") or ""))
