"""One node: our daemon as a process on a simulated machine, and the deciding part of a real kubelet beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from gpuplugin.model.inventory import NumaNode
from gpuplugin.model.kubelet import KubeletSettings
from gpuplugin.sim.host import STATE_FILE
from gpuplugin.sim.machine import Machine
from gpuplugin.sim.state import State
from tests.alignment.judge import Given, Hardware, Outcome
from tests.alignment.pods import Pod

GPU: Final = "nvidia.com/gpu"
LOG: Final = "daemon.log"
READY_SECONDS: Final = 60.0
_OTHER_SOCKET = 20  # the least ACPI distance between nodes of two sockets, on the machines here
_CHECKPOINTS = ("cpu_manager_state", "memory_manager_state", "device-plugins/kubelet_internal_checkpoint")


class KubeletError(Exception):
    """A command failed; the text is what kubelet would have ended with, or what was waited for in vain."""


class Kubelet:
    """The program of tests/gocheck/alignment, as a process. Every call waits for its answer."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(READY_SECONDS)
        self._process.stdout.close()

    def ask(self, **command: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise KubeletError(answer["error"])
        return dict(answer)

    def start(self, machine: Machine, folder: Path, settings: KubeletSettings) -> None:
        """Start on what is in the folder. Raises KubeletError with what kubelet would end with."""
        self.ask(
            start={
                "folder": str(folder),
                "policy": settings.topology_policy,
                "scope": settings.topology_scope,
                "options": dict(settings.topology_options),
                "cpu_policy": settings.cpu_policy,
                "memory_policy": settings.memory_policy,
                "reserved": ",".join(map(str, settings.reserved_cpus or ())),
                "nodes": [
                    {
                        "socket": _socket(machine, node),
                        "cores": cores(node.cpus),
                        "memory": machine.memory_gib[node.id] << 30,
                        "distances": list(node.distances),
                    }
                    for node in machine.numa_nodes
                ],
            }
        )

    def wait(self, healthy: int) -> dict[str, list[int]]:
        """Wait until so many GPUs are healthy; returns their NUMA nodes as kubelet was told."""
        return dict(self.ask(wait={"resource": GPU, "healthy": healthy})["devices"])

    def admit(self, pod: Pod) -> tuple[Outcome, list[Sequence[int] | None]]:
        """Let the pod in or not; also returns the NUMA nodes that each container was kept to, None: any."""
        containers = [
            {
                "name": f"c{number}",
                "cpu_milli": each.cpu_milli,
                "memory": 1 << 26,
                "devices": {GPU: each.gpus} if each.gpus else {},
            }
            for number, each in enumerate(pod.containers)
        ]
        answer = self.ask(admit={"uid": pod.name, "containers": containers})
        given = tuple(Given(tuple(each["devices"]), tuple(each["cpus"])) for each in answer["containers"])
        outcome = Outcome(answer["admitted"], answer["reason"], given, answer["message"])
        return outcome, [each["affinity"] for each in answer["containers"]]

    def remove(self, pod: str) -> None:
        self.ask(remove=pod)


def settings(
    machine: Machine, policy: str, scope: str = "container", options: Mapping[str, str] | None = None
) -> KubeletSettings:
    """Settings of a kubelet that pins CPUs and does not hold memory."""
    reserved = tuple(sorted(hardware(machine).reserved))
    return KubeletSettings(
        policy,
        scope,
        options or {},
        cpu_policy="static",
        memory_policy="None",
        reserved_cpus=reserved,
        reserves_cpu=True,
    )


def forget(folder: Path) -> None:
    """Take away what kubelet remembers: a node that was drained."""
    for name in _CHECKPOINTS:
        (folder / name).unlink(missing_ok=True)


@contextmanager
def kubelet(program: Path) -> Iterator[Kubelet]:
    running = Kubelet(program)
    try:
        yield running
    finally:
        running.close()


@contextmanager
def daemon(machine: Machine, folder: Path) -> Iterator[State]:
    """Run the daemon with everything it touches below `folder`; gives what can happen to its GPUs."""
    host = folder / "host"
    flags = {
        "simulate": machine.name,
        "simulate-folder": str(host),
        "paths-kubelet": str(folder),
        "paths-cdi": str(folder / "cdi"),
        "health-probe-seconds": "0.1",
        "health-recovery-probes": "1",
        "health-quiet-seconds": "0",
        "log-format": "json",
    }
    own = {name: value for name, value in os.environ.items() if not name.startswith(("GPUPLUGIN_", "NVIDIA_"))}
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpuplugin", "run", *(f"--{name}={value}" for name, value in flags.items())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=own,
        )
    try:
        yield _state(process, host / STATE_FILE, folder / LOG)
    finally:
        process.terminate()
        process.wait(READY_SECONDS)


def _state(process: subprocess.Popen[bytes], file: Path, log: Path) -> State:
    deadline = time.monotonic() + READY_SECONDS
    while not file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise KubeletError(f"the daemon has no machine: {log.read_text()}")
        time.sleep(0.01)
    return State.open(file)


def hardware(machine: Machine) -> Hardware:
    """What the judge knows of the machine, from its description. Reserved is the first core of node 0."""
    return Hardware(
        gpus={gpu.record.uuid: gpu.numa for gpu in machine.gpus},
        cpus={cpu: node.id for node in machine.numa_nodes for cpu in node.cpus},
        reserved=frozenset(cores(machine.numa_nodes[0].cpus)[0]),
    )


def cores(cpus: Sequence[int]) -> list[list[int]]:
    """Pair up hyperthreads: on machines that have them, a node's CPUs are two ranges, one thread a core in each."""
    ordered = sorted(cpus)
    half = len(ordered) // 2
    if half and ordered[half] != ordered[half - 1] + 1:
        return [[one, other] for one, other in zip(ordered[:half], ordered[half:], strict=True)]
    return [[cpu] for cpu in ordered]


def _socket(machine: Machine, node: NumaNode) -> int:
    return min(other.id for other in machine.numa_nodes if node.distances[other.id] < _OTHER_SOCKET)
