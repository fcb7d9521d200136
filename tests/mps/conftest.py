"""A supervisor of MPS on a simulated machine, with the stand-in for nvidia-cuda-mps-control as real processes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpuplugin.discovery.nvml_real import RealNvml
from gpuplugin.discovery.nvml_thread import NvmlThread
from gpuplugin.mps import report
from gpuplugin.mps.modes import ComputeModes
from gpuplugin.mps.processes import running
from gpuplugin.mps.program import ControlProgram
from gpuplugin.mps.supervisor import SETTLE_SECONDS, Supervisor, Where
from gpuplugin.plan.mps import MpsGroup
from gpuplugin.sim import machine
from gpuplugin.sim.host import SimulatedHost
from tests.mps.standin.build import CompilerMissingError, build_control

PROC = Path("/proc")
SOON = 20.0
GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"


@pytest.fixture(scope="session")
def control() -> Path:
    """The stand-in's path."""
    try:
        return build_control()
    except CompilerMissingError as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(missing))


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, since a socket's path is."""
    made = Path(tempfile.mkdtemp(prefix="mps"))
    yield made
    end_all(str(made / "mps"))
    shutil.rmtree(made)


class Client:
    """An MPS client: a connection to a control daemon that is held, and used to see whether it lives."""

    def __init__(self, pipe: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(SOON)
        self._socket.connect(str(pipe / "control"))
        assert self._ask("CLIENT\n") == "connected\n"

    def _ask(self, text: str) -> str:
        self._socket.sendall(text.encode())
        return self._socket.recv(4096).decode()

    @property
    def lives(self) -> bool:
        try:
            return self._ask("still there?\n") == "still there?\n"
        except OSError:
            return False

    def close(self) -> None:
        self._socket.close()


class Node:
    """A node: what runs on it stays when its supervisor is killed."""

    def __init__(self, folder: Path, program: Path, what: str = "hgx-h100") -> None:
        self.root = folder / "mps"
        self.root.mkdir()
        self.guard = folder / "gpus"
        self.guard.mkdir()
        self.host = SimulatedHost(machine.load(what), folder / "host")
        self.uuids = tuple(gpu.uuid for gpu in self.host.state.snapshot.gpus)
        self.environment = {"MPS_STANDIN_GPUS": str(self.guard)}
        self.program = program
        self.now = 1000.0
        self.woken: list[str] = []
        self.thread = NvmlThread(RealNvml(self.host.library()))
        self.thread.nvml.open()
        self.supervisor = self.make()

    def make(self) -> Supervisor:
        """A supervisor, as a new process would have it."""
        return Supervisor(
            Where(str(self.root)),
            lambda: ControlProgram((str(self.program),), self.environment),
            ComputeModes(self.thread, self.root / "compute-modes.json", PROC),
            self.woken.append,
            lambda: self.now,
        )

    def killed(self) -> None:
        """What is left when the supervisor dies by kill -9, and the next one starts."""
        self.supervisor.leave()
        self.supervisor = self.make()

    def group(self, resource: str = GPU, gpus: tuple[int, ...] = (0,), clients: int = 4) -> MpsGroup:
        uuids = tuple(self.uuids[index] for index in gpus)
        memory = dict.fromkeys(uuids, (80 << 30) // clients)
        return MpsGroup(str(self.root), resource, uuids, clients, 100 // clients, memory)

    async def look(self, *wanted: MpsGroup) -> bool:
        return await self.supervisor.look(wanted, frozenset(self.uuids))

    async def settle(self, *wanted: MpsGroup) -> None:
        """Look until all is as wanted."""
        for _ in range(20):
            if await self.look(*wanted):
                return
            self.now += SETTLE_SECONDS + 60
        pytest.fail(f"not settled: {self.reports()}")

    def reports(self) -> dict[str, report.Report | None]:
        return {name: report.read(self.root / name) for name in report.resources(self.root)}

    def report(self, resource: str = GPU) -> report.Report | None:
        return report.read(self.root / resource)

    def pid(self, resource: str = GPU) -> int:
        return running(PROC, str(self.root))[resource].pid

    def pids(self) -> dict[str, int]:
        return {resource: one.pid for resource, one in running(PROC, str(self.root)).items()}

    def client(self, resource: str = GPU) -> Client:
        return Client(self.root / resource / "pipe")

    def commands(self, resource: str = GPU) -> list[str]:
        """What the control daemons of a resource have been told."""
        log = self.root / resource / "log/control.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line.partition("Cmd:")[2] for line in lines if "Cmd:" in line]

    def modes(self) -> list[int]:
        return [self.host.state.compute_mode(index) for index in range(len(self.uuids))]

    @property
    def violations(self) -> str:
        """GPUs that a second control daemon has tried to serve."""
        path = self.guard / "violations"
        return path.read_text() if path.exists() else ""


@pytest.fixture
async def node(folder: Path, control: Path) -> AsyncIterator[Node]:
    made = Node(folder, control)
    yield made
    made.supervisor.leave()
    made.thread.close()


def end_all(root: str) -> None:
    """End the control daemons of a test."""
    for one in running(PROC, root).values():
        with suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)
    until(lambda: not running(PROC, root), "control daemons gone")


def until(holds, what: str) -> None:
    deadline = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@contextmanager
def connected(node: Node, resource: str = GPU) -> Iterator[Client]:
    client = node.client(resource)
    try:
        yield client
    finally:
        client.close()
