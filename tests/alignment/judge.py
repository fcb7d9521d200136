"""Says whether kubelet's managers and our plugin did right by a pod, by counting and trying, with none of their code.

What a policy promises is taken from Kubernetes' documentation: a container (or a pod, by scope) that wants GPUs and
CPUs of its own is kept on a set of NUMA nodes that is as small as the empty machine allows for each of the two alone.
Under single-numa-node that set has to be one node. There is such a set or there is not: a refusal was needed when every
set of nodes has been tried and none has room, and a pod is aligned when all it got lies in one that had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from tests.alignment.pods import Container, Pod

Nodes = frozenset[int]

SINGLE, RESTRICTED, BEST_EFFORT = "single-numa-node", "restricted", "best-effort"
POLICIES = (SINGLE, RESTRICTED, BEST_EFFORT)
SCOPES = ("container", "pod")
NOT_ALIGNED = "TopologyAffinityError"
NOT_THERE = "UnexpectedAdmissionError"


@dataclass(frozen=True, slots=True)
class Hardware:
    """gpus: by UUID, the NUMA node or None · cpus: the NUMA node of each · reserved: CPUs that no pod may have."""

    gpus: Mapping[str, int | None]
    cpus: Mapping[int, int]
    reserved: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Given:
    gpus: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """given: of each container; what a refused pod's first ones had got is given back at once."""

    admitted: bool
    reason: str = ""
    given: tuple[Given, ...] = ()
    message: str = ""


@dataclass(frozen=True, slots=True)
class Need:
    gpus: int
    cpus: int


