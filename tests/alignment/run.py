"""One run: pods and faults in a random order against a node, every decision judged."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpuplugin.sim.machine import Machine, load
from gpuplugin.sim.state import State
from tests.alignment import node
from tests.alignment.judge import Judge, Outcome
from tests.alignment.links import Pair, Quality, pair_scores, quality
from tests.alignment.pods import Arrives, Leaves, Recovers, Sickens, events


@dataclass(slots=True)
class Result:
    """tally: pods by verdict · disagreements: what should be otherwise · choices: of GPUs, where there was one."""

    tally: dict[str, int]
    disagreements: list[str]
    faults: int = 0
    seconds: float = 0.0
    choices: list[Quality] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bench:
    """A daemon on a machine; kubelets come and go."""

    machine: Machine
    folder: Path
    state: State
    program: Path

    def log(self) -> list[str]:
        """What the daemon has said."""
        return (self.folder / node.LOG).read_text().splitlines()

    def run(
        self, policy: str, scope: str, pods: int, seed: str = "", options: Mapping[str, str] | None = None
    ) -> Result:
        """Let so many pods arrive at a new kubelet with these settings."""
        began = time.monotonic()
        with self.kubelet(policy, scope, options) as kubelet:
            try:
                result = _follow(self, kubelet, Judge(node.hardware(self.machine), policy, scope), pods, seed)
            except node.KubeletError as error:
                error.add_note("--- daemon\n" + "\n".join(self.log()[-20:]))
                raise
        result.seconds = time.monotonic() - began
        return result

    @contextmanager
    def kubelet(self, policy: str, scope: str, options: Mapping[str, str] | None = None) -> Iterator[node.Kubelet]:
        """Start a kubelet that remembers nothing, and give it once it has all GPUs."""
        node.forget(self.folder)
        with node.kubelet(self.program) as running:
            running.start(self.machine, self.folder, node.settings(self.machine, policy, scope, options))
            running.wait(len(self.machine.gpus))
            yield running


@contextmanager
def bench(machine: str, program: Path) -> Iterator[Bench]:
    """The folder's name is short, since a socket's path is."""
    folder = Path(tempfile.mkdtemp(prefix="gpu"))
    try:
        loaded = load(machine)
        (folder / "device-plugins").mkdir()
        with node.daemon(loaded, folder) as state:
            yield Bench(loaded, folder, state, program)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _follow(bench: Bench, kubelet: node.Kubelet, judge: Judge, pods: int, seed: str) -> Result:
    gpus = [gpu.record.uuid for gpu in bench.machine.gpus]
    result = Result(judge.tally, judge.disagreements)
    told = kubelet.wait(len(gpus))
    if told != {uuid: [] if numa is None else [numa] for uuid, numa in judge.hardware.gpus.items()}:
        judge.disagreements.append(f"kubelet was told of NUMA nodes {told}")
    scores = pair_scores(bench.machine)
    there: list[str] = []
    sick: list[int] = []
    try:
        for event in events(bench.machine, pods, seed):
            match event:
                case Arrives(pod):
                    free = judge.free().gpus
                    outcome, kept = kubelet.admit(pod)
                    judge.decided(pod, outcome)
                    if outcome.admitted:
                        there.append(pod.name)
                        result.choices += _choices(judge, scores, free, outcome, kept)
                    continue
                case Leaves(pick) if there:
                    name = there.pop(pick % len(there))
                    kubelet.remove(name)
                    judge.left(name)
                    continue
                case Sickens(gpu) if gpu not in sick:
                    sick.append(gpu)
                    bench.state.lose(gpu)
                case Recovers() if sick:
                    bench.state.restore(sick.pop(0))
                case _:
                    continue
            kubelet.wait(len(gpus) - len(sick))
            judge.sick = {gpus[gpu] for gpu in sick}
            result.faults += 1
    finally:
        for gpu in sick:
            bench.state.restore(gpu)
    return result


def _choices(
    judge: Judge,
    scores: Mapping[Pair, int],
    free: Sequence[str],
    outcome: Outcome,
    kept: Sequence[Sequence[int] | None],
) -> Iterator[Quality]:
    left = set(free)
    for given, nodes in zip(outcome.given, kept, strict=True):
        near = [gpu for gpu in left if nodes is not None and judge.hardware.gpus[gpu] in nodes]
        if given.gpus and (found := quality(scores, given.gpus, near, left)):
            yield found
        left -= set(given.gpus)
