"""The program that links kubelet's managers, and a daemon on a machine, made once for all runs on it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.alignment.run import Bench, bench
from tests.gocheck.build import GoMissingError, build


@pytest.fixture(scope="session")
def program() -> Path:
    try:
        return build(Path(__file__).parents[1] / "gocheck/alignment")
    except GoMissingError as error:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(str(error))
        pytest.skip(f"kubelet's own managers are not asked: {error}")


@pytest.fixture(scope="module")
def on(program: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    with bench(request.param, program) as running:
        yield running
