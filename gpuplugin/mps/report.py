"""How each control daemon stands, in a file for the daemon that offers the devices, which runs in another pod.

A report is worth something for as long as somebody stands behind it: whoever sees to the control daemon holds a lock,
and the control daemon inherits it. The kernel lets go of it when the last of them has ended, however that was.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from gpuplugin.model.ids import ResourceName

if TYPE_CHECKING:
    from pathlib import Path

REPORT, LOCK = "state.json", "alive"


@dataclass(frozen=True, slots=True)
class Report:
    """ready: whether clients can be given it · reason: why not, or what else there is to say · pid: of the daemon."""

    ready: bool
    reason: str = ""
    pid: int = 0


def write(home: Path, report: Report) -> None:
    """Replace the report of a resource, whose folder is `home`. Raises OSError."""
    new = home / f".{REPORT}"
    new.write_text(json.dumps(asdict(report)), encoding="utf-8")
    new.replace(home / REPORT)


def remove(home: Path) -> None:
    """Say nothing about a resource any more."""
    with suppress(OSError):
        (home / REPORT).unlink()


def read(home: Path) -> Report | None:
    """Give what is said of a resource; None where nothing is, or nothing that makes sense."""
    try:
        found = json.loads((home / REPORT).read_bytes())
        report = Report(bool(found["ready"]), str(found["reason"]), int(found["pid"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None
    if _is_held(home / LOCK):
        return report
    return Report(ready=False, reason="gpuplugin mps-control, which sees to the MPS control daemon, does not run")


def resources(root: Path) -> frozenset[ResourceName]:
    """Give the resources of which something is said below the folder for MPS."""
    return frozenset(ResourceName(str(path.parent.relative_to(root))) for path in root.glob(f"*/*/{REPORT}"))


def hold(home: Path) -> int:
    """Stand behind the report for as long as the descriptor that is returned is open somewhere. Raises OSError."""
    descriptor = os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _is_held(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)
