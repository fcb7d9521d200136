"""``gpuplugin runtime``: whether the container runtime injects our devices, and the edit that makes it do so."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuplugin.errors import RuntimeConfigRefused, RuntimeUnreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuplugin.cli.output import Page
    from gpuplugin.runtime.cri import RuntimeStatus
    from gpuplugin.runtime.files import HostFiles
    from gpuplugin.runtime.layout import Chosen
    from gpuplugin.runtime.verdict import Verdict

app = typer.Typer(
    name="runtime",
    help="Check whether the container runtime injects CDI devices, or configure it to.",
    no_args_is_help=True,
)


class Named(StrEnum):
    """What --runtime takes."""

    AUTO = "auto"
    CONTAINERD = "containerd"
    CRIO = "crio"
    DOCKER = "docker"
    PODMAN = "podman"


def _absolute(folders: list[str]) -> list[str]:
    for folder in folders:
        if not folder.startswith("/"):
            raise typer.BadParameter(f"--cdi-folder {folder} must be an absolute path.")
    return folders


RuntimeName = Annotated[
    Named, typer.Option("--runtime", help="Which runtime. auto: the one that answers at a CRI socket.")
]
Socket = Annotated[Path | None, typer.Option(metavar="PATH", help="Its CRI socket, where it is not a usual one.")]
Config = Annotated[Path | None, typer.Option(metavar="PATH", help="Its configuration, where it is not the usual file.")]
Root = Annotated[Path, typer.Option(metavar="DIR", help="Where the host's root is mounted; all paths are below it.")]
Folders = Annotated[
    list[str],
    typer.Option(
        "--cdi-folder",
        metavar="DIR",
        help="A folder of our CDI documents (may be repeated).",
        callback=_absolute,
    ),
]
DEFAULT_FOLDER = "/var/run/cdi"


@app.command()
def check(
    runtime: RuntimeName = Named.AUTO,
    socket: Socket = None,
    config: Config = None,
    root: Root = Path("/"),
    cdi_folder: Folders = [DEFAULT_FOLDER],  # noqa: B006 -- typer copies it
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Say whether containers get CDI devices and what to change if not; status 1 if not.

    JSON: runtimes[] with name, version, asked, works, cdi, folders[], newest_spec, problems[], changes[], notes[].
    """
    from gpuplugin.cli.output import Page, show_json  # noqa: PLC0415

    verdicts = [
        _judge(files, chosen, status, cdi_folder) for files, chosen, status in _found(runtime, socket, config, root)
    ]
    if as_json:
        show_json({"runtimes": verdicts})
    else:
        page = Page()
        for verdict in verdicts:
            _add(page, verdict)
        page.show()
    if not all(verdict.works for verdict in verdicts):
        raise typer.Exit(1)


@app.command()
def configure(
    runtime: RuntimeName = Named.AUTO,
    socket: Socket = None,
    config: Config = None,
    root: Root = Path("/"),
    cdi_folder: Folders = [DEFAULT_FOLDER],  # noqa: B006 -- typer copies it
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the change and write nothing.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Restart the runtime by systemctl where needed.")] = False,
) -> None:
    """Edit the runtime's configuration so that containers get CDI devices.

    Shows the change, keeps everything else as it is, and keeps the file before it beside it. Restarts nothing unless
    told to; running containers survive a restart of containerd, CRI-O, or a Docker with live-restore.
    """
    from gpuplugin.runtime import layout  # noqa: PLC0415

    found = _found(runtime, socket, config, root, offline=True)
    if len(found) > 1:
        names = ", ".join(f"{chosen.socket}" for _, chosen, _ in found if chosen)
        raise typer.BadParameter(f"several runtimes answer ({names}): name one by --socket.")
    files, chosen, status = found[0]
    if chosen is None:
        raise typer.BadParameter(f"{status.name if status else runtime} is not a runtime that is known here.")
    decision = layout.decide(files, chosen, tuple(cdi_folder))
    for note in decision.notes:
        print(f"note: {note}")
    for edit in decision.edits:
        print(edit.diff(), end="")
    if dry_run and decision.edits:
        print("dry run: nothing was written")
        return
    now = datetime.now(UTC)
    for edit in decision.edits:
        written = files.write(edit, now)
        print(f"wrote {written.path}" + (f"; before: {written.backup}" if written.backup else ""))
    if not decision.edits:
        print("no change: its files are as they should be")
    if decision.edits or (status and not _judge(files, chosen, status, cdi_folder).works):
        _restart(chosen, files, wanted=restart and not dry_run)


