"""Random pods as inference nodes see them: some containers, each with GPUs and CPUs, coming and going in any order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from gpuplugin.sim.machine import Machine

MILLI = 1000


@dataclass(frozen=True, slots=True)
class Container:
    gpus: int
    cpu_milli: int

    @property
    def cpus(self) -> int:
        """CPUs of its own: only for a whole number, as the pods are all Guaranteed."""
        whole, rest = divmod(self.cpu_milli, MILLI)
        return 0 if rest else whole


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    containers: tuple[Container, ...]


@dataclass(frozen=True, slots=True)
class Arrives:
    pod: Pod


@dataclass(frozen=True, slots=True)
class Leaves:
    """One of the pods that are there then: the `pick`-th, counted around."""

    pick: int


@dataclass(frozen=True, slots=True)
class Sickens:
    gpu: int


@dataclass(frozen=True, slots=True)
class Recovers:
    """The GPU that sickened first of those that are sick; nothing when none is."""


Event = Arrives | Leaves | Sickens | Recovers

_CONTAINERS = {1: 6, 2: 3, 3: 1}
_GPUS = {0: 2, 1: 6, 2: 5, 3: 2, 4: 4, 5: 1, 6: 1, 8: 2}
_WHOLE_CPUS, _SMALL = 0.85, 0.7
_PODS_A_FAULT = 25


def events(machine: Machine, pods: int, seed: str) -> Iterator[Event]:
    """Until so many pods have arrived. The same for the same arguments."""
    chance = random.Random(f"{machine.name}/{seed}")
    cpus = max(len(node.cpus) for node in machine.numa_nodes)
    arrived = 0
    while arrived < pods:
        if chance.random() < 1 / _PODS_A_FAULT:
            yield Recovers() if chance.random() < 0.6 else Sickens(chance.randrange(len(machine.gpus)))
        if chance.random() < 0.5:
            yield Leaves(chance.randrange(1 << 16))
            continue
        containers = tuple(_container(chance, len(machine.gpus), cpus) for _ in range(_weighted(chance, _CONTAINERS)))
        yield Arrives(Pod(f"pod-{arrived}", containers))
        arrived += 1


def _container(chance: random.Random, gpus: int, cpus_of_a_node: int) -> Container:
    count = min(_weighted(chance, _GPUS), gpus)
    if chance.random() >= _WHOLE_CPUS:
        return Container(count, chance.randrange(1, 16) * MILLI + MILLI // 2)
    most = cpus_of_a_node // 8 if chance.random() < _SMALL else cpus_of_a_node + cpus_of_a_node // 4
    return Container(count, chance.randint(1, most) * MILLI)


def _weighted(chance: random.Random, weights: dict[int, int]) -> int:
    return chance.choices(list(weights), list(weights.values()))[0]
