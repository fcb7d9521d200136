"""Labels shown and taken away by hand."""

from __future__ import annotations

import json

import pytest

from gpuplugin.sim import machine


def test_labels_are_shown_as_lines_and_as_json(cli):
    lines = cli("labels", "show", "--simulate", "hgx-h100")
    assert lines.status == 0
    shown = dict(line.split("=", 1) for line in lines.out.splitlines())
    assert shown["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert shown["gpuplugin.io/nvlink.island-size"] == "8"
    assert json.loads(cli("labels", "show", "--json", "--simulate", "hgx-h100").out) == shown


@pytest.mark.parametrize("name", machine.names())
def test_every_machine_has_labels(cli, name):
    shown = dict(line.split("=", 1) for line in cli("labels", "show", "--simulate", name).out.splitlines())
    assert {"nvidia.com/gpu.product", "nvidia.com/gpu.family", "nvidia.com/gpu.count"} <= shown.keys()
    assert shown["nvidia.com/gpu.mode"] == "compute"


def test_the_configuration_counts(cli, monkeypatch, tmp_path):
    (tmp_path / "c.yaml").write_text("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}")
    monkeypatch.setenv("CONFIG_FILE", str(tmp_path / "c.yaml"))
    out = cli("labels", "show", "--simulate", "hgx-h100").out
    assert "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3-SHARED\n" in out


def test_taking_away_needs_to_know_whose(cli, monkeypatch):
    monkeypatch.delenv("NODE_NAME", raising=False)
    ran = cli("labels", "remove")
    assert ran.status == 1
    assert "node.name" in ran.err
    assert "--all" in ran.err


def test_a_feature_file_is_taken_away(cli, monkeypatch, tmp_path):
    file = tmp_path / "gfd"
    file.write_text("a=b\n")
    monkeypatch.setenv("GPUPLUGIN_LABELS_OWNER", "nfd-file")
    monkeypatch.setenv("GFD_OUTPUT_FILE", str(file))
    assert cli("labels", "remove").out == f"{file}\n"
    assert not file.exists()
    assert cli("labels", "remove").out == "there was nothing to take away\n"
