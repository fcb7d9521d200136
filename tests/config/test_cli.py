"""``gpuplugin config check|show|schema`` as people and pipelines see it."""

import json

import pytest
from typer.testing import CliRunner

from gpuplugin.cli.config import app


@pytest.fixture
def run(monkeypatch):
    for name in ("CONFIG_FILE", "GPUPLUGIN_LOG_LEVEL", "DP_DISABLE_HEALTHCHECKS"):
        monkeypatch.delenv(name, raising=False)

    def invoke(*arguments, **environ):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], env=environ)

    return invoke


def test_check_says_ok(run, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("log: {level: debug}")
    result = run("check", path)
    assert (result.exit_code, result.stdout) == (0, f"ok: {path}, 1 settings given\n")


def test_check_without_a_file_checks_the_environment(run):
    result = run("check", GPUPLUGIN_LOG_LEVEL="loud")
    assert result.exit_code == 1
    assert result.stderr == (
        "environment GPUPLUGIN_LOG_LEVEL: log.level: 'loud' is not allowed;"
        " allowed: one of debug, info, warning, error\n"
    )


def test_check_prints_one_problem_a_line(run, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("log: {level: loud}\nrescanSeconds: 0\n")
    result = run("check", "--sleep-interval=30s", "--config-file", path)
    assert result.exit_code == 1
    assert [line.partition(" is not")[0] for line in result.stderr.splitlines()] == [
        f"{path}:1: log.level: 'loud'",
        f"{path}:2: rescanSeconds: 0",
        "flag --sleep-interval: flags.gfd.sleepInterval: '30s'",
    ]
    assert result.stdout == ""


def test_check_refuses_an_unknown_flag_with_the_nearest(run):
    result = run("check", "--log-levle=debug")
    assert result.exit_code == 1
    assert result.stderr.endswith("Did you mean log-level?\n")


def test_show_gives_the_values_that_hold(run, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("log: {level: debug}")
    result = run("show", "--log-format", "json", path)
    assert result.exit_code == 0
    assert f'log:\n  level: "debug"  # {path}:1\n  format: "json"  # flag --log-format\n' in result.stdout


def test_schema_prints_json(run):
    result = run("schema")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["title"] == "gpuplugin configuration"


@pytest.mark.parametrize("verb", ["check", "show"])
def test_help_lists_the_settings(run, verb):
    result = run(verb, "--help")
    assert result.exit_code == 0
    assert "--mig-strategy" in result.stdout
