"""What CRI-O's files say of CDI, and the edit: pure.

CRI-O always takes CDI devices; only the folders can be wrong. It reads its main file, then each file in the drop-in
folder and below it in the order of names, whatever they are called, key by key: a drop-in of ours changes one key.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuplugin.runtime.layered import decide_folders
from gpuplugin.runtime.support import DEFAULT_FOLDERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuplugin.runtime.document import Decision, Source

MAIN: Final = Path("/etc/crio/crio.conf")
DROP_INS: Final = Path("/etc/crio/crio.conf.d")
OURS: Final = DROP_INS / "99-gpuplugin.conf"
TABLE: Final = ("crio", "runtime")


def decide(sources: Sequence[Source], wanted: tuple[str, ...], ours: Path = OURS) -> Decision:
    """What the files say and should say.

    sources: those that exist, in the order in which CRI-O reads them · ours: the one to write.
    """
    return decide_folders(sources, TABLE, DEFAULT_FOLDERS, ours, wanted)
