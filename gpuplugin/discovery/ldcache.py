"""Where a root's own loader would look, from its ``/etc/ld.so.cache``: distributions and administrators add folders.

The file is parsed and ``ldconfig`` is never run: it belongs to the root, which may be another distribution's.
"""

from __future__ import annotations

import struct
from typing import Final

_OLD_MAGIC: Final = b"ld.so-1.7.0\0"
_OLD_HEADER: Final = struct.Struct("<I")
_OLD_ENTRY_SIZE: Final = 12
_MAGIC: Final = b"glibc-ld.so.cache1.1"
_HEADER: Final = struct.Struct("<20sII20x")
_ENTRY: Final = struct.Struct("<iIIIQ")
_ALIGNMENT: Final = 8
_LONGEST_PATH: Final = 4096


def paths(cache: bytes) -> tuple[str, ...]:
    """Give every library's path that the cache lists, in its order; ValueError when it is no cache that is known.

    A cache may have the old format in front of the new one; only the new one is read.
    """
    start = 0
    if cache.startswith(_OLD_MAGIC) and len(cache) >= len(_OLD_MAGIC) + _OLD_HEADER.size:
        (count,) = _OLD_HEADER.unpack_from(cache, len(_OLD_MAGIC))
        start = len(_OLD_MAGIC) + _OLD_HEADER.size + count * _OLD_ENTRY_SIZE
        start += -start % _ALIGNMENT
    if not cache.startswith(_MAGIC, start) or len(cache) < start + _HEADER.size:
        raise ValueError("it is not a loader cache of glibc 2.2 or newer")
    _, count, _ = _HEADER.unpack_from(cache, start)
    first = start + _HEADER.size
    if first + count * _ENTRY.size > len(cache):
        raise ValueError("it is cut short")
    return tuple(
        _text(cache, start + value)
        for _, _, value, _, _ in _ENTRY.iter_unpack(cache[first : first + count * _ENTRY.size])
    )


def _text(cache: bytes, start: int) -> str:
    end = cache.find(b"\0", start, start + _LONGEST_PATH)
    if end < 0:
        raise ValueError("it is damaged: a path in it does not end")
    return cache[start:end].decode(errors="surrogateescape")
