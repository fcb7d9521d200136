"""What containerd's files say of CDI, and the edit that switches it on: pure.

A file that containerd imports replaces the whole CRI section of those before it (1.7), or single keys of it (2.x). A
drop-in of ours with two keys would therefore throw a node's runtimes, registries and cgroup driver away on 1.7. So no
file is added: the key is set in the file that already decides, which is right for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gpuplugin.errors import RuntimeConfigRefused
from gpuplugin.runtime import toml_edit
from gpuplugin.runtime.document import Decision, Edit, Source, Value, line_of, read_bool, read_folders
from gpuplugin.runtime.support import DEFAULT_FOLDERS, Runtime, Switch, Version, lacking, switch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SECTIONS: Final = {
    2: ("plugins", "io.containerd.grpc.v1.cri"),
    3: ("plugins", "io.containerd.cri.v1.runtime"),
    4: ("plugins", "io.containerd.cri.v1.runtime"),
}
"""The table with the CRI's settings, by the version that a file gives."""

_SECOND: Final = Version(2, 0, 0)
_CRI_NAMES: Final = {"cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"}


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    text: str
    table: tuple[str, str]
    section: dict[str, Any] | None


def imports(path: Path, text: str) -> tuple[str, ...]:
    """The patterns of other files that this one makes containerd read after itself."""
    document = toml_edit.read(path, text)
    return read_folders(path, text, document, "imports") or ()


def decide(sources: Sequence[Source], release: Version | None, wanted: tuple[str, ...]) -> Decision:
    """What the files say and should say, for CDI documents in the folders wanted.

    sources: the main file, which may not be there, and those that it imports, in the order in which containerd reads
    them. release: of the containerd that reads them, None where it is not known.
    """
    files = _files(sources)
    if not files:
        return _without_files(sources[0], release, wanted)
    enabled, folders = _enabled(files, release), _folders(files, release)
    changes: dict[Path, tuple[dict[str, Value], list[str]]] = {}
    for key, value, reason in _missing(folders, wanted, enabled=enabled):
        values, reasons = changes.setdefault(_deciding(files, key, release).path, ({}, []))
        values[key] = value
        reasons.append(reason)
    edits = tuple(_edit(file, *changes[file.path]) for file in files if file.path in changes)
    return Decision(enabled, folders, edits, _notes(files, release))


def _missing(
    folders: tuple[str, ...], wanted: tuple[str, ...], *, enabled: bool | None
) -> list[tuple[str, Value, str]]:
    missing: list[tuple[str, Value, str]] = []
    if not enabled:
        missing.append(("enable_cdi", True, "switch CDI on"))
    if added := lacking(folders, wanted):
        missing.append(("cdi_spec_dirs", folders + added, f"look for CDI documents in {', '.join(added)} too"))
    return missing


def _files(sources: Sequence[Source]) -> list[_File]:
    main = sources[0]
    default = _version(main, None) if main.text is not None else None
    files = []
    for source in sources:
        if source.text is None:
            continue
        document = toml_edit.read(source.path, source.text)
        disabled = read_folders(source.path, source.text, document, "disabled_plugins") or ()
        if found := _CRI_NAMES.intersection(disabled):
            raise RuntimeConfigRefused(
                source.path,
                f"disabled_plugins has {min(found)!r}: this containerd serves no Kubernetes",
                "For Docker, name --runtime docker. For Kubernetes, take that entry out first.",
                line_of(source.text, "disabled_plugins"),
            )
        version = _version(source, default)
        if version is None:
            if not document:  # nothing but comments: as good as no file
                continue
            raise RuntimeConfigRefused(
                source.path,
                "it gives no `version`, and then names mean different things to different releases",
                "Give `version = 2`, or write it anew by `containerd config migrate`.",
            )
        table = SECTIONS[version]
        files.append(_File(source.path, source.text, table, toml_edit.section(document, table)))
    return files