@dataclass(slots=True)
class Judge:
    """Follows one run, event by event, with books of its own.

    disagreements: each a sentence; there should be none. tally: pods by verdict, see `_count`.
    """

    hardware: Hardware
    policy: str
    scope: str
    sick: set[str] = field(default_factory=set)
    disagreements: list[str] = field(default_factory=list)
    tally: dict[str, int] = field(default_factory=dict)
    _held: dict[str, tuple[Given, ...]] = field(default_factory=dict)

    def free(self) -> Given:
        """What no pod has and a new one could be given."""
        given = [each for pod in self._held.values() for each in pod]
        gpus = {gpu for each in given for gpu in each.gpus}
        cpus = {cpu for each in given for cpu in each.cpus}
        return Given(
            tuple(gpu for gpu in self.hardware.gpus if gpu not in gpus and gpu not in self.sick),
            tuple(cpu for cpu in self.hardware.cpus if cpu not in cpus and cpu not in self.hardware.reserved),
        )

    def left(self, pod: str) -> None:
        self._held.pop(pod, None)

    def decided(self, pod: Pod, outcome: Outcome) -> None:
        """Judge one pod's admission or refusal; what an admitted one got is held until it has `left`."""
        units = _units(self.scope, pod, outcome.given)
        free, verdict = self.free(), "admitted"
        for containers, given in units:
            verdict = self._unit(pod, containers, given, free, outcome)
            if verdict not in {"admitted", "admitted unaligned"}:
                break
            free = _without(free, given)
        refused = verdict not in {"admitted", "admitted unaligned"}
        if outcome.admitted and refused:
            self._disagree(pod, outcome, f"admitted, and not {verdict}")
        elif not outcome.admitted and not refused:
            self._disagree(pod, outcome, "refused, though every container had room")
        elif not outcome.admitted and self._another_way(pod):
            verdict = "refused: earlier containers had the room"
        self._count(verdict)
        if outcome.admitted:
            self._held[pod.name] = outcome.given

    def _unit(
        self, pod: Pod, containers: Sequence[Container], given: Sequence[Given], free: Given, outcome: Outcome
    ) -> str:
        """Judge what has to be aligned together: a container, or all of a pod's. Returns what should become of it."""
        need = Need(sum(each.gpus for each in containers), sum(each.cpus for each in containers))
        possible = list(self.places(need, free))
        short = need.gpus > len(free.gpus) or need.cpus > len(free.cpus)
        strict = self.policy != BEST_EFFORT
        if strict and not possible:
            return self._expect(
                pod, outcome, NOT_ALIGNED, "refused: no aligned place" if not short else "refused: short"
            )
        if short:
            return self._expect(pod, outcome, NOT_THERE, "refused: short")
        self._exactly(pod, containers, given, free, outcome)
        touched = self._touched(given)
        if possible:
            if not any(touched <= place for place in possible):
                self._disagree(pod, outcome, f"lies on NUMA nodes {sorted(touched)}, and not in any of {possible}")
            return "admitted"
        fewest = self._fewest_now(need, free)
        if fewest is not None and len(touched) > fewest:
            self._disagree(pod, outcome, f"lies on {len(touched)} NUMA nodes, and {fewest} had room")
        return "admitted unaligned"

    def places(self, need: Need, free: Given) -> Iterator[Nodes]:
        """Every set of NUMA nodes on which the policy would have it, and that has room now."""
        everywhere = frozenset(self.hardware.cpus.values())
        gpu_nodes = [node for node in self.hardware.gpus.values() if node is not None]
        sizes = set()
        if need.gpus and gpu_nodes:
            sizes.add(_fewest(need.gpus, gpu_nodes))
        if need.cpus:
            sizes.add(_fewest(need.cpus, self.hardware.cpus.values()))
        if not sizes:
            yield everywhere
        if len(sizes) != 1 or None in sizes or (self.policy == SINGLE and sizes != {1}):
            return
        (size,) = sizes
        gpus = Counter(self.hardware.gpus[gpu] for gpu in free.gpus)
        cpus = Counter(self.hardware.cpus[cpu] for cpu in free.cpus)
        for nodes in map(frozenset, combinations(sorted(everywhere), size or 0)):
            has_gpus = not gpu_nodes or sum(gpus[node] for node in nodes) >= need.gpus
            if has_gpus and sum(cpus[node] for node in nodes) >= need.cpus:
                yield nodes

    def _fewest_now(self, need: Need, free: Given) -> int | None:
        """Of an unaligned unit that wants only one kind of thing: how few nodes could have given it."""
        if need.gpus and need.cpus:
            return None
        gpu_nodes = [node for gpu in free.gpus if (node := self.hardware.gpus[gpu]) is not None]
        return (
            _fewest(need.gpus, gpu_nodes)
            if need.gpus
            else _fewest(need.cpus, [self.hardware.cpus[cpu] for cpu in free.cpus])
        )

    def _exactly(
        self, pod: Pod, containers: Sequence[Container], given: Sequence[Given], free: Given, outcome: Outcome
    ) -> None:
        """Each container has the asked count, of things that were free, and no two the same."""
        gpus_left, cpus_left = set(free.gpus), set(free.cpus)
        for container, got in zip(containers, given, strict=True):
            if len({*got.gpus}) != container.gpus or len({*got.cpus}) != container.cpus:
                self._disagree(pod, outcome, f"{container} did not get its count: {got}")
            if bad := [*(set(got.gpus) - gpus_left), *(set(got.cpus) - cpus_left)]:
                self._disagree(pod, outcome, f"{container} got what is held, sick, reserved or unknown: {bad}")
            gpus_left -= set(got.gpus)
            cpus_left -= set(got.cpus)

    def _touched(self, given: Sequence[Given]) -> Nodes:
        gpus = {self.hardware.gpus.get(gpu) for each in given for gpu in each.gpus}
        cpus = {self.hardware.cpus.get(cpu) for each in given for cpu in each.cpus}
        return frozenset(node for node in gpus | cpus if node is not None)

    def _expect(self, pod: Pod, outcome: Outcome, reason: str, verdict: str) -> str:
        if not outcome.admitted and outcome.reason != reason:
            self._disagree(pod, outcome, f"refused with {outcome.reason}, and not {reason}")
        return verdict

    def _another_way(self, pod: Pod) -> bool:
        """Whether a refused pod would have fitted had its earlier containers been put on other nodes.

        Kubelet places one container after the other and never goes back. Told for single-numa-node only.
        """
        if self.policy != SINGLE or self.scope != "container":
            return False
        return self._fits(pod.containers, self.free())

    def _fits(self, containers: Sequence[Container], free: Given) -> bool:
        if not containers:
            return True
        first, rest = containers[0], containers[1:]
        need = Need(first.gpus, first.cpus)
        for place in self.places(need, free):
            gpus = [gpu for gpu in free.gpus if self.hardware.gpus[gpu] in {*place, None}][: need.gpus]
            cpus = [cpu for cpu in free.cpus if self.hardware.cpus[cpu] in place][: need.cpus]
            taken = Given(tuple(gpus), tuple(cpus))
            if len(gpus) == need.gpus and self._fits(rest, _without(free, [taken])):
                return True
        return False

    def _count(self, verdict: str) -> None:
        self.tally[verdict] = self.tally.get(verdict, 0) + 1

    def _disagree(self, pod: Pod, outcome: Outcome, what: str) -> None:
        self.disagreements.append(f"{pod}: {what}; kubelet: {outcome}")


def _units(scope: str, pod: Pod, given: Sequence[Given]) -> list[tuple[Sequence[Container], Sequence[Given]]]:
    if scope == "pod":
        return [(pod.containers, given)]
    return [([container], [got]) for container, got in zip(pod.containers, given, strict=True)]


def _without(free: Given, given: Sequence[Given]) -> Given:
    gpus = {gpu for each in given for gpu in each.gpus}
    cpus = {cpu for each in given for cpu in each.cpus}
    return Given(tuple(gpu for gpu in free.gpus if gpu not in gpus), tuple(cpu for cpu in free.cpus if cpu not in cpus))


def _fewest(count: int, nodes: Iterable[int]) -> int | None:
    """How few nodes have so many of the things that lie on `nodes`; None when all have not."""
    left = count
    for number, size in enumerate(sorted(Counter(nodes).values(), reverse=True), start=1):
        left -= size
        if left <= 0:
            return number
    return None
