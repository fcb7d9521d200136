"""Folders that have two names: where we see them, and where the host has them.

The daemon sees the host's files through a mount; a document for the host's runtime must name them as the host does.
Links inside must be followed as the host would, with the mount as its root: left to the system they would lead into our
own container, where a different file may stand.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LINKS_LIMIT: Final = 40
"""As many as Linux follows before it says ELOOP."""


@dataclass(frozen=True, slots=True)
class Place:
    """A root folder. here: as seen by us · host: the same folder's path on the host."""

    here: Path = Path("/")
    host: str = "/"

    def see(self, path: str) -> Path:
        """Give our own path of an absolute path in this root, links untouched."""
        return self.here / path.lstrip("/")

    def text(self, path: str) -> str:
        """Give the same as `see` as a text, for where there are hundreds of them."""
        return f"{str(self.here).rstrip('/')}/{path.lstrip('/')}"

    def on_host(self, path: str) -> str:
        """Give the host's own path of an absolute path in this root."""
        return f"{self.host.rstrip('/')}/{path.lstrip('/')}"

    def resolve(self, path: str) -> str | None:
        """Give the absolute path in this root with no link left in it; None when nothing (readable) is there.

        A name that is not UTF-8 is as good as not there: no document could say it.
        """
        here = str(self.here).rstrip("/")
        todo = path.split("/")[::-1]
        done: list[str] = []
        links = 0
        while todo:
            part = todo.pop()
            if part in {"", "."}:
                continue
            if part == "..":
                del done[-1:]
                continue
            try:
                target = os.readlink("/".join([here, *done, part]))  # noqa: PTH115  # texts: this is called often
            except FileNotFoundError:
                return None
            except OSError:
                done.append(part)
                continue
            links += 1
            if links > LINKS_LIMIT:
                return None
            if target.startswith("/"):
                done.clear()
            todo += target.split("/")[::-1]
        found = "/" + "/".join(done)
        return found if _is_utf8(found) and os.access(here + found, os.F_OK) else None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
