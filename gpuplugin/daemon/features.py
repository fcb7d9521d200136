"""What this node lets us do, looked at once and said in one line of the log: the first question of any support case."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gpuplugin.config import Config
    from gpuplugin.daemon.host import Host
    from gpuplugin.model.inventory import Inventory

NVIDIA: Final = "0x10de"
DISPLAY_CLASS: Final = "0x03"
RUNTIMES: Final = {
    "containerd": "/run/containerd/containerd.sock",
    "CRI-O": "/run/crio/crio.sock",
    "Docker": "/run/docker.sock",
    "containerd of k3s": "/run/k3s/containerd/containerd.sock",
}
CONTROL_NODE: Final = "nvidiactl"


def has_gpus_on_bus(sysfs: Path) -> bool:
    """Whether the PCI bus has a display controller of NVIDIA's, with or without a driver."""
    try:
        devices = list((sysfs / "bus/pci/devices").iterdir())
    except OSError:
        return False
    return any(_read(d / "vendor") == NVIDIA and _read(d / "class").startswith(DISPLAY_CLASS) for d in devices)


def features(config: Config, host: Host, inventory: Inventory) -> dict[str, Any]:
    """Give what was found, for one line of the log. Blocks for some dozens of stat calls."""
    registration = config.paths.registration_socket
    return {
        "driver": inventory.driver.version,
        "driver_root": host.driver_root.host,
        "dev_root": host.dev_root.host,
        "mig": any(gpu.mig is not None for gpu in inventory.gpus),
        "fabric": any(gpu.fabric is not None for gpu in inventory.gpus),
        "control_node": access(host.dev_root.see(f"/dev/{CONTROL_NODE}")),
        "cdi": "writable" if os.access(config.paths.cdi, os.W_OK) else f"{config.paths.cdi} cannot be written",
        "kubelet": registration.is_socket(),
        "pod_resources": config.paths.pod_resources_socket.is_socket(),
        "dra": Path(config.paths.kubelet, "plugins_registry").is_dir(),
        "runtimes": [name for name, path in RUNTIMES.items() if host.driver_root.resolve(path) is not None],
        "cgroups": 2 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else 1,
        "capabilities": capabilities(),
        "user": os.geteuid(),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def access(node: Path) -> str:
    """Say whether a device node can be opened by us: the container's device cgroup may refuse what its mode allows."""
    try:
        os.close(os.open(node, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except FileNotFoundError:
        return "missing"
    except PermissionError:
        return "refused"
    except OSError:
        return "ok"  # past the permissions, and stopped by what is behind the node
    return "ok"


def capabilities() -> str:
    """Give our effective capabilities: none, all, or as the kernel writes them."""
    line = next((line for line in _read(Path("/proc/self/status")).splitlines() if line.startswith("CapEff:")), "")
    last = _read(Path("/proc/sys/kernel/cap_last_cap"))
    held = int(line.partition(":")[2].strip() or "0", 16)
    if held == 0:
        return "none"
    return "all" if last.isdigit() and held == (1 << (int(last) + 1)) - 1 else f"{held:#x}"


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
