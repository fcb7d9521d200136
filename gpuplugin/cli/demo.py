"""``gpuplugin demo``: the real daemon at work in some seconds, with a simulated machine and a stand-in for kubelet.

Everything is in one temporary folder and ends with the demo, also on Ctrl-C.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpuplugin.cli.demo_daemon import DemoDaemon
from gpuplugin.cli.demo_story import Teller
from gpuplugin.cli.look import look
from gpuplugin.cli.output import Cell, Page
from gpuplugin.errors import DemoFailed
from gpuplugin.model.xid import describe
from gpuplugin.sim.kubelet import StandInKubelet
from gpuplugin.sim.state import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuplugin.model.inventory import Inventory
    from gpuplugin.sim.kubelet import Admission

GPU = "nvidia.com/gpu"
FELL_OFF_THE_BUS = 79
PROBE_SECONDS, PROBES, QUIET_SECONDS = 0.2, 3, 0.5
PATIENCE_SECONDS = 15.0
LONGEST_TEMPORARY_FOLDER = 24  # bytes
TERMINATED = 128 + signal.SIGTERM


def show(machine: str) -> None:
    """Run the demo on a simulated machine. Raises MachineFileError, or DemoFailed after printing the daemon's log."""
    inventory = look(machine)
    with tempfile.TemporaryDirectory(prefix="gpuplugin-demo-", dir=_short_folder()) as folder:
        try:
            asyncio.run(_Demo(machine, inventory, Path(folder)).run())
        except DemoFailed as error:
            print(error.tail, file=sys.stderr)
            raise
        except asyncio.CancelledError:
            sys.exit(TERMINATED)


def _short_folder() -> str | None:
    """Where the demo's folder goes, since a socket's path has 107 bytes: None for the usual place."""
    return None if len(os.fsencode(tempfile.gettempdir())) <= LONGEST_TEMPORARY_FOLDER else "/tmp"  # noqa: S108


