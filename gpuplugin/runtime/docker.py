"""What Docker's daemon.json says of CDI, and the edit: pure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuplugin.errors import RuntimeConfigRefused
from gpuplugin.runtime import json_edit
from gpuplugin.runtime.document import Decision, Edit, Source, read_bool, read_folders
from gpuplugin.runtime.support import DEFAULT_FOLDERS, Runtime, Switch, Version, lacking, switch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MAIN: Final = Path("/etc/docker/daemon.json")
_FOLDERS: Final = "cdi-spec-dirs"


def decide(source: Source, release: Version | None, wanted: tuple[str, ...]) -> Decision:
    """What the file says and should say. Raises RuntimeConfigRefused for a Docker that has no CDI, or a broken file."""
    by_release = switch(Runtime.DOCKER, release) if release else None
    if by_release is Switch.NONE:
        raise RuntimeConfigRefused(source.path, f"Docker {release} has no CDI", "Update to Docker 25 or newer.")
    text = source.text or ""
    document = json_edit.read(source.path, text)
    features = document.get("features", {})
    if not isinstance(features, dict):
        features = {}  # json_edit refuses it, with its name, if it must be set
    said = read_bool(source.path, text, features, "cdi")
    enabled = said if said is not None else (by_release is Switch.ON if by_release else None)
    folders = _folders(source.path, text, document)
    after, reasons = text, []
    if not enabled:
        after = json_edit.with_value(source.path, after, ("features", "cdi"), value=True)
        reasons.append("switch CDI on")
    if missing := lacking(folders, wanted):
        after = json_edit.with_value(source.path, after, (_FOLDERS,), [*folders, *missing])
        reasons.append(f"look for CDI documents in {', '.join(missing)} too")
    edits = (Edit(source.path, source.text, after, tuple(reasons)),) if reasons else ()
    return Decision(enabled, folders, edits)


def _folders(path: Path, text: str, document: Mapping[str, Any]) -> tuple[str, ...]:
    said = read_folders(path, text, document, _FOLDERS)
    return DEFAULT_FOLDERS if said is None else said
