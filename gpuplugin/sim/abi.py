"""Writing answers where a C caller wants them: through references, into buffers, arrays and structs handed in.

The structs are the caller's, so nothing here knows their layout beyond field names; that keeps pynvml out, and makes a
wrong struct of the caller's show as it would with the real library.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class Code(IntEnum):
    """nvmlReturn_t, as far as it is used."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    GPU_IS_LOST = 15
    LIB_RM_VERSION_MISMATCH = 18
    ARGUMENT_VERSION_MISMATCH = 25
    UNKNOWN = 999


class Failed(Exception):
    """The call returns `code`."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(code)


def pointee(reference: Any) -> Any:
    """Give what a ``byref``, a pointer or an array refers to. INVALID_ARGUMENT for NULL."""
    if reference is None:
        raise Failed(Code.INVALID_ARGUMENT)
    if hasattr(reference, "_obj"):
        return reference._obj  # noqa: SLF001 (ctypes' own name for byref's target)
    return reference.contents if hasattr(reference, "contents") else reference


def put(reference: Any, value: int) -> None:
    """Write a number."""
    pointee(reference).value = value


def put_text(buffer: Any, size: Any, text: str) -> None:
    """Write a C string. INSUFFICIENT_SIZE when it does not fit."""
    data = text.encode()
    if number(size) < len(data) + 1:
        raise Failed(Code.INSUFFICIENT_SIZE)
    pointee(buffer).value = data


def put_handle(reference: Any, handle: int) -> None:
    """Write an opaque handle."""
    put_row(reference, ctypes.c_void_p, [handle])


def put_row(array: Any, kind: Any, values: Sequence[int]) -> None:
    """Write `values`, which are `kind` in C (a handle: c_void_p), one after the other from the start of `array`."""
    target = ctypes.cast(array, ctypes.POINTER(kind))
    for at, value in enumerate(values):
        target[at] = value


def fill(reference: Any, **values: Any) -> None:
    """Set fields of a struct; those that it does not have are left out, as older versions of it lack some."""
    struct = pointee(reference)
    for name, kind in ((field[0], field[1]) for field in struct._fields_):
        if name in values:
            value = values[name]
            is_pointer = isinstance(kind, type(ctypes.POINTER(ctypes.c_int)))
            setattr(struct, name, ctypes.cast(value, kind) if is_pointer else value)


def check_version(reference: Any, *versions: int) -> int:
    """Give which of `versions` a struct claims (size in the low 24 bits). ARGUMENT_VERSION_MISMATCH when none."""
    struct = pointee(reference)
    for version in versions:
        if struct.version == ctypes.sizeof(struct) | version << 24:
            return version
    raise Failed(Code.ARGUMENT_VERSION_MISMATCH)


def number(value: Any) -> int:
    """Read an integer argument, ctypes' or Python's."""
    return int(getattr(value, "value", value))


def text(value: Any) -> str:
    """Read a ``char *`` argument. INVALID_ARGUMENT for NULL."""
    data = getattr(value, "value", value)
    if data is None:
        raise Failed(Code.INVALID_ARGUMENT)
    return data.decode() if isinstance(data, bytes) else str(data)


def handle(value: Any) -> int:
    """Read an opaque handle argument; 0 is NULL."""
    return (value if isinstance(value, int) else ctypes.cast(value, ctypes.c_void_p).value) or 0
