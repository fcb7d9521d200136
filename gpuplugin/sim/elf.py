"""Shared libraries in a few hundred bytes: nothing in them, but what tools read of a driver's library is right.

Written by hand because nobody who simulates a machine has to have a compiler. The loader takes them, too.
"""

from __future__ import annotations

import struct

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<qQ")
_SHARED, _X86_64, _LOAD, _DYNAMIC, _READ_WRITE = 3, 62, 1, 2, 6
_NULL, _HASH, _STRTAB, _SYMTAB, _STRSZ, _SYMENT, _SONAME = 0, 4, 5, 6, 10, 11, 14
_SYMBOL_SIZE, _SECTION_SIZE, _PAGE = 24, 64, 0x1000


def shared_library(soname: str) -> bytes:
    """Give a 64-bit x86 library that exports nothing and calls itself `soname`."""
    strings = b"\0" + soname.encode() + b"\0"
    symbols = bytes(_SYMBOL_SIZE)
    hashes = struct.pack("<4I", 1, 1, 0, 0)  # one bucket, one chain, both empty
    dynamic_at = _HEADER.size + 2 * _SEGMENT.size
    symbols_at = dynamic_at + 7 * _ENTRY.size
    hashes_at = symbols_at + len(symbols)
    strings_at = hashes_at + len(hashes)
    size = strings_at + len(strings)
    dynamic = b"".join(
        _ENTRY.pack(tag, value)
        for tag, value in (
            (_SONAME, 1),
            (_HASH, hashes_at),
            (_STRTAB, strings_at),
            (_SYMTAB, symbols_at),
            (_STRSZ, len(strings)),
            (_SYMENT, _SYMBOL_SIZE),
            (_NULL, 0),
        )
    )
    identity = b"\x7fELF" + bytes((2, 1, 1))  # 64 bits, little-endian, version 1
    header = _HEADER.pack(
        identity, _SHARED, _X86_64, 1, 0, _HEADER.size, 0, 0, _HEADER.size, _SEGMENT.size, 2, _SECTION_SIZE, 0, 0
    )
    load = _SEGMENT.pack(_LOAD, _READ_WRITE, 0, 0, 0, size, size, _PAGE)
    found = _SEGMENT.pack(_DYNAMIC, _READ_WRITE, dynamic_at, dynamic_at, dynamic_at, len(dynamic), len(dynamic), 8)
    return header + load + found + dynamic + symbols + hashes + strings
