"""``gpuplugin mps-control``: the program that runs MPS control daemons, in a pod of its own.

It takes the same configuration as the daemon, from the same file, so that both mean the same GPUs. It speaks neither
with kubelet nor with the daemon: what there is to say is in the folder for MPS.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import signal
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from gpuplugin.daemon import host as hosts
from gpuplugin.daemon.beginning import FAILURE, begin
from gpuplugin.daemon.profiles import ProfileChoice, node_labels
from gpuplugin.daemon.reload import ConfigSource, Reload
from gpuplugin.daemon.wakeup import Wakeup
from gpuplugin.discovery.nvml_thread import NvmlThread
from gpuplugin.discovery.observe import observe
from gpuplugin.discovery.sysfs import Sysfs
from gpuplugin.errors import NvmlError, ObserveError
from gpuplugin.mps.folders import barred, mount_shared_memory
from gpuplugin.mps.modes import ComputeModes
from gpuplugin.mps.program import ControlProgram
from gpuplugin.mps.supervisor import Supervisor, Where
from gpuplugin.plan.desired import all_units
from gpuplugin.plan.mps import groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuplugin.config import Config
    from gpuplugin.daemon.host import Host
    from gpuplugin.model.inventory import Inventory

log = structlog.get_logger()

SOON_SECONDS, LATER_SECONDS = 1.0, 30.0
"""The time between two looks while something is amiss, and while nothing is."""


def main(arguments: Sequence[str]) -> int:
    """Run until told to stop by SIGTERM or SIGINT; returns the process's exit status."""
    parser = argparse.ArgumentParser(
        prog="gpuplugin mps-control",
        description="Run the MPS control daemons of this node. Takes the settings of `gpuplugin run`.",
        allow_abbrev=False,
    )
    parser.add_argument("--shm", action="store_true", help="only have <mpsRoot>/shm be a tmpfs of its own, and end")
    begun = begin(parser, arguments)
    config = begun.config
    if begun.options.shm:
        return _mount(Path(config.flags.mps_folder))
    try:
        asyncio.run(_run(config, ConfigSource(begun.file, os.environ, begun.given)))
    except OSError as error:
        log.error("the folder for MPS cannot be used", path=config.flags.mps_folder, reason=str(error))  # noqa: TRY400
        return FAILURE
    log.info("stopped")
    return 0


def _mount(root: Path) -> int:
    try:
        mounted = mount_shared_memory(root)
    except OSError as error:
        log.error("no shared memory for MPS", path=f"{root}/shm", reason=str(error))  # noqa: TRY400
        return FAILURE
    log.info("shared memory for MPS", path=f"{root}/shm", mounted=mounted)
    return 0


async def _run(config: Config, source: ConfigSource) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, source.asked.set)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await supervise(config, hosts.real(config), stop, source)


async def supervise(config: Config, host: Host, stop: asyncio.Event, source: ConfigSource) -> None:
    """Run until `stop` is set, then end all control daemons. Cancelled, it leaves them to the one who comes next."""
    root = _folder(config)
    async with AsyncExitStack() as cleanup:
        if not await _alone(root, stop, cleanup):
            return
        thread = await cleanup.enter_async_context(NvmlThread(host.nvml))
        wake = Wakeup()
        supervisor = Supervisor(
            Where(str(root), sysfs=host.sysfs),
            partial(ControlProgram.find, host.driver_root),
            ComputeModes(thread, root / "compute-modes.json", Path("/proc")),
            wake,
        )
        cleanup.callback(supervisor.leave)
        looking = _Looking(config, thread, Sysfs(host.sysfs), supervisor, wake)
        tasks = await cleanup.enter_async_context(asyncio.TaskGroup())
        running = [tasks.create_task(_follow(source, config, looking)), tasks.create_task(looking.keep_looking())]
        await stop.wait()
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        log.info("ending all MPS control daemons, and their clients with them")
        await supervisor.stop()


def _folder(config: Config) -> Path:
    root = Path(config.flags.mps_folder)
    root.mkdir(parents=True, exist_ok=True)
    for folder in barred(root):
        log.warning("only root's pods can use MPS: others cannot pass this folder", path=str(folder))
    return root


async def _alone(root: Path, stop: asyncio.Event, cleanup: AsyncExitStack) -> bool:
    """Wait until no other supervisor works on this folder; returns whether there is anything left to do then."""
    lock = cleanup.enter_context((root / "supervisor.lock").open("w"))
    told = False
    while not stop.is_set():
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                log.warning("another gpuplugin mps-control works on this node: waiting for its end", path=str(root))
            told = True
            await asyncio.sleep(SOON_SECONDS)
        else:
            return True
    return False


async def _follow(source: ConfigSource, config: Config, looking: _Looking) -> None:
    """Keep to the configuration as it changes, and to the file that the node's label chooses."""
    reload = Reload(source, config, looking.configure)
    if not config.profiles.folder:
        reload.read()  # it may have changed since the start
        looking.may_begin.set()
        await reload.keep_watching()
        return
    choice = ProfileChoice(config.profiles, source)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(choice.follow(node_labels(config)))
        await choice.decided.wait()
        reload.read()
        looking.may_begin.set()
        tasks.create_task(reload.keep_watching())


class _Looking:
    """Looks at the machine, and has the supervisor do what follows. may_begin: set once the configuration is known."""

    def __init__(self, config: Config, thread: NvmlThread, sysfs: Sysfs, supervisor: Supervisor, wake: Wakeup) -> None:
        self._config, self._thread, self._sysfs = config, thread, sysfs
        self._supervisor, self._wake = supervisor, wake
        self._root = config.flags.mps_folder
        self._inventory: Inventory | None = None
        self._trouble = ""
        self.may_begin = asyncio.Event()

    def configure(self, config: Config) -> None:
        """Do as this configuration says."""
        self._config = config
        if config.flags.mps_folder != self._root:
            log.warning("flags.mpsRoot holds from the next start on", path=self._root)
        self._wake("configuration")

    async def keep_looking(self) -> None:
        """Look now, and whenever there may be something to do."""
        await self.may_begin.wait()
        while True:
            await self._wake.wait(LATER_SECONDS if await self._look() else SOON_SECONDS)

    async def _look(self) -> bool:
        try:
            inventory = await observe(self._thread, self._sysfs, self._inventory)
        except (NvmlError, ObserveError) as error:
            if str(error) != self._trouble:
                log.warning("the GPUs cannot be looked at: control daemons stay as they are", reason=str(error))
            self._trouble = str(error)
            return False
        self._trouble, self._inventory = "", inventory
        wanted = groups(all_units(inventory, self._config).units, self._config)
        present = frozenset(gpu.uuid for gpu in inventory.gpus)
        return await self._supervisor.look(wanted, present)
