"""``gpuplugin config``: check a configuration, show what holds and why, print the schema for editors.

`check` and `show` take the flags of ``gpuplugin run``, which are made from the settings' table, so their arguments and
their help come from there and not from typer.
"""

from __future__ import annotations

import json
import os

import typer

from gpuplugin.config import Loaded, flags, load_with_sources
from gpuplugin.config.schema import json_schema
from gpuplugin.config.show import effective
from gpuplugin.errors import ConfigError

app = typer.Typer(
    name="config",
    help="Check the configuration, show what holds, or print the schema of the file.",
    no_args_is_help=True,
)

_RAW = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(context_settings=_RAW, add_help_option=False)
def check(context: typer.Context) -> None:
    """Say what is wrong, one problem a line, and end with status 1; or say ok."""
    loaded = _load(context, "Say what is wrong with file, environment and flags, or ok.")
    print(f"ok: {loaded.file or 'no file'}, {len(loaded.sources)} settings given")


@app.command(context_settings=_RAW, add_help_option=False)
def show(context: typer.Context) -> None:
    """Print the configuration that holds as a file, with where each value was set."""
    print(effective(_load(context, "Print the configuration that holds, with where each value was set.")), end="")


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration file."""
    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))


def _load(context: typer.Context, description: str) -> Loaded:
    file, given = flags.parse(context.command_path, description, context.args)
    try:
        return load_with_sources(file, os.environ, given)
    except ConfigError as refused:
        typer.echo(str(refused), err=True)
        raise typer.Exit(1) from refused
