"""What `gpuplugin explain` and `gpuplugin report` ask the daemon, a line of JSON each, and what they get back."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from gpuplugin.explain.fit import Asked, Fit  # noqa: TC001 - msgspec looks them up
from gpuplugin.explain.node_object import NodeAnswer
from gpuplugin.explain.podfile import PodObject  # noqa: TC001 - likewise


class OfGpu(Struct, frozen=True, tag="gpu", forbid_unknown_fields=True):
    """Why is this GPU offered, or not? name: index, UUID or PCI address. Answer: GpuAnswer."""

    name: str


class OfGpus(Struct, frozen=True, tag="gpus", forbid_unknown_fields=True):
    """Which GPUs are there? Answer: a GpuHere each, by index."""


class OfPod(Struct, frozen=True, tag="pod", forbid_unknown_fields=True):
    """Why does this pod have these GPUs? name: ``namespace/name``. Answer: PodAnswer."""

    name: str


class OfFit(Struct, frozen=True, tag="fit", forbid_unknown_fields=True):
    """Would such a pod be admitted now? Answer: FitAnswer.

    nics: of `nic_resource`, or where that is "" of the one resource of another device plugin, for the first container ·
    policy: the topology manager's, "" for what kubelet is seen to run with · pod: whose the containers are, None where
    there is only an idea of one.
    """

    containers: tuple[Asked, ...]
    policy: str = ""
    nics: int = 0
    nic_resource: str = ""
    pod: PodObject | None = None


class OfState(Struct, frozen=True, tag="state", forbid_unknown_fields=True):
    """What is known altogether? Answer: the files of a report, text by name."""


Question = OfGpu | OfGpus | OfPod | OfFit | OfState


class GpuHere(Struct, frozen=True):
    """What a GPU may be called by. index: NVML's · uuid: None where it cannot be read · pci: None where it has none."""

    index: int
    uuid: str | None
    pci: str | None


class FitAnswer(Struct, frozen=True):
    """What becomes of a pod.

    fit: at kubelet · policy, scope: the topology manager's · notes: what is left out or doubtful · node: what the
    scheduler finds in the Node object · rests_on: what it was decided from.
    """

    fit: Fit
    policy: str
    scope: str
    notes: tuple[str, ...] = ()
    node: NodeAnswer = NodeAnswer()
    rests_on: tuple[str, ...] = ()

    @property
    def would_run(self) -> bool:
        """Whether neither the scheduler nor kubelet has anything against it, as far as could be seen."""
        return self.fit.admitted and not self.node.causes


class Reply(Struct, frozen=True, omit_defaults=True):
    """One of the two: an answer, or why there is none."""

    answer: Any = None
    refused: str = ""