def _found(
    runtime: Named, socket: Path | None, config: Path | None, root: Path, *, offline: bool = False
) -> list[tuple[HostFiles, Chosen | None, RuntimeStatus | None]]:
    """The runtimes to look at. offline: one that was named may also not be running."""
    from gpuplugin.runtime import choose  # noqa: PLC0415
    from gpuplugin.runtime.files import HostFiles  # noqa: PLC0415
    from gpuplugin.runtime.layout import Chosen  # noqa: PLC0415
    from gpuplugin.runtime.support import Runtime  # noqa: PLC0415

    files = HostFiles(root.resolve())
    config, socket = _on_host(files, config, "--config"), _on_host(files, socket, "--socket")
    if runtime in (Named.DOCKER, Named.PODMAN):
        named = Runtime(runtime)
        return [(files, Chosen(named, choose.by_program(files, named), None, config), None)]
    named_cri = None if runtime is Named.AUTO else Runtime(runtime)
    try:
        answers = choose.by_socket(files, named_cri, socket)
    except RuntimeUnreachable as error:
        if not offline or named_cri is None:
            raise
        typer.echo(f"gpuplugin: {error}. Its files are edited as for a release that is not known.", err=True)
        return [(files, Chosen(named_cri, None, None, config), None)]
    return [(files, choose.chosen(answer, config), answer.status) for answer in answers]


def _on_host(files: HostFiles, path: Path | None, option: str) -> Path | None:
    """A path as the host has it: one that is not absolute makes sense on this host only."""
    if path is None or path.is_absolute():
        return path
    if files.root != Path("/"):
        raise typer.BadParameter(f"{option} {path} must be an absolute path below --root.")
    return path.absolute()


def _judge(files: HostFiles, chosen: Chosen | None, status: RuntimeStatus | None, folders: Sequence[str]) -> Verdict:
    from gpuplugin.runtime import layout, verdict  # noqa: PLC0415

    if chosen is None:
        assert status is not None  # noqa: S101 -- only what answered can be unknown
        return verdict.unknown(status)
    try:
        decision = layout.decide(files, chosen, tuple(folders))
    except RuntimeConfigRefused as error:
        return verdict.judge(chosen, status, None, tuple(folders), str(error))
    return verdict.judge(chosen, status, decision, tuple(folders))


def _add(page: Page, verdict: Verdict) -> None:
    from gpuplugin.cli.output import Cell  # noqa: PLC0415

    page.heading(f"{verdict.name} {verdict.version}".strip())
    state = {True: "on", False: "off", None: "not known"}[verdict.cdi]
    page.line("CDI          ", Cell(state, "green" if verdict.works else "red"))
    page.line("documents    ", f"up to {verdict.newest_spec}" if verdict.newest_spec else "newest version not known")
    page.line("folders      ", ", ".join(verdict.folders) or "none")
    if not verdict.asked:
        page.line("seen in      ", "its files; a running one was not asked")
    for title, lines in (("problem", verdict.problems), ("to do", verdict.changes), ("note", verdict.notes)):
        for line in lines:
            page.line(f"{title:13}", line)


def _restart(chosen: Chosen, files: HostFiles, *, wanted: bool) -> None:
    from gpuplugin.runtime.layout import UNITS  # noqa: PLC0415
    from gpuplugin.runtime.verdict import restart_advice  # noqa: PLC0415

    unit = UNITS.get(chosen.runtime)
    if unit is None:
        print("no restart needed: it holds from the next container on")
        return
    systemctl = shutil.which("systemctl") if files.root == Path("/") else None
    if not wanted or systemctl is None:
        where = "" if files.root == Path("/") else " on the host"
        print(f"to make it hold, run{where}: {restart_advice(chosen)}")
        if wanted:
            typer.echo("gpuplugin: there is no systemctl here, so nothing was restarted.", err=True)
            raise typer.Exit(1)
        return
    command = [systemctl, "restart", unit]
    done = subprocess.run(command, check=False)  # noqa: S603 -- a fixed command
    print(f"ran {' '.join(command)}: status {done.returncode}")
    if done.returncode:
        raise typer.Exit(1)
