"""Every bench runs to its end and prints its table. What the figures are is for people to judge, on a quiet machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "bench").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_it_runs_and_prints_what_it_measured(script):
    ran = subprocess.run(
        [sys.executable, script],
        check=False,
        env={**os.environ, "GPUPLUGIN_TEST_BENCH_QUICK": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert "ours p50 / p99" in ran.stdout
    assert " ms" in ran.stdout or " MiB" in ran.stdout
