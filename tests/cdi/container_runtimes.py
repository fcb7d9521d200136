"""Real container runtimes, each started the same way: a root folder, devices by their names, a program to run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "cluster"))  # import mode importlib leaves it to us

from onenode.binaries import binaries
from onenode.machine import missing

SECONDS = 60.0
UNIFIED = Path("/sys/fs/cgroup/unified")
PODMAN = ["podman", "run", "--rm", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--network", "none"]
PODMAN += ["--cap-add", "MKNOD"]  # to try what the device cgroup lets through
CONFIGURATION = """\
version = 3
root = '{folder}/root'
state = '{folder}/state'
disabled_plugins = ['io.containerd.cri.v1.images', 'io.containerd.cri.v1.runtime', 'io.containerd.grpc.v1.cri']
[grpc]
address = '{folder}/s'
[plugins.'io.containerd.nri.v1.nri']
disable = true
[plugins.'io.containerd.internal.v1.opt']
path = '{folder}/opt'
"""


class CannotRunError(Exception):
    """This machine cannot run that runtime; the text says why."""


@dataclass
class Runtime:
    """command: up to the options · devices, user, root: how they are said · name: whether containers need one."""

    command: list[str]
    name: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    def run(
        self, root: Path, *probes: str, devices: tuple[str, ...] = (), user: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run /bin/probe in a container with a read-only root; probes: its arguments."""
        words = [word for device in devices for word in ("--device", device)]
        words += ["--user", user] if user else []
        names = [f"gpuplugin-{os.getpid()}-{time.monotonic_ns()}"] if self.name else []
        return subprocess.run(
            [*self.command, "--read-only", *words, "--rootfs", str(root), *names, "/bin/probe", *probes],
            check=False,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env={**os.environ, **self.environment},
        )


@contextmanager
def podman(low_level: str) -> Iterator[Runtime]:
    """Podman with runc or crun."""
    lacking = [tool for tool in ("podman", low_level, "gcc", "unshare") if shutil.which(tool) is None]
    if lacking or os.geteuid() != 0:
        raise CannotRunError(
            f"not installed: {', '.join(lacking)}" if lacking else "podman with device nodes needs root"
        )
    command = [*PODMAN, "--runtime", low_level]
    if low_level == "crun" and UNIFIED.is_mount():  # it refuses cgroups of both versions at once
        command = ["unshare", "--mount", "sh", "-c", f'umount {UNIFIED}; exec "$@"', "sh", *command]
    yield Runtime(command)


@contextmanager
def containerd() -> Iterator[Runtime]:
    """The containerd that the cluster's tests have, alone and on a socket of its own."""
    if lacking := missing():
        raise CannotRunError("; ".join(f"{thing.what} ({thing.remedy})" for thing in lacking))
    programs = binaries(print)
    folder = Path(tempfile.mkdtemp(prefix="gpuc"))
    try:
        (folder / "config.toml").write_text(CONFIGURATION.format(folder=folder))
        environment = {"PATH": f"{programs}:{os.environ['PATH']}"}
        with (folder / "log").open("wb") as log:
            daemon = subprocess.Popen(
                [programs / "containerd", "--config", folder / "config.toml"],
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
            )
        try:
            ctr = [str(programs / "ctr"), "--address", str(folder / "s")]
            _wait(ctr, daemon, folder / "log")
            yield Runtime([*ctr, "run", "--rm"], name=True, environment=environment)
        finally:
            daemon.terminate()
            daemon.wait(SECONDS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait(ctr: list[str], daemon: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while subprocess.run([*ctr, "version"], check=False, capture_output=True).returncode:
        assert daemon.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
