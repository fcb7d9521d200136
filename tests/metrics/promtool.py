"""Prometheus's own judgement of what we write."""

import os
import shutil
import subprocess

import pytest

PACKAGE = "prometheus"


def promtool(*arguments, text=""):
    """Run promtool; gives its exit status and what it said. Without it the test is left out, and with CI=true fails."""
    found = shutil.which("promtool")
    if found is None:
        why = f"left out, what promtool judges: there is none; tests/cluster/install has it (Debian package {PACKAGE})"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(why)
        pytest.skip(why)
    ran = subprocess.run([found, *arguments], input=text, capture_output=True, text=True, check=False, timeout=60)
    return ran.returncode, ran.stdout + ran.stderr
