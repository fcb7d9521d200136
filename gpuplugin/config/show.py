"""The configuration that holds, as a file that would give it again, with the source beside each value that was set."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuplugin.config.load import Loaded
    from gpuplugin.config.settings import Config


def effective(loaded: Loaded) -> str:
    """Give the YAML. A value from a default has no comment; what is neither set nor has a default is left out."""
    return "".join(f"{line}\n" for line in _section(_as_in_file(loaded.config), loaded, ()))


def default(config: Config, key: str) -> object:
    """Give the value of a key in a configuration, as it stands in a file; None when there is none."""
    value: object = _as_in_file(config)
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def inline(value: object) -> str:
    """Write a value on one line, as YAML (of which JSON is a part)."""
    if value is None:
        return "none"
    return value if isinstance(value, str) and value.isidentifier() else json.dumps(value, ensure_ascii=False)


def _as_in_file(config: Config) -> dict[str, object]:
    values: dict[str, object] = msgspec.json.decode(msgspec.json.encode(config))
    return values


def _section(values: dict[str, object], loaded: Loaded, path: tuple[str, ...]) -> Iterator[str]:
    indent = "  " * len(path)
    for name, value in values.items():
        key = (*path, name)
        if isinstance(value, dict):
            below = list(_section(value, loaded, key))
            if below:
                yield f"{indent}{name}:"
                yield from below
        elif value is not None:
            source = loaded.sources.get(".".join(key))
            yield f"{indent}{name}: {json.dumps(value, ensure_ascii=False)}" + (f"  # {source}" if source else "")
