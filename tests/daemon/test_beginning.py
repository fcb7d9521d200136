"""The two programs that keep running take settings, and refuse them, in the same way."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PROGRAMS = ("run", "mps-control")


def ran(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    usual = {name: value for name, value in os.environ.items() if not name.startswith("GPUPLUGIN_")}
    return subprocess.run(
        [sys.executable, "-m", "gpuplugin", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**usual, **environment},
    )


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (("--log-level=loud",), {}, ["--log-level", "loud", "warning"]),
        ((), {"GPUPLUGIN_LOG_LEVEL": "loud"}, ["GPUPLUGIN_LOG_LEVEL", "loud"]),
        (("--log-levle=info",), {}, ["log-levle", "log-level?"]),
        (("stray",), {}, ["unrecognized arguments: stray"]),
    ],
)
def test_what_makes_no_sense_ends_it_with_status_2_and_says_where(program, arguments, environment, said):
    done = ran(program, *arguments, **environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert all(word in done.stderr for word in said), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_is_told_once(program):
    done = ran(program, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(f"usage: gpuplugin {program}") == 1


def test_what_keeps_it_from_starting_is_in_the_log_after_the_settings():
    done = ran("run", "--simulate=no-such-machine", "--log-format=json")
    begun, *_, refusal = map(json.loads, (done.stdout + done.stderr).splitlines())
    assert (begun["event"], begun["set"]["log.format"]) == ("starting", "flag --log-format")
    assert (done.returncode, refusal["level"], refusal["event"]) == (1, "error", "cannot start")
