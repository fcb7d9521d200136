"""What the tests of documents share."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))  # import mode importlib leaves it to us

GOCHECK = Path(__file__).parents[1] / "gocheck"

Library = Callable[[list[bytes]], list[dict[str, Any]]]
"""Documents, one line each → what the CDI project's library says of each: accepted, error, minimum."""


@pytest.fixture(scope="session")
def library() -> Library:
    loaded = spec_from_file_location("gocheck_build", GOCHECK / "build.py")
    assert loaded is not None
    assert loaded.loader is not None
    build = module_from_spec(loaded)
    loaded.loader.exec_module(build)
    try:
        program = build.build(GOCHECK / "cdi")
    except build.GoMissingError as error:
        pytest.skip(str(error))

    def ask(documents: list[bytes]) -> list[dict[str, Any]]:
        lines = b"".join(document + b"\n" for document in documents)
        done = subprocess.run([program], input=lines, capture_output=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    return ask
