"""The folders that control daemons and their clients meet in, laid out as the reference lays them out.

A folder that has been there is never removed or replaced: containers have it mounted, and would wait at the old one for
a daemon that listens in the new one.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuplugin.mps.processes import PID_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator

STALE: Final = ("control", "control_privileged", "log", PID_FILE)
"""What a control daemon that was killed leaves, and the next one of its kind may stumble over."""
LABEL: Final = b"system_u:object_r:container_file_t:s0\0"
"""SELinux: what unprivileged containers may use."""
SHARED_MODE: Final = 0o1777
_NOSUID, _NODEV, _NOEXEC = 2, 4, 8


@dataclass(frozen=True, slots=True)
class Folders:
    """Those of one resource."""

    home: Path

    @classmethod
    def of(cls, root: str, resource: str) -> Folders:
        """Give them; they need not be there."""
        return cls(Path(root, resource))

    @property
    def pipe(self) -> Path:
        """Where clients find the daemon."""
        return self.home / "pipe"

    @property
    def log(self) -> Path:
        """Where the daemon writes ``control.log`` and ``server.log``."""
        return self.home / "log"

    def make(self, sysfs: Path = Path("/sys")) -> None:
        """Make them; MPS servers run as their clients' users, who must get to the pipes. Raises OSError."""
        for folder in (self.pipe, self.log):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o755)
        if (sysfs / "fs/selinux").exists():
            os.setxattr(self.pipe, "security.selinux", LABEL)

    def clear(self) -> None:
        """Remove what a dead daemon has left. To be called only when none lives."""
        for name in STALE:
            with suppress(OSError):
                (self.pipe / name).unlink()


def barred(root: Path) -> Iterator[Path]:
    """Give the folders above and with `root` that ordinary users cannot pass, so that only root's pods have MPS."""
    for folder in (*reversed(root.parents), root):
        if not folder.stat().st_mode & 0o001:
            yield folder


def mount_shared_memory(root: Path) -> bool:
    """Have a tmpfs of its own, as large as half the memory, at ``<root>/shm``; returns whether it was mounted now.

    Its own, because a container fills it at will, and /run is the whole machine's. One that is mounted stays: clients
    have their memory in it. Raises OSError.
    """
    shared = root / "shm"
    shared.mkdir(parents=True, exist_ok=True)
    if shared.is_mount():
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"mode={SHARED_MODE:o},size=50%".encode()
    if libc.mount(b"shm", os.fsencode(shared), b"tmpfs", _NOSUID | _NODEV | _NOEXEC, options):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(shared))
    return True
