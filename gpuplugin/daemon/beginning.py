"""What every long-running program of ours does first: read its settings, and begin its log."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

import gpuplugin
from gpuplugin.config import flags, load_with_sources
from gpuplugin.daemon import logs
from gpuplugin.errors import ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from gpuplugin.config import Config

log = structlog.get_logger()

USAGE_ERROR, FAILURE = 2, 1
"""Exit statuses."""


@dataclass(frozen=True, slots=True)
class Begun:
    """options: the program's own · file: the configuration's, None where there is none · given: settings by flag."""

    options: argparse.Namespace
    config: Config
    file: Path | None
    given: Mapping[str, str | Sequence[str]]


def begin(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> Begun:
    """Read the settings that flags, environment and file give, and log that the program starts.

    parser: has the program's own options. Ends the process with status 2, a line for each problem, where settings are
    refused.
    """
    flags.add_to(parser)
    options, rest = parser.parse_known_args(arguments)
    if rest and not any(argument.startswith("--") for argument in rest):  # of unknown flags the settings know more
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    given = flags.collected(options, rest)
    try:
        loaded = load_with_sources(None, os.environ, given)
    except ConfigError as error:
        for problem in error.problems:
            print(f"gpuplugin: {problem}", file=sys.stderr)  # noqa: T201 - there is no log yet
        raise SystemExit(USAGE_ERROR) from error
    config = loaded.config
    logs.configure(config.log.level, config.log.format)
    log.info("starting", version=gpuplugin.__version__, file=loaded.file and str(loaded.file), set=dict(loaded.sources))
    return Begun(options, config, loaded.file, given)
