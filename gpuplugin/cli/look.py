"""One look at the machine, for the verbs that show it: at this one, or at one simulated for the moment."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gpuplugin.config import load
from gpuplugin.daemon import host
from gpuplugin.discovery.nvml_thread import NvmlThread
from gpuplugin.discovery.observe import observe
from gpuplugin.discovery.sysfs import Sysfs
from gpuplugin.errors import NvmlUnavailable, ObserveError

if TYPE_CHECKING:
    from gpuplugin.cli.output import Page
    from gpuplugin.model.inventory import Inventory


def look(simulate: str | None) -> Inventory:
    """Observe once, as the daemon does. simulate: a machine's name or file, None for this machine.

    Raises MachineFileError, ConfigError or, with what to do about it, ObserveError.
    """
    if simulate is not None:
        with tempfile.TemporaryDirectory(prefix="gpuplugin-") as folder:
            return asyncio.run(observe_host(host.simulated(simulate, Path(folder))))
    try:
        return asyncio.run(observe_host(host.real(load(None, os.environ, {}))))
    except NvmlUnavailable as error:
        raise ObserveError(f"no GPU can be seen: {error}. Without a driver, try --simulate hgx-h100") from error


async def observe_host(where: host.Host) -> Inventory:
    """Observe a host once. Raises NvmlUnavailable and ObserveError."""
    async with NvmlThread(where.nvml) as thread:
        inventory = await observe(thread, Sysfs(where.sysfs), None)
        await thread.call(where.nvml.close)
        return inventory


def add_troubles(page: Page, inventory: Inventory) -> None:
    """Add what is wrong with the machine, each with its reason; nothing when all is well."""
    faults = [(f"GPU{gpu.index}", gpu.fault) for gpu in inventory.gpus if gpu.fault]
    faults += [(f"GPU{gpu.index}", f"{gpu.pci or 'no address'}: {gpu.reason}") for gpu in inventory.unreadable]
    if faults:
        page.heading("Faults")
        page.table(("", ""), faults)
    if inventory.warnings:
        page.heading("Warnings")
        for warning in inventory.warnings:
            page.line(warning)
