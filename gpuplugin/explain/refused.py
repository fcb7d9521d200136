"""Why a pod was refused, from what its status says, and from what we ourselves have refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuplugin.explain.fit import NOT_ALIGNED, NOT_THERE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuplugin.explain.podfile import PodObject, Said
    from gpuplugin.model.refusals import Refusal

ASK_WITH_FILE: Final = (
    "what was in the way is told by `kubectl get pod … -o json | gpuplugin explain --file -`, with all its containers, "
    "or by `gpuplugin explain --gpus N --cpus M`"
)
_MEANS: Final = {
    NOT_ALIGNED: "kubelet found no NUMA nodes for all that a container asks for (topologyManagerPolicy)",
    "SMTAlignmentError": "kubelet gives whole cores alone (cpuManagerPolicyOptions.full-pcpus-only)",
    NOT_THERE: "kubelet could not give a container what it asks for, though the scheduler had counted on it",
}


def means(pod: PodObject, said: Said, node: str) -> str:
    """Say it in other words. node: the one that we are on, "" where that is not known."""
    if pod.node and node and pod.node != node:
        return f"it was sent to node {pod.node}, and this is {node}: the daemon there is the one to ask"
    if said.phase == "Failed":
        if said.reason.startswith("OutOf"):
            lacking = said.reason.removeprefix("OutOf")
            return f"kubelet adds up what its pods request, and had too little {lacking} left"
        return _MEANS.get(said.reason, "kubelet did not refuse it: it was let in, and has failed since")
    if not pod.node:
        return "no node has it yet: that is the scheduler's, and kubelet was not asked"
    running = "its containers do not run yet" if said.phase == "Pending" else "it has no GPU of ours"
    return f"kubelet has let it in, and {running}"


def was_refused(said: Said) -> bool:
    """Whether kubelet has refused it for want of something."""
    return said.phase == "Failed" and (said.reason in _MEANS or said.reason.startswith("OutOf"))


def about(refusals: Iterable[Refusal], pod: PodObject) -> tuple[Refusal, ...]:
    """Give those that this pod is about: kubelet's message quotes ours, and what is of a claim names it."""
    message = pod.said.message if pod.said else ""
    return tuple(each for each in refusals if (message and each.reason in message) or each.of in pod.claims)
