"""A real containerd by itself: no kubelet, no containers, all its files in one folder."""

from __future__ import annotations

import asyncio
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpuplugin.errors import RuntimeUnreachable
from gpuplugin.runtime.cri import RuntimeStatus, runtime_status

if TYPE_CHECKING:
    from collections.abc import Iterator

ANSWER_SECONDS = 30.0


class LoneContainerd:
    """binary: a containerd · folder: for its files · version, section: of its configuration's layout."""

    def __init__(self, binary: Path, folder: Path, version: int, section: str) -> None:
        self.binary, self.folder = binary, folder
        self.socket, self.config = folder / "s", folder / "config.toml"
        self.config.write_text(
            f"# by hand\nversion = {version}\nroot = '{folder}/root'\nstate = '{folder}/state'\n"
            f"[grpc]\naddress = '{self.socket}'\n"
            f"[plugins.'io.containerd.internal.v1.opt']\npath = '{folder}/opt'\n"
            f"[plugins.'{section}']\n"
        )

    def append(self, lines: str) -> None:
        """Add to the CRI's section."""
        self.config.write_text(self.config.read_text() + lines)

    def dump(self) -> str:
        """The configuration as containerd understands it; fails where it doesn't."""
        command = [self.binary, f"--config={self.config}", "config", "dump"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    @contextmanager
    def running(self) -> Iterator[RuntimeStatus]:
        """Run it, and give what it says of itself."""
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen([self.binary, f"--config={self.config}"], stdout=log, stderr=log)
        try:
            yield self._status(process)
        finally:
            process.terminate()
            process.wait(30)

    def _status(self, process: subprocess.Popen[bytes]) -> RuntimeStatus:
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                return asyncio.run(runtime_status(self.socket))
            except RuntimeUnreachable as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    log = (self.folder / "log").read_text()[-3000:]
                    raise AssertionError(f"containerd does not answer: {error}\n{log}") from error
                time.sleep(0.05)
