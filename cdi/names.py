"""The names under which a CDI runtime finds our devices, in one place because three parties must agree on them.

The kind is ours and not ``nvidia.com/gpu``, so that a document of an installed NVIDIA toolkit never clashes with ours.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuplugin.model.inventory import Gpu, MigDevice

KIND: Final = "gpuplugin.io/gpu"
"""Kind of the document that the daemon keeps up to date."""

CLAIM_KIND: Final = "gpuplugin.io/claim"
"""Kind of the documents that live as long as a claim is prepared, one file a claim."""

FILE_PREFIX: Final = "gpuplugin.io-"
"""Every document that we write has a file name with this start, and nothing else is ever removed by us."""

CLAIM_PREFIX: Final = "gpuplugin.io-claim-"
"""Start of the names of claims' files, which only those may remove who know which claims are prepared."""

DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")
"""Where runtimes look when nothing else is configured; the later wins."""

ALL: Final = "all"
"""The device that is all devices of its document."""


class Naming(Enum):
    """How devices are called; the values are those of the toolkit's ``--device-name-strategy``."""

    UUID = "uuid"
    """``GPU-…``, ``MIG-…``"""
    INDEX = "index"
    """``0``, and ``0:1`` for its MIG device 1"""
    TYPE_INDEX = "type-index"
    """``gpu0``, ``mig0:1``"""


def gpu_names(gpu: Gpu, namings: Iterable[Naming]) -> tuple[str, ...]:
    """Give a GPU's names, one a naming, each once."""
    names = {Naming.UUID: gpu.uuid, Naming.INDEX: f"{gpu.index}", Naming.TYPE_INDEX: f"gpu{gpu.index}"}
    return tuple(dict.fromkeys(names[naming] for naming in namings))


def mig_names(gpu: Gpu, device: MigDevice, namings: Iterable[Naming]) -> tuple[str, ...]:
    """Give the names of a MIG device of that GPU."""
    place = f"{gpu.index}:{device.index}"
    names = {Naming.UUID: device.uuid, Naming.INDEX: place, Naming.TYPE_INDEX: f"mig{place}"}
    return tuple(dict.fromkeys(names[naming] for naming in namings))


def file_name(kind: str) -> str:
    """Give the name of the file that holds the document of one of our kinds: ``gpuplugin.io-gpu.json``."""
    return f"{kind.replace('/', '-')}.json"


def claim_file_name(claim: str) -> str:
    """Give the name of the file that holds what a claim's containers get. claim: its UID."""
    return f"{CLAIM_PREFIX}{claim}.json"


def qualified_name(kind: str, device: str) -> str:
    """Give what a pod's annotation, CRI field or ``--device`` says: ``gpuplugin.io/gpu=GPU-…``."""
    return f"{kind}={device}"
