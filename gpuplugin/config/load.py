"""Brings file, environment and flags together: flags over environment over file, all problems at once.

The environment belongs to everybody, so only names of the table count, and of the rest only those that begin with
ours are taken for mistakes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpuplugin.config import crosschecks, unsupported
from gpuplugin.config.given import clip, printable
from gpuplugin.config.reading import Reading, nearest
from gpuplugin.config.settings import Config
from gpuplugin.config.table import CONFIG_FILE, SETTINGS
from gpuplugin.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuplugin.config.given import Given
    from gpuplugin.config.setting import Setting

    Flags = Mapping[str, str | Sequence[str]]

PREFIX = "GPUPLUGIN_"
_OTHERS = frozenset({"GPUPLUGIN_NVML_STATE", "GPUPLUGIN_NVML_DEV"})
"""Ours as well, but read by a stand-in for NVML and not by us."""
_FOR_TESTS = f"{PREFIX}TEST_"
"""What the project's own tests are told by; a daemon that they start inherits it."""
_SERVICE_LINK = re.compile(rf"{PREFIX}(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
"""What Kubernetes puts into every container of a namespace that has a Service whose name begins with gpuplugin."""
_WHOLE = "sharing"
"""The section in which something must be given: with a part of it refused, the rest may be no section any more."""
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, and for each key that was set, where (as in Problem.source)."""

    config: Config
    sources: Mapping[str, str]
    file: Path | None


def load(file: Path | None, environ: Mapping[str, str], flags: Flags) -> Config:
    """Give the configuration that holds.

    file: the configuration file; None: what the flag ``config-file`` or CONFIG_FILE names, if either does ·
    environ: as os.environ · flags: by name without dashes, as `flags.collected` gives them.
    Raises ConfigError with every problem.
    """
    return load_with_sources(file, environ, flags).config


def load_with_sources(file: Path | None, environ: Mapping[str, str], flags: Flags) -> Loaded:
    """As `load`, and remember who set what."""
    reading = Reading()
    path = file or _config_file(environ, flags)
    if path:
        from gpuplugin.config import document  # noqa: PLC0415 -- PyYAML costs memory, and without a file nobody needs it

        read = document.read(path)
        reading.problems += read.problems
        if read.root:
            reading.tree(read.root)
    _environment(reading, environ)
    _flags(reading, flags)
    reading.problems += unsupported.problems(reading.given)
    sources = {key: given.source for key, given in reading.given.items()}
    refused = [problem.key for problem in reading.problems]
    readable = reading.given
    if any(key.startswith(_WHOLE) for key in refused):
        readable = {key: given for key, given in readable.items() if not key.startswith(_WHOLE)}
    config = msgspec.convert(_nested(readable), Config)
    if problems := [*reading.problems, *crosschecks.problems(config, sources, refused)]:
        raise ConfigError(problems)
    return Loaded(config, sources, path)


def _config_file(environ: Mapping[str, str], flags: Flags) -> Path | None:
    given = flags.get(CONFIG_FILE.flags[0]) or environ.get(CONFIG_FILE.env[0])
    if not given:
        return None
    return Path(given if isinstance(given, str) else given[-1])


def _environment(reading: Reading, environ: Mapping[str, str]) -> None:
    for setting in SETTINGS:
        found = {name: environ[name] for name in setting.env if name in environ}
        _take(reading, setting, {f"environment {name}": value for name, value in found.items()})
    known = {name for setting in SETTINGS for name in setting.env} | _OTHERS
    for name in sorted(environ):
        ours = name.startswith(PREFIX) and not name.startswith(_FOR_TESTS)
        if ours and name not in known and not _is_service_link(name, environ[name]):
            names = tuple(sorted(other for other in known - _OTHERS if other.startswith(PREFIX)))
            _unknown(reading, f"environment {printable(clip(name))}", name, names, "the variables")


def _is_service_link(name: str, value: str) -> bool:
    return _SERVICE_LINK.fullmatch(name) is not None or _SERVICE_ADDRESS.match(value) is not None


def _flags(reading: Reading, flags: Flags) -> None:
    for setting in SETTINGS:
        _take(reading, setting, {f"flag --{name}": flags[name] for name in setting.flags if name in flags})
    known = {name for setting in (*SETTINGS, CONFIG_FILE) for name in setting.flags}
    for name in sorted(flags.keys() - known):
        _unknown(reading, f"flag --{printable(clip(name))}", name, tuple(sorted(known)), "the flags")


def _take(reading: Reading, setting: Setting, found: Mapping[str, str | Sequence[str]]) -> None:
    """Read a setting from its names in one place; two names must not contradict each other."""
    if not found:
        return
    (source, value), *others = found.items()
    for other, contradiction in others:
        if contradiction != value:
            advice = f"{source} says {clip(value)!r}; both mean the same setting, so remove one"
            problem = Problem(other, setting.key, clip(contradiction), "the same value under both names", advice)
            reading.problems.append(problem)
    reading.text(setting.key, value if isinstance(value, str) else list(value), source)


def _unknown(reading: Reading, source: str, name: str, known: tuple[str, ...], what: str) -> None:
    near = nearest(name, known)
    advice = f"Did you mean {near}?" if near else ""
    reading.problems.append(Problem(source, "", clip(name), f"{what} {', '.join(known)}", advice))


def _nested(given: Mapping[str, Given]) -> dict[str, object]:
    root: dict[str, object] = {}
    for key, found in given.items():
        *sections, last = key.split(".")
        place = root
        for section in sections:
            below = place.setdefault(section, {})
            assert isinstance(below, dict)  # noqa: S101 -- a key is either a section or a value, never both
            place = below
        place[last] = found.value
    return root
