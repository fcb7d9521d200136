"""What a machine must have for the cluster, and what to do where it hasn't: said once, for fixture and people."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
BUSYBOX: Final = Path("/bin/busybox")
CNI_FOLDERS: Final = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CNI_PLUGINS: Final = ("bridge", "host-local", "loopback")
SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OLDEST_GO: Final = (1, 21)  # the first that fetches the newer Go which a go.mod asks for
_PACKAGES: Final = {
    "runc": "runc",
    "openssl": "openssl",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
}


@dataclass(frozen=True)
class Missing:
    """One thing that the machine lacks, and how to get it."""

    what: str
    remedy: str


def missing() -> tuple[Missing, ...]:
    """Everything that stands between this machine and a cluster; empty where it can have one."""
    found = [*_rights(), *_go()]
    for program, package in _PACKAGES.items():
        if shutil.which(program, path=SYSTEM_PATH) is None:
            found.append(Missing(f"no {program}", f"apt-get install {package}"))
    if cni_folder() is None:
        names = ", ".join(CNI_PLUGINS)
        found.append(Missing(f"no CNI plugins ({names})", "apt-get install containernetworking-plugins"))
    if not BUSYBOX.exists() or _is_dynamic(BUSYBOX):
        found.append(Missing(f"no static {BUSYBOX}", "apt-get install busybox-static"))
    return tuple(found)


def cni_folder() -> Path | None:
    """The folder of the CNI plugins, or None where none has all that the cluster needs."""
    return next((f for f in CNI_FOLDERS if all((f / name).exists() for name in CNI_PLUGINS)), None)


def _rights() -> list[Missing]:
    if os.geteuid() != 0:
        return [Missing("not root", "run as root: kubelet and containerd mount and make cgroups")]
    found = []
    privileged = "run in a privileged container or on the machine itself"
    unshare = shutil.which("unshare", path=SYSTEM_PATH)
    if unshare and subprocess.run([unshare, "--mount", "true"], capture_output=True, check=False).returncode != 0:
        found.append(Missing("no mount namespaces", privileged))
    roots = [CGROUPS, *CGROUPS.glob("devices")]
    if any(os.statvfs(root).f_flag & os.ST_RDONLY for root in roots if root.exists()) or not CGROUPS.exists():
        found.append(Missing(f"no writable {CGROUPS}", privileged))
    return found


def _go() -> list[Missing]:
    remedy = f"install Go {'.'.join(map(str, _OLDEST_GO))} or newer from https://go.dev/dl"
    if shutil.which("go") is None:
        return [Missing("no Go", remedy)]
    version = subprocess.run(["go", "version"], capture_output=True, text=True, check=False).stdout
    numbers = re.search(r"go(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < _OLDEST_GO:
        return [Missing(f"Go too old ({version.strip()})", remedy)]
    return []


def _is_dynamic(program: Path) -> bool:
    with program.open("rb") as file:
        return b"/ld-linux" in file.read(4096)
