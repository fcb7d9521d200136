"""The configuration file, read again when it changes: what can be taken over at once is, the rest is told of.

The file is looked at by stat, following links, so that a ConfigMap's exchange of its folder is a change like any other.
A file that is refused changes nothing: what was in force stays, and the reasons are told once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import structlog

from gpuplugin.config import Config, load_with_sources
from gpuplugin.config.reading import leaves
from gpuplugin.config.show import default
from gpuplugin.config.table import CONFIG_FILE
from gpuplugin.daemon import logs
from gpuplugin.errors import ConfigError
from gpuplugin.serving.socket import identity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from gpuplugin.config import Loaded
    from gpuplugin.serving.socket import Identity

log = structlog.get_logger()

LOOK_SECONDS = 1.0

AT_ONCE = (
    "flags.migStrategy",
    "flags.mpsRoot",
    "flags.gdrcopyEnabled",
    "flags.gdsEnabled",
    "flags.mofedEnabled",
    "flags.plugin.passDeviceSpecs",
    "flags.plugin.deviceListStrategy",
    "flags.plugin.deviceIDStrategy",
    "flags.plugin.cdiAnnotationPrefix",
    "flags.plugin.sharedDevicesAllocationPolicy",
    "resources.",
    "sharing.",
    "devices.",
    "dra.",
    "imex.",
    "health.",
    "rescanSeconds",
    "log.level",
)
"""Settings, and sections of settings, that hold from the next look on; all others are read at the start alone."""


@dataclass(slots=True)
class ConfigSource:
    """Where the configuration comes from, and the wish to read it again.

    file: the one that is in force, None where there is none · environ, flags: as given at the start; they hold for
    good, over whatever a file says.
    """

    file: Path | None
    environ: Mapping[str, str]
    flags: Mapping[str, str | Sequence[str]]
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    def load(self) -> Config:
        """Read it again. Raises ConfigError."""
        return self.read().config

    def read(self) -> Loaded:
        """Read it again, with where each value was set. Raises ConfigError."""
        # What named the file at the start has done its part: `file` may be another by now, or none.
        environ = {name: value for name, value in self.environ.items() if name not in CONFIG_FILE.env}
        flags = {name: value for name, value in self.flags.items() if name not in CONFIG_FILE.flags}
        return load_with_sources(self.file, environ, flags)

    def stamp(self) -> Identity | None:
        """Something that differs when the file has been changed or exchanged; None where none is."""
        return identity(self.file) if self.file else None


class Reload:
    """Sees to it that what the file says is in force. apply: takes over a configuration; it must not fail."""

    def __init__(self, source: ConfigSource, config: Config, apply: Callable[[Config], object]) -> None:
        self._source, self._config, self._apply = source, config, apply
        self._seen = source.stamp()
        self._refused: tuple[str, ...] = ()
        self._waiting: tuple[str, ...] = ()

    async def keep_watching(self) -> None:
        """Look at the file every second, and at once when asked to."""
        while True:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._source.asked.wait()
            except TimeoutError:
                if self._source.stamp() == self._seen:
                    continue
            asked = self._source.asked.is_set()
            self._source.asked.clear()
            self.read(asked=asked)

    def read(self, *, asked: bool = False) -> None:
        """Read the configuration, and put it in force if it can be. asked: somebody waits for an answer in the log."""
        self._seen = self._source.stamp()
        file = str(self._source.file) if self._source.file else None
        try:
            given = self._source.load()
        except ConfigError as error:
            reasons = tuple(map(str, error.problems))
            if asked or reasons != self._refused:
                for reason in reasons:
                    log.error("configuration refused: the earlier one stays in force", reason=reason)  # noqa: TRY400
            self._refused = reasons
            return
        self._refused = ()
        config, changed, waiting = taken_over(self._config, given)
        if waiting and waiting != self._waiting:
            log.warning("settings that hold from the next start on", keys=waiting, file=file)
        self._waiting = waiting
        if changed:
            log.info("configuration in force", changed=changed, file=file)
            self._config = config
            logs.set_level(config.log.level)
            self._apply(config)
        elif asked:
            log.info("configuration unchanged", file=file)


def taken_over(now: Config, given: Config) -> tuple[Config, tuple[str, ...], tuple[str, ...]]:
    """Lay what can change at once over what is in force: the result, the keys that changed, and those that wait."""
    changed = tuple(key for key in leaves() if default(now, key) != default(given, key))
    at_once = tuple(key for key in changed if key.startswith(AT_ONCE))
    values = msgspec.to_builtins(now)
    wanted = msgspec.to_builtins(given)
    for key in at_once:
        _put(values, wanted, key.split("."))
    return msgspec.convert(values, Config), at_once, tuple(key for key in changed if key not in at_once)


def _put(values: dict[str, object], wanted: dict[str, object], path: list[str]) -> None:
    """Take one key over; a section that one of the two lacks as a whole is taken over as a whole."""
    name, *below = path
    here, there = values.get(name), wanted.get(name)
    if below and isinstance(here, dict) and isinstance(there, dict):
        _put(here, there, below)
    else:
        values[name] = there
