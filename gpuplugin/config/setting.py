"""What one line of the table of settings says."""

from __future__ import annotations

from typing import NamedTuple


class Setting(NamedTuple):
    """`key`: dotted, ``[]`` for a list's entries · `env`, `flags`: the first is the one to write, the rest also work.

    Flags are without the leading dashes. A setting with neither can be set in the file only.
    """

    key: str
    doc: str
    env: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