class _Demo:
    def __init__(self, machine: str, inventory: Inventory, folder: Path) -> None:
        self._machine, self._inventory = machine, inventory
        self._teller = Teller(inventory, folder / "cdi")
        numa_nodes = [node.id for node in inventory.numa_nodes] or None
        self._kubelet = StandInKubelet(folder / "kubelet", numa_nodes=numa_nodes)
        settings = {
            "paths-kubelet": str(folder),
            "kubelet-socket": str(self._kubelet.socket),
            "paths-cdi": str(folder / "cdi"),
            "paths-state": str(folder / "state"),
            "health-probe-seconds": str(PROBE_SECONDS),
            "health-recovery-probes": str(PROBES),
            "health-quiet-seconds": str(QUIET_SECONDS),
        }
        self._daemon = DemoDaemon(machine, folder, settings)

    async def run(self) -> None:
        """The whole story, in order."""
        if this := asyncio.current_task():
            for number in (signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, this.cancel)
        self._heading(f"A simulated {self._machine}, the real daemon, and a stand-in for kubelet")
        self._teller.machine().show()
        async with self._kubelet, self._daemon:
            await self._registers()
            await self._gives()
            await self._refuses()
            await self._loses_a_gpu()
            await self._kubelet_restarts()
            await self._stops()

    async def _registers(self) -> None:
        total = len(self._inventory.gpus)
        self._heading("The daemon starts")
        await self._until("registration with kubelet", lambda: self._kubelet.watches(GPU))
        now, milliseconds = time.time(), (time.monotonic() - self._daemon.started) * 1000
        machine_there = self._daemon.when("simulating") or now
        await self._until(f"{total} healthy GPUs", lambda: self._kubelet.allocatable(GPU) == total)
        self._line(
            f"{GPU} registered {milliseconds:.0f} ms after its start, {(now - machine_there) * 1000:.0f} ms after "
            f"the simulated machine was there; {self._count()}"
        )

    async def _gives(self) -> None:
        single = ", and kubelet's Topology Manager wants each on a single NUMA node" if self._nodes() else ""
        self._heading(f"Pods come{single}")
        for count in (1, 2, 4):
            if count <= len(self._kubelet.free(GPU)):
                await self._pod(f"pod-{count}", count)

    async def _refuses(self) -> None:
        for count in (1, 2, 4):
            self._kubelet.release(f"pod-{count}")
        by_node = [sum(gpu.numa == node for gpu in self._inventory.gpus) for node in self._nodes()]
        if len(by_node) > 1:
            self._heading("They end. Then one asks for more than a NUMA node has")
            await self._pod("pod-too-big", max(by_node) + 1)

    async def _loses_a_gpu(self) -> None:
        total = len(self._inventory.gpus)
        broken = self._inventory.gpus[min(2, total - 1)]
        state = State.open(self._daemon.host / "nvml.state")
        self._heading(f"GPU {broken.index} breaks")
        state.lose(broken.index)
        state.xid(broken.index, FELL_OFF_THE_BUS)
        gone = await self._until("the lost GPU to be withdrawn", lambda: self._kubelet.allocatable(GPU) == total - 1)
        self._line(Cell(describe(FELL_OFF_THE_BUS), "red"))
        self._line(f"{gone:.0f} ms later {self._count()}")
        on_its_node = sum(gpu.numa == broken.numa for gpu in self._inventory.gpus)
        await self._pod("pod-meanwhile", min(on_its_node, total - 1))
        state.restore(broken.index)
        back = await self._until("the GPU to come back", lambda: self._kubelet.allocatable(GPU) == total)
        self._line(f"It answers again. After {PROBES} good probes, {back:.0f} ms later, {self._count()}")
        self._kubelet.release("pod-meanwhile")

    async def _kubelet_restarts(self) -> None:
        self._heading("Kubelet restarts, and forgets every plugin")
        await self._kubelet.restart()
        total = len(self._inventory.gpus)
        milliseconds = await self._until(
            "registration after kubelet's restart", lambda: self._kubelet.allocatable(GPU) == total
        )
        self._line(f"registered again {milliseconds:.0f} ms later; {self._count()}")

    async def _stops(self) -> None:
        self._heading("The daemon is told to stop")
        began = time.monotonic()
        try:
            status = await self._daemon.stop()
        except TimeoutError:
            raise DemoFailed("the daemon's end", "it did not end when told to", self._daemon.tail()) from None
        milliseconds = (time.monotonic() - began) * 1000
        if status != 0:
            raise DemoFailed("the daemon's end", f"it ended with status {status}", self._daemon.tail())
        left = [path.name for path in self._kubelet.folder.iterdir() if path != self._kubelet.socket]
        self._line(f"ended {milliseconds:.0f} ms later; ", f"left behind: {left}" if left else "its socket is gone")

    async def _pod(self, name: str, count: int) -> Admission:
        """Let a pod ask, and tell what became of it."""
        free, calls = self._kubelet.free(GPU), len(self._kubelet.trace)
        admission: Admission | None = None

        async def ask() -> None:
            nonlocal admission
            async with asyncio.timeout(PATIENCE_SECONDS):
                admission = await self._kubelet.admit(name, GPU, count)

        await self._daemon.during(f"a pod of {count}", ask())
        assert admission is not None  # noqa: S101 -- or `during` has raised
        self._line(Cell(f"A pod asks for {count} GPU{'s' if count > 1 else ''}", "bold"))
        asked = [call for call in self._kubelet.trace[calls:] if call["call"] == "GetPreferredAllocation"]
        if admission.admitted:
            self._teller.given(admission, free, asked[0] if asked else None).show()
        else:
            self._teller.refused(admission, free).show()
        return admission

    async def _until(self, step: str, condition: Callable[[], bool]) -> float:
        return await self._daemon.during(step, self._kubelet.until(condition, PATIENCE_SECONDS, step))

    def _nodes(self) -> list[int]:
        return sorted({gpu.numa for gpu in self._inventory.gpus if gpu.numa is not None})

    def _count(self) -> str:
        return f"kubelet counts {self._kubelet.allocatable(GPU)} of {self._kubelet.capacity(GPU)} allocatable"

    @staticmethod
    def _heading(text: str) -> None:
        page = Page()
        page.line()
        page.line(Cell(text, "bold"))
        page.show()

    @staticmethod
    def _line(*pieces: str | Cell) -> None:
        page = Page()
        page.line("  ", *pieces)
        page.show()
