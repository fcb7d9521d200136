"""A machine's files in a folder, and the machine's life: what a person or a driver could do to it.

Everything that discovery looks at is below one root in the kernel's and the driver's shape, so that code under test
gets another root and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from gpuplugin.errors import MachineFileError
from gpuplugin.sim import driver_files, hotplug, mig, sysfs_files
from gpuplugin.sim.nvml_double import NvmlDouble
from gpuplugin.sim.state import State
from gpuplugin.sim.tree import HostTree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuplugin.sim.machine import Machine, SimGpu
    from gpuplugin.sim.snapshot import MigRecord, Snapshot

_OURS = ("sys", "proc", "dev", "usr")
STATE_FILE = "nvml.state"


class SimulatedHost:
    """The machine, started: its host root is written into `folder`, over that of one that was there before.

    root: the folder · state: what happens to NVML; another process takes it with ``State.open(root / STATE_FILE)``.
    device_nodes: ``mknod`` makes real ones and needs root, ``files`` lets empty files stand for them. A folder with
    other things where the host root would be is refused with MachineFileError.
    """

    def __init__(self, machine: Machine, folder: Path, *, device_nodes: Literal["files", "mknod"] = "files") -> None:
        self.machine = machine
        self.root = folder
        self._tree = HostTree(folder, real_nodes=device_nodes == "mknod")
        self._clear()
        sysfs_files.write(self._tree, machine)
        driver_files.write(self._tree, machine)
        for gpu in machine.gpus:
            self._write_gpu(gpu)
        self.state = State.create(folder / STATE_FILE, machine.snapshot)
        driver_files.write_caps(self._tree, machine.snapshot, machine.snapshot)

    def library(self) -> NvmlDouble:
        """Give a new NVML library for this machine, for ``pynvml.nvmlLib``."""
        return NvmlDouble(self.state.path, self.machine)

    def unplug(self, gpu: int) -> SimGpu:
        """Take the GPU with that NVML index out; the others are numbered anew. Returns it, for `plug`."""
        uuid = self.state.snapshot.gpu(gpu).uuid
        gone = next(each for each in self.machine.gpus if each.record.uuid == uuid)
        self._change(lambda now: hotplug.without(now, gpu))
        driver_files.remove_gpu(self._tree, self.machine, gone)
        sysfs_files.remove_gpu(self._tree, self.machine, gone)
        return gone

    def plug(self, gpu: SimGpu) -> None:
        """Put a GPU back that was unplugged, as it was when the machine started, without MIG devices."""
        links = [link for link in self.machine.snapshot.links if link.gpu == gpu.record.index]
        self._write_gpu(gpu)
        self._change(lambda now: hotplug.with_gpu(now, gpu.record, links))

    def mig_mode(self, gpu: int, *, enabled: bool, needs_reset: bool = False) -> None:
        """Turn MIG on or off; with `needs_reset` it stays pending until `reset`. MigRefused says why not."""
        self._change(lambda now: mig.set_mode(now, gpu, enabled=enabled, needs_reset=needs_reset))

    def mig_create(self, gpu: int, profile: str, start: int | None = None) -> MigRecord:
        """Create a MIG device, with its capability nodes. MigRefused says why not."""
        made: list[MigRecord] = []

        def edit(now: Snapshot) -> Snapshot:
            after, record = mig.create(now, gpu, profile, start)
            made.append(record)
            return after

        self._change(edit)
        return made[0]

    def mig_destroy(self, gpu: int, slot: int) -> None:
        """Destroy a MIG device, and its capability nodes. MigRefused when there is none."""
        self._change(lambda now: mig.destroy(now, gpu, slot))

    def reset(self, gpu: int) -> None:
        """Reset a GPU: back on the bus, nothing to recover from, a pending MIG mode becomes current."""
        self._change(lambda now: mig.reset(now, gpu))

    def _change(self, edit: Callable[[Snapshot], Snapshot]) -> None:
        before: list[Snapshot] = []

        def remember(now: Snapshot) -> Snapshot:
            before.append(now)
            return edit(now)

        after = self.state.change(remember)
        driver_files.write_caps(self._tree, before[0], after)

    def _write_gpu(self, gpu: SimGpu) -> None:
        sysfs_files.write_gpu(self._tree, self.machine, gpu)
        driver_files.write_gpu(self._tree, self.machine, gpu)

    def _clear(self) -> None:
        there = [name for name in _OURS if (self.root / name).exists()]
        if there and not (self.root / STATE_FILE).is_file():
            raise MachineFileError(
                f"{self.root}: has {', '.join(there)}, and no {STATE_FILE}, so it is no simulated machine's root; "
                "give an empty folder"
            )
        self.root.mkdir(parents=True, exist_ok=True)
        self._tree.remove(*there)