def _version(source: Source, default: int | None) -> int | None:
    text = source.text or ""
    version = toml_edit.read(source.path, text).get("version", default)
    if version is None or (version in SECTIONS and isinstance(version, int) and not isinstance(version, bool)):
        return version
    raise RuntimeConfigRefused(
        source.path,
        f"version is {version!r}, known are {', '.join(map(str, SECTIONS))}",
        "Write it anew by `containerd config migrate`, or edit it by hand.",
        line_of(text, "version"),
    )


def _replaces(files: Sequence[_File], release: Version | None) -> bool:
    """Whether an imported section replaces those before it; so it is in doubt, where version 2 may be either."""
    return release < _SECOND if release else files[0].table == SECTIONS[2]


def _read(files: Sequence[_File], release: Version | None) -> list[_File]:
    """The files whose CRI section counts."""
    having = [file for file in files if file.section is not None]
    return having[-1:] if _replaces(files, release) else having


def _holding(files: Sequence[_File], key: str, release: Version | None) -> _File | None:
    return next((file for file in reversed(_read(files, release)) if key in (file.section or {})), None)


def _deciding(files: Sequence[_File], key: str, release: Version | None) -> _File:
    """The file to set a key in: the one whose value counts, else the last that could give one."""
    return _holding(files, key, release) or next(reversed(_read(files, release)), files[0])


def _notes(files: Sequence[_File], release: Version | None) -> tuple[str, ...]:
    having = [file for file in files if file.section is not None]
    if len(having) < 2 or not (release and _replaces(files, release)):  # noqa: PLR2004 -- two make a conflict
        return ()
    lost = ", ".join(str(file.path) for file in having[:-1])
    return (f"containerd {release} takes the CRI settings of {having[-1].path} alone and leaves out those of {lost}",)


def _enabled(files: Sequence[_File], release: Version | None) -> bool | None:
    by_release = switch(Runtime.CONTAINERD, release) if release else None
    if by_release is Switch.ALWAYS:
        return True
    if by_release is Switch.NONE:
        raise RuntimeConfigRefused(
            files[0].path, f"containerd {release} has no CDI", "Update to containerd 1.7 or newer."
        )
    holder = _holding(files, "enable_cdi", release)
    said = read_bool(holder.path, holder.text, holder.section or {}, "enable_cdi") if holder else None
    if said is not None:
        return said
    if by_release is not None:
        return by_release is Switch.ON
    return None if files[0].table == SECTIONS[2] else True


def _folders(files: Sequence[_File], release: Version | None) -> tuple[str, ...]:
    holder = _holding(files, "cdi_spec_dirs", release)
    said = read_folders(holder.path, holder.text, holder.section or {}, "cdi_spec_dirs") if holder else None
    return DEFAULT_FOLDERS if said is None else said


def _without_files(main: Source, release: Version | None, wanted: tuple[str, ...]) -> Decision:
    """Nothing is configured: only the release's defaults count, and a new file is of the layout that it reads."""
    on = switch(Runtime.CONTAINERD, release) in (Switch.ON, Switch.ALWAYS) if release else None
    missing = _missing(DEFAULT_FOLDERS, wanted, enabled=on)
    if not missing:
        return Decision(on, DEFAULT_FOLDERS, ())
    version = 3 if on else 2
    table = toml_edit.new_table(SECTIONS[version], {key: value for key, value, _ in missing})
    start = f"{main.text.rstrip()}\n\n" if main.text and main.text.strip() else ""
    edit = Edit(main.path, main.text, f"{start}version = {version}\n\n{table}", tuple(reason for *_, reason in missing))
    return Decision(on, DEFAULT_FOLDERS, (edit,))


def _edit(file: _File, values: dict[str, Value], reasons: Sequence[str]) -> Edit:
    return Edit(file.path, file.text, toml_edit.with_values(file.path, file.text, file.table, values), tuple(reasons))
