"""Just enough of ELF to know what a shared library calls itself, read and never executed.

The driver's root may belong to another distribution or be half written; a tool of the host would not run in our
container. So the dynamic section is read here, with every offset checked against the file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

MACHINES: Final = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64"}
"""e_machine → the name that uname gives the machine."""

_HEADER: Final = struct.Struct("<HHIQQQIHHHHHH")  # what follows e_ident in a 64-bit file
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_ENTRY: Final = struct.Struct("<qQ")
_IDENT_SIZE: Final = 16
_CLASS_64, _LITTLE_ENDIAN, _SHARED = 2, 1, 3
_LOAD, _DYNAMIC = 1, 2
_END, _STRING_TABLE, _SONAME = 0, 5, 14
_MOST_ENTRIES: Final = 4096
_LONGEST_NAME: Final = 255
_FILE_LIMIT: Final = 1 << 62
_DAMAGED: Final = "it is cut short or damaged"

_At = Callable[[int, int], bytes]
"""(offset, size) → the bytes there, fewer at the end of the file."""


class NotElf(ValueError):
    """The file is no shared library that could be read; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class SharedLibrary:
    """machine: ``x86_64``, or ``e_machine <n>`` for one that has no name here · soname: None where it has none."""

    machine: str
    soname: str | None


def read(path: Path) -> SharedLibrary:
    """Read a library's file. NotElf says why it is none; OSError when it cannot be read.

    Read and not mapped: a file that an installer cuts short under a mapping would kill the process.
    """
    with path.open("rb", buffering=0) as file:
        descriptor = file.fileno()
        return _parse(lambda offset, size: os.pread(descriptor, size, offset))


def parse(data: bytes) -> SharedLibrary:
    """Read a library's bytes. A 32-bit file is told by its machine alone, without a SONAME."""
    return _parse(lambda offset, size: data[offset : offset + size])


def _parse(at: _At) -> SharedLibrary:
    ident = at(0, _IDENT_SIZE + 4)
    if len(ident) < _IDENT_SIZE + 4 or ident[:4] != b"\x7fELF":
        raise NotElf("it is not an ELF file")
    if ident[5] != _LITTLE_ENDIAN:
        raise NotElf("it is not little-endian")
    kind, machine_number = struct.unpack_from("<HH", ident, _IDENT_SIZE)
    machine = MACHINES.get(machine_number, f"e_machine {machine_number}")
    if ident[4] != _CLASS_64:
        return SharedLibrary(machine, None)
    if kind != _SHARED:
        raise NotElf("it is an ELF file but no shared library")
    return SharedLibrary(machine, _soname(at))


def _soname(at: _At) -> str | None:
    *_, table, _, _, _, size, count, _, _, _ = _HEADER.unpack(_exactly(at, _IDENT_SIZE, _HEADER.size))
    if size != _SEGMENT.size:
        raise NotElf("its program headers have an impossible size")
    segments = list(_SEGMENT.iter_unpack(_exactly(at, table, count * _SEGMENT.size)))
    dynamic = next(((offset, length) for kind, _, offset, _, _, length, _, _ in segments if kind == _DYNAMIC), None)
    if dynamic is None:
        raise NotElf("it has no dynamic section")
    entries = _dynamic_entries(at, *dynamic)
    if _SONAME not in entries:
        return None
    if _STRING_TABLE not in entries:
        raise NotElf("it has no string table")
    address = entries[_STRING_TABLE]
    for kind, _, offset, virtual, _, length, _, _ in segments:
        if kind == _LOAD and virtual <= address < virtual + length:
            return _name(at, offset + address - virtual + entries[_SONAME])
    raise NotElf("its string table is in no segment")


def _dynamic_entries(at: _At, offset: int, length: int) -> dict[int, int]:
    size = min(length // _ENTRY.size, _MOST_ENTRIES) * _ENTRY.size
    entries: dict[int, int] = {}
    for tag, value in _ENTRY.iter_unpack(_exactly(at, offset, size)):
        if tag == _END:
            break
        entries[tag] = value
    return entries


def _name(at: _At, start: int) -> str:
    if start >= _FILE_LIMIT:
        raise NotElf(_DAMAGED)
    name, end, _ = at(start, _LONGEST_NAME + 1).partition(b"\0")
    if not end or not name or b"/" in name or not name.isascii() or not name.decode().isprintable():
        raise NotElf("its SONAME is no file name")
    return name.decode()


def _exactly(at: _At, offset: int, size: int) -> bytes:
    if offset >= _FILE_LIMIT:
        raise NotElf(_DAMAGED)
    data = at(offset, size)
    if len(data) != size:
        raise NotElf(_DAMAGED)
    return data
