"""Documents as YAML, in a module of its own because the daemon neither reads nor writes any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from cdi.spec import encode

if TYPE_CHECKING:
    from cdi.spec import Spec

_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def encode_yaml(spec: Spec) -> bytes:
    """Give the document as YAML, in the order of the specification; the same bytes for equal documents."""
    tree = msgspec.json.decode(encode(spec))
    text: str = yaml.dump(tree, Dumper=_DUMPER, sort_keys=False, width=1000, explicit_start=True, allow_unicode=True)
    return text.encode()
