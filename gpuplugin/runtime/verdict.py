"""Whether a runtime injects our CDI devices, and what to change if not: pure, from its words and its files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuplugin.runtime.layout import UNITS
from gpuplugin.runtime.support import Runtime, Switch, lacking, newest_spec, switch

if TYPE_CHECKING:
    from gpuplugin.runtime.cri import RuntimeStatus
    from gpuplugin.runtime.document import Decision
    from gpuplugin.runtime.layout import Chosen


@dataclass(frozen=True, slots=True)
class Verdict:
    """One runtime, judged.

    name, version: as it says; the version is empty where it is not known · asked: whether the running process was
    asked, or its files only were read · works: whether a container gets our devices · cdi: whether it is switched on,
    None where that is not known · folders: where it reads CDI documents · newest_spec: of the documents it reads, None
    where not known · problems: why it does not work · changes: what to do about it · notes: what else should be known.
    """

    name: str
    version: str
    asked: bool
    works: bool
    cdi: bool | None
    folders: tuple[str, ...]
    newest_spec: str | None
    problems: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def judge(
    chosen: Chosen, status: RuntimeStatus | None, decision: Decision | None, wanted: tuple[str, ...], refused: str = ""
) -> Verdict:
    """Judge a runtime of those we know.

    status: what the running process said, None where it was not asked · decision: over its files, None where they
    cannot be used, for the reason `refused` · wanted: the folders of our CDI documents.
    """
    release = chosen.release
    cdi = status.cdi if status else decision.enabled if decision else None
    said = status.folders if status else None
    folders = said if said is not None else decision.folders if decision else ()
    problems = _problems(chosen, lacking(folders, wanted), cdi=cdi, asked=status is not None)
    return Verdict(
        name=status.name if status else chosen.runtime.value,
        version=status.version if status else str(release or ""),
        asked=status is not None,
        works=not problems,
        cdi=cdi,
        folders=folders,
        newest_spec=newest_spec(chosen.runtime, release),
        problems=problems,
        changes=_changes(chosen, decision, refused) if problems else (),
        notes=_notes(status, decision, works=not problems),
    )


def unknown(status: RuntimeStatus) -> Verdict:
    """A runtime that we do not know: nothing can be said, and nothing of it is touched."""
    known = ", ".join(Runtime)
    return Verdict(
        name=status.name,
        version=status.version,
        asked=True,
        works=False,
        cdi=status.cdi,
        folders=status.folders or (),
        newest_spec=None,
        problems=(f"not a runtime that is known here ({known})",),
        changes=("look in its documentation for CDI, the Container Device Interface",),
    )


def _problems(chosen: Chosen, missing: tuple[str, ...], *, cdi: bool | None, asked: bool) -> tuple[str, ...]:
    if chosen.release and switch(chosen.runtime, chosen.release) is Switch.NONE:
        return (f"{chosen.runtime} {chosen.release} has no CDI",)
    problems = []
    if not asked and not cdi:
        problems.append("its files do not switch CDI on")
    elif cdi is None:
        problems.append("it does not say whether CDI is on")
    elif not cdi:
        problems.append("CDI is off")
    if missing:
        problems.append(f"it does not look for CDI documents in {', '.join(missing)}")
    return tuple(problems)


def _changes(chosen: Chosen, decision: Decision | None, refused: str) -> tuple[str, ...]:
    if chosen.release and switch(chosen.runtime, chosen.release) is Switch.NONE:
        return ("update to a newer release",)
    if decision is None:
        return (refused,)
    if not decision.edits:
        return (f"its files are right: {restart_advice(chosen)}",)
    return tuple(
        f"{edit.path}: {reason} (`gpuplugin runtime configure` does it)"
        for edit in decision.edits
        for reason in edit.reasons
    )


def restart_advice(chosen: Chosen) -> str:
    """What makes a changed configuration hold."""
    unit = UNITS.get(chosen.runtime)
    return f"systemctl restart {unit}" if unit else "it holds from the next container on"


def _notes(status: RuntimeStatus | None, decision: Decision | None, *, works: bool) -> tuple[str, ...]:
    if decision is None:
        return ()
    notes = list(decision.notes)
    if status and works and decision.edits:
        reasons = ", ".join(reason for edit in decision.edits for reason in edit.reasons)
        notes.append(f"it works now and will not after a restart: its files do not {reasons}")
    return tuple(notes)
