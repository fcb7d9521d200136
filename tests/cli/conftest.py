"""Running the command line as people do: in this process for speed, with its output and status."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuplugin.__main__ import main

UPDATE = os.environ.get("GPUPLUGIN_TEST_UPDATE_GOLDEN") == "1"
GOLDEN = Path(__file__).parents[1] / "golden"


@dataclass
class Ran:
    status: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    """The environment holds no settings, nor the tests' own variables, which would be refused as misspelt settings."""
    for name in [name for name in os.environ if name.startswith("GPUPLUGIN_") or name == "CONFIG_FILE"]:
        monkeypatch.delenv(name)


@pytest.fixture
def cli(capsys):
    def run(*arguments):
        status = main(arguments)
        return Ran(status, *capsys.readouterr())

    return run


@pytest.fixture
def golden():
    """Compare with a file under tests/golden; GPUPLUGIN_TEST_UPDATE_GOLDEN=1 writes the files anew."""

    def compare(name, text):
        file = GOLDEN / name
        if UPDATE:
            file.write_text(text)
        assert text == file.read_text(), f"{file}: differs; if that is meant, run with GPUPLUGIN_TEST_UPDATE_GOLDEN=1"

    return compare
