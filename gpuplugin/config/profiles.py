"""Which configuration file of a folder a node's label chooses: pure, as the reference's config manager does it.

A label that names no file keeps what is in force: taking something else would change what pods may ask for behind
people's backs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplugin.errors import ProfileUnknown

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpuplugin.config.settings import Profiles

NAMED = "default"
"""The file that the fallback ``named`` takes."""

NO_FILE = ""
"""Chosen by the fallback ``empty``: the defaults, with what environment and flags say."""


def choose(label: str, available: Collection[str], profiles: Profiles) -> str:
    """Give the file's name, or NO_FILE. label: the node label's value, "" where it has none · available: file names.

    Without a label `profiles.default` counts, and without that the first of `profiles.fallbacks` that works. Raises
    ProfileUnknown, with what there is.
    """
    names = ", ".join(sorted(available)) or "none"
    for wanted, where in ((label, f"the node's label {profiles.label}"), (profiles.default, "profiles.default")):
        if wanted in available and wanted:
            return wanted
        if wanted:
            raise ProfileUnknown(f"{where} is {wanted!r}, and {profiles.folder} has no such file; it has: {names}")
    for fallback in profiles.fallbacks:
        if fallback == "named" and NAMED in available:
            return NAMED
        if fallback == "single" and len(available) == 1:
            return next(iter(available))
        if fallback == "empty":
            return NO_FILE
    tried = ", ".join(profiles.fallbacks) or "none"
    raise ProfileUnknown(
        f"the node has no label {profiles.label}, profiles.default is not set, and no fallback works ({tried}); "
        f"{profiles.folder} has: {names}"
    )
