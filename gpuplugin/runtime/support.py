"""What each runtime can do with CDI, by its version: the facts that no runtime tells."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

_T = TypeVar("_T")

DEFAULT_FOLDERS: Final = ("/etc/cdi", "/var/run/cdi")
"""Where runtimes look when not told otherwise, the one that wins last."""


class Runtime(StrEnum):
    """A runtime that we know; the value is what the command line calls it."""

    CONTAINERD = "containerd"
    CRIO = "crio"
    DOCKER = "docker"
    PODMAN = "podman"


class Version(NamedTuple):
    """A release; what follows the three numbers does not matter here."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


class Switch(StrEnum):
    """How a release is made to take CDI devices."""

    NONE = "none"
    """It cannot: a newer release is needed."""
    OFF = "off by default"
    ON = "on by default"
    ALWAYS = "always on"


CRI_NAMES: Final = {"containerd": Runtime.CONTAINERD, "cri-o": Runtime.CRIO}
"""What a runtime calls itself in the CRI's Version."""

_SWITCHES: Final[dict[Runtime, tuple[tuple[Version, Switch], ...]]] = {
    Runtime.CONTAINERD: (
        (Version(1, 7, 0), Switch.OFF),
        (Version(2, 0, 0), Switch.ON),
        (Version(2, 4, 0), Switch.ALWAYS),
    ),
    Runtime.CRIO: ((Version(1, 23, 0), Switch.ALWAYS),),
    Runtime.DOCKER: ((Version(25, 0, 0), Switch.OFF), (Version(29, 0, 0), Switch.ON)),
    Runtime.PODMAN: ((Version(4, 3, 0), Switch.ALWAYS),),
}

# From the version of the CDI library in each release's go.mod; releases between two rows have at least the earlier.
_SPECS: Final[dict[Runtime, tuple[tuple[Version, str], ...]]] = {
    Runtime.CONTAINERD: (
        (Version(1, 7, 0), "0.5.0"),
        (Version(1, 7, 13), "0.6.0"),
        (Version(1, 7, 20), "0.7.0"),
        (Version(1, 7, 29), "0.8.0"),
        (Version(2, 0, 0), "0.8.0"),
        (Version(2, 1, 0), "1.0.0"),
        (Version(2, 2, 1), "1.1.0"),
    ),
    Runtime.CRIO: ((Version(1, 34, 0), "1.0.0"),),
    Runtime.DOCKER: ((Version(25, 0, 0), "0.6.0"),),
    Runtime.PODMAN: (
        (Version(4, 3, 0), "0.5.0"),
        (Version(4, 9, 0), "0.6.0"),
        (Version(5, 1, 0), "0.7.0"),
        (Version(5, 2, 0), "0.8.0"),
        (Version(5, 6, 0), "1.0.0"),
    ),
}

PODMAN_FOLDERS_SETTABLE: Final = Version(5, 1, 0)
"""The first podman with `cdi_spec_dirs`; from it on the default is `/etc/cdi` alone."""


def version(text: str) -> Version | None:
    """The first `1.2` or `1.2.3` in what a runtime says of itself (``v1.7.29``, ``Docker version 28.2.2, build …``)."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return Version(int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def switch(runtime: Runtime, release: Version) -> Switch:
    """How this release is made to take CDI devices."""
    return _newest(_SWITCHES[runtime], release) or Switch.NONE


def newest_spec(runtime: Runtime, release: Version | None) -> str | None:
    """The newest version of the CDI specification that this release reads; None where that is not known."""
    return _newest(_SPECS[runtime], release) if release else None


def same_folder(one: str, other: str) -> bool:
    """Whether two names mean one folder: `/var/run` is a link to `/run` on every host that has both."""
    return _folder(one) == _folder(other)


def lacking(folders: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Those wanted that are not among the folders, in their order."""
    return tuple(one for one in wanted if not any(same_folder(one, other) for other in folders))


def _folder(name: str) -> str:
    trimmed = name.rstrip("/")
    return trimmed.removeprefix("/var") if trimmed.startswith("/var/run/") else trimmed


def _newest(rows: tuple[tuple[Version, _T], ...], release: Version) -> _T | None:
    return next((value for since, value in reversed(rows) if release >= since), None)
