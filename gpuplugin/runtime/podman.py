"""What podman's files say of CDI, and the edit: pure.

podman always takes CDI devices. Up to 5.0 it looks in both usual folders and nowhere else; from 5.1 on in `/etc/cdi`
alone, unless `cdi_spec_dirs` says otherwise. Ours is a drop-in: a new `/etc/containers/containers.conf` would hide the
distribution's from the newest releases.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuplugin.errors import RuntimeConfigRefused
from gpuplugin.runtime.document import Decision
from gpuplugin.runtime.layered import decide_folders
from gpuplugin.runtime.support import DEFAULT_FOLDERS, PODMAN_FOLDERS_SETTABLE, Version, lacking

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuplugin.runtime.document import Source

MAIN: Final = Path("/etc/containers/containers.conf")
DROP_INS: Final = Path("/etc/containers/containers.conf.d")
SHIPPED: Final = Path("/usr/share/containers/containers.conf")
OURS: Final = DROP_INS / "99-gpuplugin.conf"
TABLE: Final = ("engine",)
_DEFAULT: Final = ("/etc/cdi",)


def decide(sources: Sequence[Source], release: Version | None, wanted: tuple[str, ...], ours: Path = OURS) -> Decision:
    """What the files say and should say.

    sources: those that exist, in the order in which podman reads them · ours: the one to write · release: one that is
    not known is taken for a new one, since an old one passes over a key that it does not know.

    Raises RuntimeConfigRefused where a folder is wanted that an old release cannot be made to look in.
    """
    if release and release < PODMAN_FOLDERS_SETTABLE:
        if missing := lacking(DEFAULT_FOLDERS, wanted):
            raise RuntimeConfigRefused(
                MAIN,
                f"podman {release} looks in {' and '.join(DEFAULT_FOLDERS)} only, not in {', '.join(missing)}",
                f"Publish there, or update to podman {PODMAN_FOLDERS_SETTABLE} or newer.",
            )
        return Decision(enabled=True, folders=DEFAULT_FOLDERS, edits=())
    return decide_folders(sources, TABLE, _DEFAULT, ours, wanted)
