"""What each XID says about the GPU, after the vendor's catalogue (codes 1 to 172, October 2025).

Whether an XID takes a GPU out of service is decided here for everybody. Users override it by `health.enable` and
`health.disable`; nobody else keeps a list of codes.
"""

from __future__ import annotations

from enum import Enum


class XidKind(Enum):
    """What the catalogue tells people to do; the value is that advice in words."""

    APPLICATION = "restart the application"
    IGNORE = "nothing to do"
    RESET_GPU = "reset the GPU"
    INVESTIGATE = "look into it further"
    RESTART_MACHINE = "restart the machine"
    RESTART_VM = "restart the virtual machine"
    MECHANICAL = "check power cables and seating"
    UPDATE_SOFTWARE = "update driver or firmware"
    UVM = "look into unified memory's own error"
    RECOVERY_CHANGED = "ask the driver which recovery it wants"
    UNKNOWN = "not in the catalogue"


def _catalogue() -> dict[int, XidKind]:
    codes: dict[XidKind, tuple[int | range, ...]] = {
        XidKind.APPLICATION: (
            *(8, 11, 13, 25, 31, 32, range(39, 42), 60, range(68, 73), range(75, 78), 80, range(82, 87)),
            *(88, 89, 94, range(96, 106), range(126, 136), 139),
        ),
        XidKind.IGNORE: (
            *(14, 37, 38, 43, 44, 63, 66, 67, 92, 93, range(106, 109)),
            *(121, 137, 141, 152, 153, 157, 160, 161),
        ),
        XidKind.RESET_GPU: (46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158),
        XidKind.INVESTIGATE: (45, 48, 74, range(144, 151)),
        XidKind.RESTART_MACHINE: (79,),
        XidKind.RESTART_VM: (151,),
        XidKind.MECHANICAL: (54,),
        XidKind.UPDATE_SOFTWARE: (78,),
        XidKind.UVM: (159,),
        XidKind.RECOVERY_CHANGED: (154,),
    }
    return {
        code: kind
        for kind, entries in codes.items()
        for entry in entries
        for code in (entry if isinstance(entry, range) else (entry,))
    }


CATALOGUE = _catalogue()
"""Code → kind, for every code that the catalogue gives something to do for."""

_TEXTS = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    43: "GPU stopped processing",
    45: "preemptive cleanup after earlier errors",
    48: "double-bit ECC error",
    63: "row remapping recorded",
    64: "row remapping failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    94: "contained ECC error",
    95: "uncontained ECC error",
    109: "context switch timeout",
    119: "GPU system processor (GSP) timeout",
    154: "GPU recovery action changed",
}

_KEEP = frozenset({XidKind.APPLICATION, XidKind.IGNORE})


def kind(xid: int) -> XidKind:
    """Return what the catalogue says of a code; UNKNOWN when it says nothing."""
    return CATALOGUE.get(xid, XidKind.UNKNOWN)


def takes_gpu_away(xid: int) -> bool:
    """Whether the GPU leaves service by default: yes, unless the catalogue blames the application or says to ignore it.

    An unknown code takes the GPU away: a GPU too few is noticed and mended, a broken one in use loses work.
    """
    return kind(xid) not in _KEEP


def describe(xid: int) -> str:
    """One line for logs and for a device's reason: ``XID 79: GPU has fallen off the bus; restart the machine``."""
    text = _TEXTS.get(xid)
    advice = kind(xid).value
    return f"XID {xid}: {text}; {advice}" if text else f"XID {xid}: {advice}"
