import json
import subprocess
import sys

import pytest

from gpuplugin import __version__
from gpuplugin.cli import inventory as inventory_verb
from gpuplugin.cli import topo as topo_verb
from gpuplugin.cli.look import look
from gpuplugin.cli.output import Cell, Page
from gpuplugin.sim import machine
from gpuplugin.sim.state import State

BOXES = set("│┃─━┌┏╭╰└┗├┤╡╞═║")


@pytest.mark.parametrize("name", ["hgx-h100", "dgx-1v", "vm-flat"])
def test_topo_is_as_agreed(cli, golden, name):
    ran = cli("topo", "--simulate", name)
    assert (ran.status, ran.err) == (0, "")
    assert "\x1b" not in ran.out
    golden(f"topo-{name}.txt", ran.out)


@pytest.mark.parametrize("name", ["hgx-h100", "vm-flat"])
def test_inventory_is_as_agreed(cli, golden, name):
    ran = cli("inventory", "--simulate", name)
    assert (ran.status, ran.err) == (0, "")
    golden(f"inventory-{name}.txt", ran.out)


@pytest.mark.parametrize("name", machine.names())
def test_every_machine_can_be_shown(name):
    found = look(name)
    for text in (topo_verb.page(found).text(), inventory_verb.page(found).text()):
        assert "Faults" not in text
        assert not BOXES & set(text)
        assert not any(line != line.rstrip() for line in text.splitlines())


def test_topo_json_has_its_keys(cli):
    found = json.loads(cli("topo", "--simulate", "hgx-h100", "--json").out)
    assert list(found) == ["columns", "rows", "legend"]
    assert found["columns"][7:9] == ["GPU7", "mlx5_0"]
    assert found["rows"][2] == {
        "name": "GPU2",
        "cells": ["NV18", "NV18", "X", *["NV18"] * 5, "NODE", "PIX", "SYS", "SYS"],
        "cpus": "0-55,112-167",
        "numa": "0",
        "switch": "0000:38:00.0",
        "nics": ["mlx5_1"],
        "fault": "",
    }


def test_inventory_json_has_its_keys(cli):
    found = json.loads(cli("inventory", "--simulate", "hgx-h100", "--json").out)
    assert list(found) == ["number", "driver", "gpus", "unreadable", "nvlinks", "nics", "numa_nodes", "warnings"]
    gpu = found["gpus"][4]
    assert (gpu["index"], gpu["minor"], gpu["numa"], gpu["compute_capability"]) == (4, 7, 1, [9, 0])
    assert gpu["memory_bytes"] == 81559 * 2**20
    assert found["nics"][0]["rate"] == "400 Gb/sec (4X NDR)"


def test_machines_are_listed_with_what_they_are(cli):
    lines = cli("machines").out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(machine.names())
    assert "8 NVIDIA H100 80GB HBM3" in next(line for line in lines if line.startswith("hgx-h100"))


def test_a_sick_gpu_is_shown_with_its_reason(tmp_path, monkeypatch):
    host = topo_verb.look.__globals__["host"]
    simulated = host.simulated

    def with_a_lost_gpu(name, folder):
        made = simulated(name, folder)
        State.open(folder / "nvml.state").lose(1)
        return made

    monkeypatch.setattr(host, "simulated", with_a_lost_gpu)
    found = look("hgx-h100")
    for text in (topo_verb.page(found).text(), inventory_verb.page(found).text()):
        assert "Faults\nGPU1  no address: NVML: GPU_IS_LOST" in text
        assert "GPU7" in text


def test_version_and_help(cli):
    assert cli("--version").out == f"gpuplugin {__version__}\n"
    text = cli("--help").out
    verbs = dict(line.split(maxsplit=1) for line in text.partition("Commands:\n")[2].splitlines())
    assert {"run", "topo", "inventory", "machines", "demo", "config", "cdi", "runtime"} <= verbs.keys()
    assert all(what[0].isupper() for what in verbs.values())
    assert "rows[]" in cli("topo", "--help").out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("topo", "--nonsense"), "gpuplugin: No such option: --nonsense"),
        (("nonsense",), "gpuplugin: No such command 'nonsense'."),
        (("topo", "--simulate"), "gpuplugin: Option '--simulate' requires an argument."),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(cli, arguments, text):
    ran = cli(*arguments)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith(text)
    assert ran.err.count("\n") == 1


def test_an_unknown_machine_is_one_line_that_names_the_known_ones(cli):
    ran = cli("topo", "--simulate", "nonsense")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.count("\n") == 1
    assert "hgx-h100" in ran.err


def test_a_file_that_cannot_be_written_is_one_line(cli, tmp_path):
    picture = tmp_path / "nowhere" / "node.svg"
    ran = cli("topo", "--simulate", "vm-flat", "--svg", str(picture))
    assert (ran.status, ran.out, ran.err) == (1, "", f"gpuplugin: {picture}: No such file or directory\n")


def test_without_a_driver_one_line_says_what_to_do(cli, monkeypatch):
    monkeypatch.setattr("gpuplugin.discovery.nvml_real.LIBRARY", "libnvidia-ml-of-no-machine.so.1")
    ran = cli("topo")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith("gpuplugin: no GPU can be seen: ")
    assert ran.err.endswith("Without a driver, try --simulate hgx-h100\n")
    assert ran.err.count("\n") == 1


def test_the_command_line_without_arguments_prints_help(cli):
    ran = cli()
    assert ran.status == 2
    assert "Commands:" in ran.err


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], ["grpc", "rich", "pynvml", "yaml"]),
        (["topo", "--simulate", "vm-flat"], ["rich"]),
        (["run", "--help"], ["typer", "rich.console"]),
    ],
)
def test_what_a_verb_does_not_need_is_not_imported(arguments, absent):
    code = f"""
import sys
from gpuplugin.__main__ import main
try:
    main({arguments!r})
except SystemExit:
    pass
print([name for name in {absent!r} if sys.modules.get(name)], file=sys.stderr)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr == "[]\n"


def test_columns_that_say_nothing_are_left_out_and_colour_is_no_part_of_the_text():
    page = Page()
    page.table(("", "a", "empty", "b"), [(Cell("x", "red"), "1", "", "2"), ("longer", "", "", "")])
    assert page.text() == "        a  b\nx       1  2\nlonger\n"


def test_a_terminal_gets_colour_and_lines_that_are_left_whole(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    page = Page()
    page.line(Cell("GPU", "bold"), " [not markup] ", "x" * 200)
    page.show()
    assert capsys.readouterr().out == f"\x1b[1mGPU\x1b[0m [not markup] {'x' * 200}\n"


def test_wrong_settings_are_a_line_each(cli, monkeypatch):
    monkeypatch.setenv("GPUPLUGIN_LOG_LEVEL", "loud")
    monkeypatch.setenv("GPUPLUGIN_NONSENSE", "1")
    ran = cli("inventory")
    assert (ran.status, ran.out, ran.err.count("\n")) == (1, "", 2)
    assert all(line.startswith("gpuplugin: environment GPUPLUGIN_") for line in ran.err.splitlines())


def test_a_table_without_rows_is_nothing():
    page = Page()
    page.table(("a",), [])
    assert page.lines == []
