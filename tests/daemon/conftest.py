"""A daemon in this process on a simulated HGX H100, with a stand-in kubelet beside it."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuplugin.config import load_with_sources
from gpuplugin.daemon.host import Host
from gpuplugin.daemon.reload import ConfigSource
from gpuplugin.daemon.service import serve
from gpuplugin.discovery.nvml_real import RealNvml
from gpuplugin.discovery.places import Place
from gpuplugin.sim.host import SimulatedHost
from gpuplugin.sim.kubelet import StandInKubelet
from gpuplugin.sim.machine import load as load_machine

GPU = "nvidia.com/gpu"
SOON = 20  # seconds a loaded machine may take; never a claim about speed


class Bench:
    """One node: its simulated machine, its kubelet, and its daemon, which can be started and stopped."""

    def __init__(self, folder: Path, kubelet: StandInKubelet) -> None:
        self.folder, self.kubelet = folder, kubelet
        self.machine = SimulatedHost(load_machine("hgx-h100"), folder / "host")
        self.cdi = folder / "cdi" / "gpuplugin.io-gpu.json"
        self.source: ConfigSource | None = None

    @property
    def state(self):
        return self.machine.state

    @asynccontextmanager
    async def daemon(self, **flags: str) -> AsyncIterator[None]:
        settings = {
            "paths-kubelet": str(self.folder),
            "paths-cdi": str(self.folder / "cdi"),
            "paths-state": str(self.folder / "state"),
            "health-probe-seconds": "0.1",
            "health-recovery-probes": "2",
            "health-quiet-seconds": "0.3",
            **{name.replace("_", "-"): value for name, value in flags.items()},
        }
        place = Place(self.machine.root, str(self.machine.root))
        nvml = RealNvml(self.machine.library())
        host = Host(nvml, self.machine.root / "sys", self.machine.root / "proc", place, place, simulated=True)
        stop = asyncio.Event()
        loaded = load_with_sources(None, {}, settings)
        self.source = ConfigSource(loaded.file, {}, settings)
        task = asyncio.create_task(serve(loaded.config, host, stop, self.source))
        try:
            yield
        finally:
            stop.set()
            await task

    def configure(self, text: str) -> str:
        """Write the configuration file, as a whole; returns its path, for the flag ``config_file``."""
        path, new = self.folder / "config.yaml", self.folder / "config.new"
        new.write_text(text)
        new.replace(path)
        return str(path)

    async def usable(self, count: int, resource: str = GPU) -> None:
        await self.kubelet.until(
            lambda: self.kubelet.watches(resource) and self.kubelet.allocatable(resource) == count,
            SOON,
            f"{count} usable {resource}",
        )


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, since a socket's path is."""
    made = Path(tempfile.mkdtemp(prefix="gpu"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
async def bench(folder):
    async with StandInKubelet(folder / "device-plugins", numa_nodes=[0, 1]) as kubelet:
        yield Bench(folder, kubelet)
