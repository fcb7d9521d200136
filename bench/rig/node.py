"""A node to measure on: a simulated machine's files, a stand-in kubelet, and the daemon as a process of its own.

The daemon runs in one of two ways. `SIMULATE` is what a person gets from ``--simulate``: the daemon also writes the
machine's files and carries the Python double of NVML. `LIBRARY` is the daemon as on a real node: it finds a driver root
that was there before, and loads a libnvidia-ml.so.1 from it, which here is the C stand-in. What the simulation itself
costs is in the first only, so budgets are held against the second where there is a compiler.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from gpuplugin.sim.host import STATE_FILE, SimulatedHost
from gpuplugin.sim.kubelet import StandInKubelet
from gpuplugin.sim.machine import load
from gpuplugin.sim.state import State
from rig import ROOT
from tests.nvml.standin.build import CompilerMissingError, build_standin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine
    from typing import Self

GPU = "nvidia.com/gpu"
QUICK = os.environ.get("GPUPLUGIN_TEST_BENCH_QUICK") == "1"
"""Tiny counts: to see that a bench runs, not to measure."""


RECOVER_AT_ONCE = {"health_probe_seconds": "0.1", "health_recovery_probes": "1", "health_quiet_seconds": "0"}
"""Settings with which a GPU is back a tenth of a second after its XID, so that the next one can be measured."""


class Way(Enum):
    """How the daemon gets at NVML."""

    SIMULATE = "--simulate"
    LIBRARY = "C library"


def count(usual: int, quick: int = 3) -> int:
    """How often to do something."""
    return quick if QUICK else usual


def ways() -> list[Way]:
    """Those that work here: the second needs gcc for the C stand-in, and root for device nodes."""
    try:
        build_standin()
        with tempfile.TemporaryDirectory(prefix="gpubench-") as folder:
            os.mknod(Path(folder) / "node", stat.S_IFCHR, os.makedev(195, 0))
    except (CompilerMissingError, PermissionError) as missing:
        print(f"only --simulate is measured: {missing}")
        return [Way.SIMULATE]
    return [Way.LIBRARY] if QUICK else [Way.LIBRARY, Way.SIMULATE]


class Node:
    """Folders and the daemon's command line. Use it as a context: the folders go with it.

    settings: flags of the daemon, without dashes.
    """

    def __init__(self, machine: str = "hgx-h100", way: Way = Way.SIMULATE, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpubench-"))
        self.way, self.host = way, self.folder / "host"
        self.log, self._nodes = self.folder / "daemon.log", self.folder / "nodes"
        self.kubelet = StandInKubelet(self.folder / "kubelet")
        flags = {
            "kubelet-socket": str(self.kubelet.socket),
            "paths-kubelet": str(self.folder),
            "paths-cdi": str(self.folder / "cdi"),
            "log-format": "json",
            **{name.replace("_", "-"): value for name, value in settings.items()},
        }
        ours = ("GPUPLUGIN_", "PYTHONDONTWRITEBYTECODE")  # compiling at every start is not what a node does
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        if way is Way.SIMULATE:
            flags |= {"simulate": machine, "simulate-folder": str(self.host)}
        else:
            self._make_root(machine)
            flags |= {"nvidia-driver-root": str(self.host), "paths-sysfs": str(self.host / "sys")}
            flags |= {"container-driver-root": str(self.host), "paths-proc": str(self.host / "proc")}
            self._environment["GPUPLUGIN_NVML_STATE"] = str(self.host / STATE_FILE)
            self._environment["GPUPLUGIN_NVML_DEV"] = str(self._nodes)
        self.command = [sys.executable, "-m", "gpuplugin", "run", *(f"--{name}={flags[name]}" for name in flags)]
        self._started: list[asyncio.subprocess.Process] = []

    def _make_root(self, machine: str) -> None:
        host = SimulatedHost(load(machine), self.host, device_nodes="mknod")
        shutil.copy(build_standin(), next(host.root.glob("usr/lib/*/libnvidia-ml.so.*.*")))
        self._nodes.mkdir()  # what the stand-in opens, since no driver answers for the nodes of the root
        for name in ["nvidiactl", *(f"nvidia{gpu.minor}" for gpu in host.state.snapshot.gpus)]:
            (self._nodes / name).touch()

    @property
    def state(self) -> State:
        """What breaks this node's NVML; there once the daemon has started."""
        return State.open(self.host / STATE_FILE)

    @property
    def socket(self) -> Path:
        """The plugin's socket; there once it has registered."""
        return next(self.kubelet.folder.glob("gpuplugin-*.sock"))

    @property
    def pid(self) -> int:
        """The running daemon's."""
        return self._started[-1].pid

    async def start(self, *python: str) -> asyncio.subprocess.Process:
        """Start the daemon. python: options of the interpreter."""
        command = [self.command[0], *python, *self.command[1:]]
        with self.log.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, env=self._environment, stdout=log, stderr=log
            )
        self._started.append(process)
        return process

    async def stop(self) -> None:
        """End the daemons that run, with nobody watching: gRPC would tell of each stream that is cut."""
        await self.kubelet.drop_streams()
        for process in self._started:
            if process.returncode is None:
                process.terminate()
            await process.wait()
        self._started.clear()

    async def offered(self, gpus: int, seconds: float = 30.0) -> None:
        """Wait until kubelet has a list with that many healthy GPUs."""
        known = self.kubelet
        offers = known.until(lambda: known.watches(GPU) and known.allocatable(GPU) == gpus, seconds, "GPUs offered")
        await self._meanwhile(offers)

    def logged(self, event: str) -> list[float]:
        """When the daemon's log told of an event, in seconds since the epoch; those of its newest run."""
        lines = (json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines() if line[:1] == "{")
        return [datetime.fromisoformat(line["timestamp"]).timestamp() for line in lines if line["event"] == event]

    async def registered(self, seconds: float = 30.0) -> float:
        """Wait for the next registration; returns the time.monotonic() of it."""
        known = self.kubelet
        before = _registrations(known)
        await self._meanwhile(known.until(lambda: _registrations(known) > before, seconds, "registration"))
        return time.monotonic()

    async def _meanwhile(self, wanted: Coroutine[None, None, None]) -> None:
        """Wait for something that the daemon shall do; raises RuntimeError with its log if it ends or does not."""
        waiting, ended = asyncio.ensure_future(wanted), asyncio.ensure_future(self._started[-1].wait())
        await asyncio.wait({waiting, ended}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not waiting.done() or waiting.exception():
            waiting.cancel()
            raise RuntimeError(f"the daemon did not do it; its log:\n{self.log.read_text(encoding='utf-8')}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        shutil.rmtree(self.folder)


def _registrations(kubelet: StandInKubelet) -> int:
    return sum(call["call"] == "Register" for call in kubelet.trace)


@asynccontextmanager
async def running(
    machine: str = "hgx-h100", gpus: int = 8, way: Way = Way.SIMULATE, **settings: str
) -> AsyncIterator[Node]:
    """Give a node whose daemon has registered with the stand-in kubelet and offers all its GPUs."""
    with Node(machine, way, **settings) as node:
        async with node.kubelet:
            try:
                await node.start()
                await node.offered(gpus)
                yield node
            finally:
                await node.stop()
