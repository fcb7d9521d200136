"""Files of which each sets single keys, the last one wins: CRI-O's and podman's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplugin.runtime import toml_edit
from gpuplugin.runtime.document import Decision, Edit, Source, Value, read_folders
from gpuplugin.runtime.support import lacking

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_KEY = "cdi_spec_dirs"


def decide_folders(
    sources: Sequence[Source], table: tuple[str, ...], default: tuple[str, ...], ours: Path, wanted: tuple[str, ...]
) -> Decision:
    """Where the files make a runtime look that always takes CDI devices, and the edit that adds what is wanted.

    ours: the drop-in to write, with all folders; where a file that is read after it gives them, that one is edited.
    """
    folders, holder = default, None
    for source in sources:
        text = source.text or ""
        section = toml_edit.section(toml_edit.read(source.path, text), table) or {}
        said = read_folders(source.path, text, section, _KEY)
        if said is not None:
            folders, holder = said, source
    missing = lacking(folders, wanted)
    if not missing:
        return Decision(enabled=True, folders=folders, edits=())
    there = next((source for source in sources if source.path == ours), None)
    target = there or Source(ours, None)
    if holder and _is_after(sources, holder, ours):
        target = holder
    values: dict[str, Value] = {_KEY: folders + missing}
    after = (
        toml_edit.new_table(table, values)
        if target.text is None
        else toml_edit.with_values(target.path, target.text, table, values)
    )
    reason = f"look for CDI documents in {', '.join(missing)} too"
    return Decision(enabled=True, folders=folders, edits=(Edit(target.path, target.text, after, (reason,)),))


def _is_after(sources: Sequence[Source], holder: Source, ours: Path) -> bool:
    """Whether a file is read after ours, which may not be there yet: drop-ins are read in the order of their names."""
    if holder.path.is_relative_to(ours.parent):
        return holder.path.parts > ours.parts
    in_folder = [index for index, source in enumerate(sources) if source.path.is_relative_to(ours.parent)]
    return bool(in_folder) and sources.index(holder) > in_folder[-1]
