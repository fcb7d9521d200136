"""``gpuplugin explain``: why a GPU is not offered, why a pod has these, whether a pod would be admitted now."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuplugin.cli.daemon import ask
from gpuplugin.cli.output import Cell, Page, show_json
from gpuplugin.config.settings import GPU_RESOURCE
from gpuplugin.errors import NothingToExplain
from gpuplugin.explain.fit import Asked
from gpuplugin.explain.gpu import GpuAnswer
from gpuplugin.explain.memory import HUGE_PAGES, MEMORY, amount
from gpuplugin.explain.pod import PodAnswer
from gpuplugin.explain.podfile import pod_object
from gpuplugin.explain.quantity import whole
from gpuplugin.explain.questions import FitAnswer, OfFit, OfGpu, OfPod
from gpuplugin.explain.refused import was_refused
from gpuplugin.explain.stock import CPU
from gpuplugin.topology.explain import ranges

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuplugin.explain.gpu import Cause
    from gpuplugin.explain.pod import Refused
    from gpuplugin.explain.podfile import PodObject, Said

NOT_ADMITTED = 1
_ARROW = "  → "


@dataclass(frozen=True, slots=True)
class Wanted:
    """A pod as the options give it.

    nics: ``2`` or ``rdma/hca=2`` · file: of a Pod in JSON or YAML, ``-`` for standard input, "" for none · memory:
    ``16Gi`` · hugepages: ``2Mi=4Gi``, several with commas.
    """

    gpus: int = 0
    cpus: int = 0
    nics: str = ""
    resource: str = GPU_RESOURCE
    policy: str = ""
    file: str = ""
    memory: str = ""
    hugepages: str = ""

    @property
    def is_given(self) -> bool:
        """Whether a pod is asked about at all."""
        return bool(self.gpus or self.cpus or self.nics or self.file or self.memory or self.hugepages)


def show(name: str, wanted: Wanted, *, as_json: bool) -> int:
    """Print the answer; the exit status is 1 where the pod would not be admitted, 0 otherwise."""
    if wanted.is_given == bool(name):
        raise NothingToExplain("say one thing: a GPU (index, UUID, PCI address), a pod (namespace/name), or --gpus N")
    if wanted.is_given:
        question = _question(wanted)
        found = ask(question, FitAnswer)
        _print(found, of_fit(found, question.pod), as_json=as_json)
        return 0 if found.would_run else NOT_ADMITTED
    if "/" in name and not name.startswith("MIG-"):
        pod = ask(OfPod(name), PodAnswer)
        _print(pod, of_pod(pod), as_json=as_json)
    else:
        gpu = ask(OfGpu(name), GpuAnswer)
        _print(gpu, of_gpu(gpu), as_json=as_json)
    return 0


def _print(answer: Any, page: Page, *, as_json: bool) -> None:
    if as_json:
        show_json(answer)
    else:
        page.show()


def _question(wanted: Wanted) -> OfFit:
    pod = None
    if wanted.file:
        pod = pod_object(_pod_in(wanted.file))
        asked = pod.containers
    else:
        asked = (Asked("main", {wanted.resource: wanted.gpus, CPU: wanted.cpus, **_amounts(wanted)}),)
    name, _, nics = wanted.nics.rpartition("=")
    if wanted.nics and not nics.isdecimal():
        raise NothingToExplain(f"--nics {wanted.nics!r}: a number is wanted, or NAME=number")
    return OfFit(asked, wanted.policy, int(nics or 0), name, pod)


def _amounts(wanted: Wanted) -> dict[str, int]:
    """Bytes by resource. Raises NothingToExplain."""
    parts = [part.partition("=") for part in wanted.hugepages.split(",") if part]
    written = {f"{HUGE_PAGES}{page.strip()}": text for page, _, text in parts}
    try:
        return {name: whole(text) for name, text in ({MEMORY: wanted.memory or "0"} | written).items()}
    except ValueError as error:
        raise NothingToExplain(f"--memory wants an amount such as 16Gi, --hugepages such as 2Mi=4Gi: {error}") from None


def _pod_in(file: str) -> Any:
    import yaml  # noqa: PLC0415 - few need it

    try:
        return yaml.safe_load(sys.stdin if file == "-" else Path(file).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise NothingToExplain(f"{file}: {error}") from error


def of_gpu(answer: GpuAnswer) -> Page:
    """Lay out what there is to say of a GPU."""
    page = Page()
    facts = [answer.uuid, answer.pci, answer.model, None if answer.numa is None else f"NUMA node {answer.numa}"]
    known = ", ".join(fact for fact in facts if fact)
    state = Cell(
        f"offered, by the {answer.by}" if answer.offered else "not offered", "green" if answer.offered else "red"
    )
    page.line(Cell(f"GPU {answer.index}", "bold"), f" ({known}): ", state)
    for device in answer.devices:
        amount = f"{device.offered} to be had" if device.offered else "none to be had"
        page.line(f"  {device.resource} {device.id}: {amount}{_held(device.held_by, known=answer.holders_known)}")
    _causes(page, "Why not", answer.causes)
    _causes(page, "Warnings", answer.warnings)
    for note in answer.notes:
        page.line(Cell(note, "dim"))
    return page


def _held(holders: Iterable[str], *, known: bool) -> str:
    if not known:
        return "; who holds it is not known, since kubelet's pod-resources socket is not there"
    holders = tuple(holders)
    return f"; held by {', '.join(holders)}" if holders else "; free"


def _causes(page: Page, heading: str, causes: Iterable[Cause]) -> None:
    causes = tuple(causes)
    if causes:
        page.heading(heading)
    for cause in causes:
        page.line(cause.why)
        page.line(Cell(_ARROW, "cyan"), cause.do)


def of_pod(answer: PodAnswer) -> Page:
    """Lay out why a pod has its GPUs, or why it has none."""
    page = Page()
    page.line("Pod ", Cell(answer.pod, "bold"))
    for reason in answer.containers:
        page.heading(f"container {reason.container}: {reason.resource}")
        page.line(f"has GPU {ranges(reason.gpus)}{f', CPUs {reason.cpus} for itself' if reason.cpus else ''}")
        page.line(f"because: {reason.common}")
        when = "" if reason.at is None else f" ({_time(reason.at)})"
        page.line(f"choice{when}: {reason.why}")
        if reason.free_now is not None:
            page.line(f"free now: {f'GPU {ranges(reason.free_now)}' if reason.free_now else 'none'}")
    for claim in answer.claims:
        page.line(f"has {claim}; a claim's devices are chosen by the scheduler")
    if answer.refused is not None:
        _refused(page, answer.refused)
    return page


def _refused(page: Page, refused: Refused) -> None:
    _said(page, refused.said)
    page.line(refused.means)
    if refused.ours:
        page.heading("What we ourselves refused")
    for each in refused.ours:
        page.line(f"{_time(each.at)}, {each.call} of {each.of} (operation {each.operation} in the log): {each.reason}")
    if refused.now is not None:
        page.heading("Such a pod, now")
        _fit(page, refused.now)
    elif refused.why_not_now:
        page.line(f"what would become of it now cannot be told: {refused.why_not_now}")


def _said(page: Page, said: Said) -> None:
    reason = f", {said.reason}" if said.reason else ""
    page.line(Cell(f"{said.phase}{reason}", "bold red"), f": {said.message}" if said.message else "")


def _time(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}Z"


def of_fit(answer: FitAnswer, pod: PodObject | None = None) -> Page:
    """Lay out whether a pod would be admitted. pod: whose file it was, so that its status is told of, too."""
    page = Page()
    if pod is not None and pod.said is not None and was_refused(pod.said):
        page.line("Pod ", Cell(pod.name, "bold"))
        _said(page, pod.said)
        page.heading("Such a pod, now")
    _fit(page, answer)
    return page


def _fit(page: Page, answer: FitAnswer) -> None:
    fit = answer.fit
    wanted = ", ".join(amount(name, count) for name, count in fit.wanted.items()) or "nothing of ours"
    rule = f"topologyManagerPolicy {answer.policy}, scope {answer.scope}"
    if fit.admitted:
        page.line(Cell("admitted now", "bold green"), f": {wanted} ({rule})")
        if fit.places:
            page.line(f"  on NUMA node{'s' * (len(fit.places[0]) > 1)} {' or '.join(map(ranges, fit.places))}")
    else:
        page.line(
            Cell(f"not admitted now: {fit.reason}", "bold red"), f" for container {fit.container}: {wanted} ({rule})"
        )
        if fit.scheduler:
            page.line(f"  {fit.scheduler}")
        if fit.never:
            page.line(f"  never on this node: {fit.never}")
        if fit.in_the_way:
            page.heading("In the way, where least is")
            for lack in fit.in_the_way:
                page.line(str(lack))
        page.heading("What to do")
        for advice in fit.advice:
            page.line(Cell(_ARROW, "cyan"), advice)
    _causes(page, "The scheduler would not send it here", answer.node.causes)
    notes = [*answer.node.notes, *answer.notes]
    if answer.node.why_not:
        notes.append(
            f"the Node object was not looked at (cordoned, taints, what is allocatable): {answer.node.why_not}"
        )
    notes.append(f"from: {', '.join(answer.rests_on)}")
    for note in notes:
        page.line(Cell(note, "dim"))
