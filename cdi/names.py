"""The names under which a CDI runtime finds our devices, in one place because three parties must agree on them.

The kind is ours and not ``nvidia.com/gpu``, so that a document of an installed NVIDIA toolkit never clashes with ours.
"""

from __future__ import annotations

KIND = "gpuplugin.io/gpu"
"""Kind of the documents that the daemon keeps up to date."""

FILE_PREFIX = "gpuplugin.io-"
"""Every document that we write has a file name with this start, and nothing else is ever removed by us."""

DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
"""Where runtimes look when nothing else is configured; the later wins."""


def file_name(kind: str) -> str:
    """Give the name of the file that holds the document of one of our kinds: ``gpuplugin.io-gpu.json``."""
    return f"{kind.replace('/', '-')}.json"


def qualified_name(kind: str, device: str) -> str:
    """Give what a pod's annotation, CRI field or ``--device`` says: ``gpuplugin.io/gpu=GPU-…``."""
    return f"{kind}={device}"
