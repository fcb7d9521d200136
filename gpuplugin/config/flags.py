"""The settings as command-line flags, made from the table. Apart, because argparse is imported here and only here."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gpuplugin.config.reading import leaves, shape
from gpuplugin.config.settings import Config
from gpuplugin.config.show import default, inline
from gpuplugin.config.table import CONFIG_FILE, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuplugin.config.setting import Setting

_PREFIX = "setting:"
"""Keeps the settings apart from a program's own arguments in one namespace."""


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every setting that has one. `collected` finds them again."""
    group = parser.add_argument_group("settings", "Each also in the file and, where named, in the environment.")
    group.add_argument(
        f"--{CONFIG_FILE.flags[0]}",
        dest=f"{_PREFIX}{CONFIG_FILE.flags[0]}",
        default=None,
        metavar="FILE",
        help=_escaped(f"{CONFIG_FILE.doc} [{CONFIG_FILE.env[0]}]"),
    )
    for setting in SETTINGS:
        if setting.flags:
            _add(group, setting)


def collected(namespace: argparse.Namespace, rest: Sequence[str] = ()) -> dict[str, str | list[str]]:
    """Give the flags that were set, by their first name, as `load` takes them.

    rest: what `parse_known_args` left over; flags among it are passed on, for `load` to refuse with a suggestion.
    """
    unknown = (argument.removeprefix("--").partition("=") for argument in rest if argument.startswith("--"))
    known = vars(namespace).items()
    return {
        **{name: value for name, _, value in unknown},
        **{
            name.removeprefix(_PREFIX): value for name, value in known if name.startswith(_PREFIX) and value is not None
        },
    }


def parse(prog: str, description: str, arguments: Sequence[str]) -> tuple[Path | None, dict[str, str | list[str]]]:
    """Parse a file's name, which may be left out, and the settings' flags, for programs that take nothing else.

    Ends the process with status 2 on a second file's name, and with 0 after ``--help``.
    """
    usage = "%(prog)s [settings] [FILE]"
    parser = argparse.ArgumentParser(prog=prog, usage=usage, description=description, allow_abbrev=False)
    text = f"the configuration file; otherwise what --{CONFIG_FILE.flags[0]} or {CONFIG_FILE.env[0]} names"
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help=text)
    add_to(parser)
    namespace, rest = parser.parse_known_args(arguments)
    surplus = [argument for argument in rest if not argument.startswith("--")]
    if surplus:
        parser.error(f"unrecognized arguments: {' '.join(surplus)}")
    return namespace.file, collected(namespace, rest)


def _add(group: argparse._ArgumentGroup, setting: Setting) -> None:
    expected = shape(leaves()[setting.key])
    names = [f"--{name}" for name in setting.flags]
    destination = f"{_PREFIX}{setting.flags[0]}"
    text = _escaped(help_text(setting))
    if expected.core is bool:
        group.add_argument(*names, dest=destination, nargs="?", const="true", metavar="true|false", help=text)
    elif expected.item:
        group.add_argument(*names, dest=destination, action="append", metavar="A,B", help=text)
    else:
        group.add_argument(*names, dest=destination, metavar="VALUE", help=text)


def help_text(setting: Setting) -> str:
    """One setting's help: meaning, what is allowed, default, key and variables."""
    allowed = shape(leaves()[setting.key]).allowed
    usual = default(Config(), setting.key)
    names = ", ".join((setting.key, *setting.env))
    return f"{setting.doc}. {allowed[0].upper()}{allowed[1:]}; default {inline(usual)} [{names}]"


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
