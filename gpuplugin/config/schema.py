"""The JSON Schema of the configuration file, for editors: types from the settings, words from the table."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuplugin.config.reading import leaves, shape
from gpuplugin.config.settings import Config
from gpuplugin.config.table import SETTINGS

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Give the schema as a document ready for JSON."""
    schema = msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(Config)))
    definitions: dict[str, Any] = schema["$defs"]
    for definition in definitions.values():
        for section in definition["properties"].values():
            if "$ref" in section:
                del section["default"]  # its own properties say theirs
    for setting in SETTINGS:
        place = _property(definitions, setting.key)
        place["description"] = setting.doc
        hint = leaves().get(setting.key)
        if hint is not None and shape(hint).single:
            extras = {name: place.pop(name) for name in ("description", "default")}
            alternatives = [dict(place), place["items"]]
            place.clear()
            place.update({"anyOf": alternatives, **extras})
    return {"$schema": _DIALECT, "title": "gpuplugin configuration", **schema}


def _property(definitions: dict[str, Any], key: str) -> dict[str, Any]:
    """Find the schema of the property at a key, through references, lists and alternatives with null."""
    place: dict[str, Any] = definitions["Config"]
    for name in key.split("."):
        place = _resolve(definitions, place)["properties"][name.removesuffix("[]")]
        if name.endswith("[]"):
            place = place["items"]
    return place


def _resolve(definitions: dict[str, Any], place: dict[str, Any]) -> dict[str, Any]:
    for alternative in (place, *place.get("anyOf", ())):
        if "$ref" in alternative:
            found: dict[str, Any] = definitions[alternative["$ref"].rpartition("/")[2]]
            return found
    return place
