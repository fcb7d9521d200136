"""`gpuplugin cordon` and `uncordon`, as typed."""

import json

import pytest

from gpuplugin.__main__ import main
from gpuplugin.cli.look import look
from gpuplugin.sim.machine import load

GPUS = load("hgx-h100").snapshot.gpus


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GPUPLUGIN_PATHS_STATE", str(tmp_path / "state"))

    def type_in(*words):
        status = main(list(words))
        return status, *capsys.readouterr()

    return type_in


@pytest.mark.parametrize("name", ["3", GPUS[3].uuid, GPUS[3].uuid.upper().replace("GPU", "gpu"), GPUS[3].bus_id])
def test_a_gpu_is_named_by_index_uuid_or_address(run, name):
    status, out, err = run("cordon", name, "--reason", "fans", "--simulate", "hgx-h100")
    assert (status, err) == (0, "")
    assert out.startswith(f"{GPUS[3].uuid} is cordoned: ")
    _, listed, _ = run("cordon", "--json")
    (one,) = json.loads(listed)
    assert (one["gpu"], one["reason"]) == (GPUS[3].uuid, "fans")
    assert "fans" in run("cordon")[1]
    assert run("uncordon", name, "--simulate", "hgx-h100")[0] == 0
    assert json.loads(run("cordon", "--json")[1]) == []


def test_a_uuid_needs_no_driver(run):
    assert run("cordon", GPUS[0].uuid, "--reason", "x")[0] == 0


@pytest.mark.parametrize("name", ["8", "H100", "0000:ff:00.0"])
def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(run, name):
    status, _, err = run("cordon", name, "--reason", "x", "--simulate", "hgx-h100")
    assert status == 1
    assert name in err
    assert GPUS[7].uuid in err


def test_a_reason_is_needed(run):
    status, _, err = run("cordon", "3", "--simulate", "hgx-h100")
    assert status == 1
    assert "--reason" in err


def test_letting_back_what_is_not_cordoned_is_said(run):
    status, _, err = run("uncordon", "3", "--simulate", "hgx-h100")
    assert status == 1
    assert "is not cordoned" in err


def test_without_driver_and_daemon_no_simulated_gpu_is_advised(run, monkeypatch):
    monkeypatch.setattr("gpuplugin.discovery.nvml_real.LIBRARY", "libnvidia-ml-of-no-machine.so.1")
    status, out, err = run("cordon", "3", "--reason", "x")
    assert (status, out) == (1, "")
    assert "it cannot be told which GPU '3' is: " in err
    assert "GPUPLUGIN_PATHS_STATUS is not set" in err
    assert "A GPU's UUID is taken as it is" in err
    assert "--simulate" not in err
    assert json.loads(run("cordon", "--json")[1]) == []


def test_a_gpu_that_the_driver_has_and_no_daemon_is_found_all_the_same(run, monkeypatch):
    seen = look("hgx-h100")
    monkeypatch.setattr("gpuplugin.cli.cordon.look", lambda _: seen)
    status, out, err = run("cordon", "3", "--reason", "x")
    assert (status, err) == (0, "")
    assert out.startswith(f"{GPUS[3].uuid} is cordoned: ")
