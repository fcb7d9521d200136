"""What a node leaves on a machine: noted before it starts, taken away after it, also after a crash."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Final

from onenode.layout import KUBELET_FOLDER, KUBELET_OWNER, LINK, Layout
from onenode.machine import CGROUPS
from onenode.processes import kill

_SYSCTLS: Final = (  # a kubelet changes them for good
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
_FOLDERS: Final = (  # a node, or the daemon under test, makes them where they are missing
    "/etc/cdi",
    "/run/cdi",
    "/run/containerd",
    "/run/netns",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
)


def note_machine(layout: Layout) -> None:
    """Write down the machine as it is, unless that was done: a second note would hold the node's own changes."""
    path = _note(layout)
    if path.exists():
        return
    sysctls = {name: Path("/proc/sys", name).read_text() for name in _SYSCTLS if Path("/proc/sys", name).exists()}
    absent = [folder for folder in _FOLDERS if not Path(folder).exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"sysctls": sysctls, "absent": absent}, indent=1))


def remove_traces(layout: Layout) -> None:
    """Put the machine back as it was noted. Kubelet and containerd must have ended."""
    if owner() == layout.state:
        _end_containers(layout)
        if Path("/sys/class/net", LINK).exists():
            subprocess.run(["ip", "link", "delete", LINK], check=True)
        shutil.rmtree(KUBELET_FOLDER)
    note = _note(layout)
    if note.exists():
        before = json.loads(note.read_text())
        for name, value in before["sysctls"].items():
            Path("/proc/sys", name).write_text(value)
        for folder in before["absent"]:
            shutil.rmtree(folder, ignore_errors=True)
    for entry in layout.state.iterdir() if layout.state.exists() else ():
        if entry == layout.logs:
            continue
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def owner() -> Path | None:
    """The state folder of the cluster that has /var/lib/kubelet; None where no cluster of ours has it."""
    try:
        return Path(KUBELET_OWNER.read_text().strip())
    except OSError:
        return None


def _note(layout: Layout) -> Path:
    return layout.state / "machine-before.json"


def _end_containers(layout: Layout) -> None:
    """End the pods' processes and their shims, and remove their cgroups."""
    groups = [group for form in ("kubepods/**/", "*/kubepods/**/") for group in CGROUPS.glob(form)]
    pods = {int(pid) for group in groups for pid in (group / "cgroup.procs").read_text().split()}
    socket = str(layout.containerd_socket).encode()
    shims = {int(process.name) for process in Path("/proc").glob("[0-9]*") if _is_shim_of(process, socket)}
    kill(pods | shims, signal.SIGKILL)
    for group in sorted(groups, key=lambda group: -len(group.parts)):
        if group.exists():
            group.rmdir()


def _is_shim_of(process: Path, socket: bytes) -> bool:
    try:
        arguments = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return arguments[0].endswith(b"containerd-shim-runc-v2") and socket in arguments
