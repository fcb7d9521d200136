"""The part of ``gpuplugin inventory`` about kubelet: how it is set up to place pods, and what that means here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpuplugin.cli.output import Cell
from gpuplugin.config import load
from gpuplugin.daemon import host
from gpuplugin.discovery.kubelet_settings import read
from gpuplugin.plan.kubelet_hints import hints
from gpuplugin.topology.explain import ranges

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuplugin.cli.output import Page
    from gpuplugin.model.inventory import Inventory
    from gpuplugin.model.kubelet import KubeletSettings

_STYLES = {"error": "bold red", "warning": "yellow", "info": ""}


def look_at_kubelet() -> KubeletSettings:
    """Read the settings of this machine's kubelet, as the daemon does. Raises ConfigError."""
    config = load(None, os.environ, {})
    where = host.real(config)
    return read(Path(config.paths.kubelet), where.proc, where.driver_root)


def add_kubelet(page: Page, settings: KubeletSettings, inventory: Inventory) -> None:
    """Add what kubelet runs with; nothing where there is no trace of a kubelet."""
    if not settings.read_from and not settings.troubles:
        return
    page.heading("Kubelet")
    page.table(("", ""), [(name, value) for name, value in _rows(settings) if value])
    for trouble in settings.troubles:
        page.line(f"not read: {trouble}")
    for hint in hints(settings, inventory):
        page.line(Cell(hint.level, _STYLES[hint.level]), f": {hint.text}")


def _rows(settings: KubeletSettings) -> list[tuple[str, str]]:
    return [
        ("topologyManagerPolicy", settings.topology_policy or "not known"),
        ("topologyManagerScope", settings.topology_scope or "not known"),
        ("topologyManagerPolicyOptions", _options(settings.topology_options)),
        ("cpuManagerPolicy", settings.cpu_policy or settings.cpu_state or "not known"),
        ("cpuManagerPolicyOptions", _options(settings.cpu_options)),
        ("memoryManagerPolicy", settings.memory_policy or settings.memory_state or "not known"),
        ("reservedSystemCPUs", ranges(settings.reserved_cpus or ())),
        ("read from", ", ".join(settings.read_from)),
    ]


def _options(options: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in sorted(options.items()))
