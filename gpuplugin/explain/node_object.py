"""What the Node object has against a pod: what the scheduler goes by, before kubelet is asked at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gpuplugin.explain.gpu import Cause
from gpuplugin.explain.memory import amount
from gpuplugin.explain.quantity import whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuplugin.explain.podfile import PodObject, Toleration

_CORDON: Final = "node.kubernetes.io/unschedulable"
_KEEPS_OFF: Final = ("NoSchedule", "NoExecute")
_PRESSURE: Final = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")


@dataclass(frozen=True, slots=True)
class NodeTold:
    """A Node object, as far as it matters here. taints: key, value and effect · conditions: by type, status and why."""

    name: str
    unschedulable: bool = False
    taints: tuple[tuple[str, str, str], ...] = ()
    conditions: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What was found there.

    why_not: why it was not looked at, "" where it was · causes: what keeps the pod from being sent here · notes: what
    depends on the pod, or contradicts what is known here.
    """

    name: str = ""
    why_not: str = ""
    causes: tuple[Cause, ...] = ()
    notes: tuple[str, ...] = ()


def of_node(
    node: NodeTold, wanted: Mapping[str, int], usable: Mapping[str, int], pod: PodObject | None = None
) -> NodeAnswer:
    """Answer. wanted: all that is asked for together · usable: devices of ours that kubelet was told of as healthy."""
    causes = (*_unfit(node, pod), *_conditions(node), *_amounts(node, wanted))
    return NodeAnswer(node.name, "", causes, (*_notes(node, pod), *_behind(node, usable)))


def beside_a_gpu(node: NodeTold | str, usable: Mapping[str, int]) -> tuple[str, ...]:
    """Say what the Node object adds to what is known of a GPU. node: or why it was not looked at · usable: as above."""
    if isinstance(node, str):
        return (f"the Node object was not looked at: {node}",)
    return (*(cause.why for cause in (*_unfit(node, None), *_conditions(node))), *_behind(node, usable))


def _unfit(node: NodeTold, pod: PodObject | None) -> Iterator[Cause]:
    tolerations = pod.tolerations if pod else ()
    cordon = (_CORDON, "", "NoSchedule")
    if node.unschedulable and not any(_tolerates(each, cordon) for each in tolerations):
        yield Cause(f"node {node.name} is cordoned", f"`kubectl uncordon {node.name}`, once it may have pods again")
    if pod is None:
        return
    for taint in node.taints:
        if taint[2] in _KEEPS_OFF and taint[0] != _CORDON and not any(_tolerates(each, taint) for each in tolerations):
            yield Cause(
                f"the pod does not tolerate the taint {_written(taint)}", "give it a toleration, or end the taint"
            )
    for key, value in (pod.selector or {}).items():
        if node.labels.get(key) != value:
            has = f"has {key}={node.labels[key]}" if key in node.labels else f"has no label {key}"
            yield Cause(f"its nodeSelector wants {key}={value}, and this node {has}", "it belongs on another node")


def _conditions(node: NodeTold) -> Iterator[Cause]:
    status, why = node.conditions.get("Ready", ("Unknown", "there is no such condition"))
    if status != "True":
        yield Cause(f"node {node.name} is not ready: {why}", "see to kubelet on it")
    for kind in _PRESSURE:
        status, why = node.conditions.get(kind, ("False", ""))
        if status == "True":
            yield Cause(f"node {node.name} has {kind}: {why}", f"`kubectl describe node {node.name}`")


def _amounts(node: NodeTold, wanted: Mapping[str, int]) -> Iterator[Cause]:
    for name, count in wanted.items():
        has = _has(node, name)
        if count > has:
            yield Cause(
                f"{amount(name, count)} are wanted, and the Node object has {amount(name, has)} allocatable",
                "ask for less, or use another node",
            )


def _notes(node: NodeTold, pod: PodObject | None) -> Iterator[str]:
    taints = [taint for taint in node.taints if taint[2] in _KEEPS_OFF and taint[0] != _CORDON]
    if pod is None and taints:
        yield f"the pod has to tolerate {', '.join(map(_written, taints))}"
    if pod is not None and pod.affinity:
        yield "not looked at: its node affinity"


def _behind(node: NodeTold, usable: Mapping[str, int]) -> Iterator[str]:
    for name, count in usable.items():
        if _has(node, name) != count:
            yield (
                f"the Node object says {_has(node, name)} {name} allocatable, and kubelet was told of {count}: the "
                "scheduler goes by the Node object, which follows within seconds (nodeStatusUpdateFrequency)"
            )


def _has(node: NodeTold, name: str) -> int:
    try:
        return int(whole(node.allocatable.get(name, "0")))
    except ValueError:
        return 0


def _tolerates(toleration: Toleration, taint: tuple[str, str, str]) -> bool:
    key, value, effect = taint
    if toleration.effect not in {"", effect}:
        return False
    if toleration.key == "":
        return toleration.operator == "Exists"
    return toleration.key == key and (toleration.operator == "Exists" or toleration.value == value)


def _written(taint: tuple[str, str, str]) -> str:
    key, value, effect = taint
    return f"{key}={value}:{effect}" if value else f"{key}:{effect}"
