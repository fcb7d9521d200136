"""Asks the runtime that kubelet uses what it is and whether it injects CDI devices.

The runtime's own word is the only one that holds: a folder `/etc/cdi` or a line in a file says nothing about the
process that runs. Kept free of heavy imports, so that the daemon can ask too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from gpuplugin.errors import RuntimeUnreachable
from gpuplugin.pb import cri_v1_pb2 as api
from gpuplugin.pb import cri_v1_pb2_grpc as rpc
from gpuplugin.runtime.support import CRI_NAMES, Runtime, Switch, Version, newest_spec, switch, version

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ANSWER_SECONDS: Final = 5.0

_ADVICE: Final = {
    grpc.StatusCode.UNAVAILABLE: "is a runtime running, is this its socket, and are you root?",
    grpc.StatusCode.UNIMPLEMENTED: (
        "a containerd with its CRI switched off (disabled_plugins, as Docker's package ships it) serves Docker, "
        "not Kubernetes"
    ),
    grpc.StatusCode.DEADLINE_EXCEEDED: "it accepts connections and does not answer: look at its log",
    grpc.StatusCode.PERMISSION_DENIED: "run as root",
}


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """A running runtime, as it describes itself.

    name: as it says (``containerd``, ``cri-o``) · version: as it says · runtime: the one of those we know, or None ·
    cdi: whether containers get CDI devices, None where neither it nor its version tells · folders: where it reads CDI
    documents, later ones win; None where it does not say · newest_spec: of CDI documents it reads, None if not known.
    """

    name: str
    version: str
    runtime: Runtime | None
    cdi: bool | None
    folders: tuple[str, ...] | None
    newest_spec: str | None

    @property
    def release(self) -> Version | None:
        """The version as numbers."""
        return version(self.version)


async def runtime_status(socket: Path) -> RuntimeStatus:
    """Ask Version and Status(verbose) at a CRI socket. Raises RuntimeUnreachable, with what to do."""
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        stub = rpc.RuntimeServiceStub(channel)
        try:
            is_ = await stub.Version(api.VersionRequest(), timeout=ANSWER_SECONDS)
            says = await stub.Status(api.StatusRequest(verbose=True), timeout=ANSWER_SECONDS)
        except grpc.aio.AioRpcError as error:
            advice = _ADVICE.get(error.code(), "look at the runtime's log")
            raise RuntimeUnreachable([socket], f"{error.code().name}: {error.details()}", advice) from None
    return read_status(is_.runtime_name, is_.runtime_version, dict(says.info))


def read_status(name: str, version_text: str, info: dict[str, str]) -> RuntimeStatus:
    """Read what a runtime said: pure. `info` is the CRI's, JSON texts by key; each runtime has its own."""
    settings: dict[str, Any] = {}
    for text in info.values():
        try:
            settings |= _settings(json.loads(text))
        except ValueError:  # some are plain words
            continue
    runtime, release = CRI_NAMES.get(name), version(version_text)
    return RuntimeStatus(
        name=name,
        version=version_text,
        runtime=runtime,
        cdi=_cdi(runtime, release, settings.get("enablecdi")),
        folders=_folders(settings.get("cdispecdirs")),
        newest_spec=newest_spec(runtime, release) if runtime else None,
    )


def _cdi(runtime: Runtime | None, release: Version | None, said: object) -> bool | None:
    by_version = switch(runtime, release) if runtime and release else None
    if by_version in (Switch.ALWAYS, Switch.NONE):
        return by_version is Switch.ALWAYS
    return said if isinstance(said, bool) else None


def _folders(said: object) -> tuple[str, ...] | None:
    return tuple(str(one) for one in said) if isinstance(said, list) else None


def _settings(document: object) -> dict[str, Any]:
    """The two settings, wherever they are: containerd writes `cdiSpecDirs`, CRI-O `CDISpecDirs` one level down."""
    return {name: value for name, value in _members(document) if name in ("enablecdi", "cdispecdirs")}


def _members(document: object) -> Iterator[tuple[str, object]]:
    if isinstance(document, dict):
        for name, value in document.items():
            yield str(name).replace("_", "").lower(), value
            yield from _members(value)
