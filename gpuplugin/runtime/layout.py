"""Where each runtime's configuration is, and in which order it reads the files; the decision over them by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuplugin.errors import RuntimeConfigRefused
from gpuplugin.runtime import containerd, crio, docker, podman
from gpuplugin.runtime.support import Runtime, Version

if TYPE_CHECKING:
    from gpuplugin.runtime.document import Decision, Source
    from gpuplugin.runtime.files import HostFiles

CONTAINERD: Final = Path("/etc/containerd/config.toml")
SOCKETS: Final = {
    Path("/run/containerd/containerd.sock"): Runtime.CONTAINERD,
    Path("/run/crio/crio.sock"): Runtime.CRIO,
    Path("/run/k3s/containerd/containerd.sock"): Runtime.CONTAINERD,
}
"""Where a CRI socket usually is, in the order of looking."""

UNITS: Final = {Runtime.CONTAINERD: "containerd", Runtime.CRIO: "crio", Runtime.DOCKER: "docker"}
"""The systemd unit to restart after a change; podman is started anew for every container."""

_K3S: Final = Path("/run/k3s")


@dataclass(frozen=True, slots=True)
class Chosen:
    """A runtime to look at.

    release: None where not known · socket: its CRI socket, by its path on the host; None where it has none or was not
    asked · config: its file, where that is not the usual one; no other file is then looked at, but what it imports.
    """

    runtime: Runtime
    release: Version | None = None
    socket: Path | None = None
    config: Path | None = None

    @property
    def main(self) -> Path:
        """The main file. Raises RuntimeConfigRefused where the usual one cannot be it."""
        if self.config:
            return self.config
        if self.socket and self.socket.is_relative_to(_K3S):
            why = "k3s and RKE2 write containerd's file anew at each start"
            raise RuntimeConfigRefused(self.socket, why, "Add the setting to their template (config.toml.tmpl).")
        return CONTAINERD if self.runtime is Runtime.CONTAINERD else docker.MAIN


def decide(files: HostFiles, chosen: Chosen, wanted: tuple[str, ...]) -> Decision:
    """Read the runtime's files and say what they should be. Raises RuntimeConfigRefused."""
    match chosen.runtime:
        case Runtime.CONTAINERD:
            return containerd.decide(_imported(files, chosen.main), chosen.release, wanted)
        case Runtime.CRIO:
            if chosen.config:
                return crio.decide(_existing(files, [chosen.config]), wanted, chosen.config)
            return crio.decide(_existing(files, [crio.MAIN, *files.below(crio.DROP_INS)]), wanted)
        case Runtime.DOCKER:
            return docker.decide(files.read(chosen.main), chosen.release, wanted)
        case Runtime.PODMAN:
            if chosen.config:
                return podman.decide(_existing(files, [chosen.config]), chosen.release, wanted, chosen.config)
            paths = [podman.SHIPPED, podman.MAIN, *files.matching(podman.DROP_INS / "*.conf")]
            return podman.decide(_existing(files, paths), chosen.release, wanted)


def _imported(files: HostFiles, main: Path) -> list[Source]:
    """The main file and all it imports: breadth first, each once, relative to the file that imports."""
    sources: dict[Path, Source] = {}
    pending = [main]
    while pending:
        path = pending.pop(0)
        if path in sources:
            continue
        source = sources[path] = files.read(path)
        for pattern in containerd.imports(path, source.text or ""):
            pending += files.matching(path.parent / pattern)
    return list(sources.values())


def _existing(files: HostFiles, paths: list[Path]) -> list[Source]:
    return [source for source in map(files.read, paths) if source.text is not None]
