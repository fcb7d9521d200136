"""Where this node's things are, as this process sees them: the machine's own, or a simulated one's."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuplugin.discovery.driver_root import LIBRARY_FOLDERS
from gpuplugin.discovery.nvml_real import RealNvml
from gpuplugin.discovery.places import Place

if TYPE_CHECKING:
    from gpuplugin.config import Config
    from gpuplugin.discovery.nvml import Nvml

NVML_LIBRARY = "libnvidia-ml.so.1"


@dataclass(frozen=True, slots=True)
class Host:
    """What discovery looks at. simulated: device nodes may be ordinary files."""

    nvml: Nvml
    sysfs: Path
    proc: Path
    driver_root: Place
    dev_root: Place
    simulated: bool = False


def real(config: Config) -> Host:
    """The machine's own. In a container its driver root is mounted at `flags.plugin.containerDriverRoot`."""
    on_host = config.flags.nvidia_driver_root
    mounted = Path(config.flags.plugin.container_driver_root)
    driver_root = Place(mounted if mounted.is_dir() else Path(on_host), on_host)
    dev_root = str(config.flags.dev_root)
    own = driver_root.here == Path("/")
    return Host(
        nvml=RealNvml(find=None if own else lambda: nvml_library(driver_root)),
        sysfs=Path(config.paths.sysfs),
        proc=Path(config.paths.proc),
        driver_root=driver_root,
        dev_root=driver_root if dev_root == on_host else Place(Path(dev_root), dev_root),
    )


def nvml_library(root: Place) -> Path | None:
    """Find the driver's NVML library in its root; None where it is not, and the system's loader shall look."""
    for folder in LIBRARY_FOLDERS:
        found = root.resolve(f"{folder.format(machine=platform.machine())}/{NVML_LIBRARY}")
        if found is not None:
            return root.see(found)
    return None


def simulated(machine: str, folder: Path) -> Host:
    """A simulated machine whose files are written into `folder`. Raises MachineFileError."""
    from gpuplugin.sim.host import SimulatedHost  # noqa: PLC0415 - only where asked for
    from gpuplugin.sim.machine import load  # noqa: PLC0415 - likewise

    host = SimulatedHost(load(machine), folder)
    root = Place(host.root, str(host.root))
    return Host(RealNvml(host.library()), host.root / "sys", host.root / "proc", root, root, simulated=True)
