"""Any text as part of a label, by one rule: the reference's where its result is valid, and always a valid one.

A value has at most 63 characters of ``A-Za-z0-9-_.`` and begins and ends with a letter or digit; it may be empty. The
part of a key after its prefix is held to the same, and is not empty.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

LONGEST: Final = 63
_DIGEST: Final = 6
_DROPPED = re.compile(r"[^A-Za-z0-9_. -]")
_EDGES = "-_."


def sanitise(text: str) -> str:
    """Drop what a label cannot have, and join words with ``-``. The result may still be too long, or end wrongly."""
    return "-".join(_DROPPED.sub("", text).split())


def value(text: str, *suffixes: str) -> str:
    """Make a value of a name and what must not be lost after it: where it is too long, the name is cut.

    ``value("NVIDIA H100 80GB HBM3", "MIG", "1g.10gb")`` is ``NVIDIA-H100-80GB-HBM3-MIG-1g.10gb``.
    """
    name, tail = sanitise(text), "-".join(filter(None, map(sanitise, suffixes)))
    if not tail:
        return _trimmed(name)
    room = LONGEST - len(tail) - 1
    head = name[: max(room, 0)].rstrip(_EDGES)
    return _trimmed(f"{head}-{tail}")


def key_part(text: str, room: int) -> str:
    """Make a piece of a key, of at most `room` characters (8 or more); a longer text ends in a digest of itself.

    ``unknown`` where nothing of the text can be had.
    """
    clean = sanitise(text).strip(_EDGES) or "unknown"
    if len(clean) <= room:
        return clean
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_DIGEST]
    return f"{clean[: room - _DIGEST - 1].rstrip(_EDGES)}-{digest}"


def _trimmed(text: str) -> str:
    return text.strip(_EDGES)[:LONGEST].rstrip(_EDGES)
