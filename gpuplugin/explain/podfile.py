"""What a Pod object asks for itself: read from a file, so that we need no right to read pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplugin.errors import NothingToExplain
from gpuplugin.explain.fit import Asked
from gpuplugin.explain.stock import CPU

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_COUNTED = ("cpu", "memory")


def containers(pod: Any) -> tuple[Asked, ...]:
    """Give each container of a Pod (as ``kubectl get pod -o json`` prints it) with what it wants for itself.

    CPUs count where kubelet would pin them: whole ones, of a Guaranteed pod. Raises NothingToExplain.
    """
    try:
        if pod["kind"] != "Pod":
            raise NothingToExplain(f"a Pod is wanted, and this is a {pod['kind']}: take one of its pods")
        found = [(str(each["name"]), _resources(each)) for each in pod["spec"]["containers"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise NothingToExplain(f"this is no Pod as Kubernetes writes it: {error!r} is missing or no mapping") from None
    pinned = _is_guaranteed(resources for _, resources in found)
    return tuple(Asked(name, dict(_wanted(limits, pinned=pinned))) for name, (_, limits) in found)


def _resources(container: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Requests and limits; what has a limit alone requests as much."""
    given = container.get("resources") or {}
    limits = {name: str(value) for name, value in (given.get("limits") or {}).items()}
    requests = {name: str(value) for name, value in (given.get("requests") or {}).items()}
    return {**limits, **requests}, limits


def _is_guaranteed(resources: Iterable[tuple[dict[str, str], dict[str, str]]]) -> bool:
    return all(name in limits and limits[name] == requests[name] for requests, limits in resources for name in _COUNTED)


def _wanted(limits: Mapping[str, str], *, pinned: bool) -> Iterator[tuple[str, int]]:
    for name, value in limits.items():
        if name == CPU and pinned:
            whole = _whole_cpus(value)
            if whole:
                yield name, whole
        elif "/" in name and value.isdecimal() and not name.startswith("hugepages-"):
            yield name, int(value)


def _whole_cpus(value: str) -> int:
    """How many CPUs of its own this gives: ``4`` and ``4000m`` four, ``1500m`` none."""
    milli = int(value[:-1]) if value.endswith("m") and value[:-1].isdecimal() else -1
    if milli < 0:
        return int(value) if value.isdecimal() else 0
    return 0 if milli % 1000 else milli // 1000
