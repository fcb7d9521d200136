"""File, environment, flags, help, schema and the shown configuration all tell the same story."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gpuplugin.config import Config, flags, load, load_with_sources
from gpuplugin.config.reading import leaves
from gpuplugin.config.schema import json_schema
from gpuplugin.config.show import default, effective, inline
from gpuplugin.config.table import CONFIG_FILE, SETTINGS

EVERYTHING = """
version: v1
flags:
  failOnInitError: false
  mpsRoot: /run/nvidia/mps
  nvidiaDriverRoot: /run/nvidia/driver
  nvidiaDevRoot: /
  deviceDiscoveryStrategy: nvml
  plugin: {deviceListStrategy: [cdi-cri, envvar], containerDriverRoot: /host}
resources:
  gpus:
  - {pattern: "*Größe: #1*", name: big}
health: {probeSeconds: 1, recoveryProbes: 1, quietSeconds: 0, disable: [13, 31], enable: [xids]}
rescanSeconds: 10
paths: {kubelet: /k, kubeletSocket: /k/s, cdi: /c, sysfs: /s, proc: /p}
log: {level: debug, format: json}
"""


def test_the_table_has_every_setting_once():
    keys = [setting.key for setting in SETTINGS]
    assert len(set(keys)) == len(keys)
    assert {key for key in keys if "[]" not in key} == set(leaves())


def test_no_name_means_two_settings():
    for names in ([n for s in SETTINGS for n in s.env], [n for s in SETTINGS for n in s.flags]):
        assert len(set(names)) == len(names)


def test_every_property_in_the_schema_is_described():
    for name, definition in json_schema()["$defs"].items():
        for key, place in definition["properties"].items():
            assert place.get("description") or "$ref" in place or "anyOf" in place, f"{name}.{key}"
        assert definition["additionalProperties"] is False


def test_the_schema_takes_one_strategy_or_a_list():
    place = json_schema()["$defs"]["PluginFlags"]["properties"]["deviceListStrategy"]
    names = ["cdi-annotations", "cdi-cri", "envvar", "volume-mounts"]
    assert place["anyOf"] == [{"type": "array", "items": {"enum": names}, "minItems": 1}, {"enum": names}]
    assert place["default"] == ["cdi-cri"]


def test_the_schema_is_json():
    assert json.loads(json.dumps(json_schema())) == json_schema()


def test_what_is_shown_gives_the_same_configuration_again(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(EVERYTHING)
    loaded = load_with_sources(path, {"GPUPLUGIN_LOG_LEVEL": "error"}, {"rescan-seconds": "7"})
    again = tmp_path / "b.yaml"
    again.write_text(effective(loaded))
    assert load(again, {}, {}) == loaded.config
    assert loaded.config != Config()


def test_what_is_shown_names_the_source_of_what_was_set_and_of_nothing_else(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("\nflags:\n  mpsRoot: /m\n")
    loaded = load_with_sources(path, {"GPUPLUGIN_LOG_LEVEL": "error"}, {"rescan-seconds": "7"})
    assert [line for line in effective(loaded).splitlines() if "#" in line] == [
        f'  mpsRoot: "/m"  # {path}:3',
        "rescanSeconds: 7.0  # flag --rescan-seconds",
        '  level: "error"  # environment GPUPLUGIN_LOG_LEVEL',
    ]


def test_what_is_shown_of_the_defaults_loads_as_the_defaults(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(effective(load_with_sources(None, {}, {})))
    assert load(path, {}, {}) == Config()


FOLLOWS_ANOTHER = "paths.kubeletSocket"
"""Unset, it follows paths.kubelet, so that it has no default to say."""


@pytest.mark.parametrize(
    "setting", [s for s in SETTINGS if (s.env or s.flags) and s.key != FOLLOWS_ANOTHER], ids=lambda s: s.key
)
def test_every_default_can_be_said_by_variable_and_by_flag(setting):
    value = default(Config(), setting.key)
    text = ",".join(value) if isinstance(value, list) else "" if value is None else inline(value).strip('"')
    for name in setting.env:
        assert load(None, {name: text}, {}) == Config()
    for name in setting.flags:
        _, given = flags.parse("x", "", [f"--{name}={text}"])
        assert load_with_sources(None, {}, given).sources == {setting.key: f"flag --{setting.flags[0]}"}
        assert load(None, {}, given) == Config()


def test_flags_are_told_apart_from_a_programs_own_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--simulate")
    flags.add_to(parser)
    namespace = parser.parse_args(
        ["--simulate=x", "--gds-enabled", "--device-list-strategy=a", "--device-list-strategy", "b"]
    )
    assert flags.collected(namespace) == {"gds-enabled": "true", "device-list-strategy": ["a", "b"]}


def test_a_file_and_unknown_flags_are_passed_on():
    assert flags.parse("x", "", ["--log-levle=debug", "a.yaml"]) == (Path("a.yaml"), {"log-levle": "debug"})


def test_help_names_every_flag_variable_and_default(capsys):
    with pytest.raises(SystemExit) as ended:
        flags.parse("x", "", ["--help"])
    assert ended.value.code == 0
    text = "".join(capsys.readouterr().out.split())
    for setting in (*SETTINGS, CONFIG_FILE):
        for name in (*(f"--{flag}" for flag in setting.flags), *setting.env):
            assert name in text
        if setting.flags and setting.key:
            assert f"default{''.join(inline(default(Config(), setting.key)).split())}[{setting.key}" in text


def test_importing_the_configuration_pulls_in_nothing_dear():
    dear = ["yaml", "typer", "click", "rich", "argparse", "difflib"]
    code = "import sys; import gpuplugin.config as c; c.load(None, {}, {}); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "msgspec" in modules
    assert not set(dear) & set(modules)


def test_settings_cannot_be_changed():
    with pytest.raises(AttributeError):
        Config().log.level = "debug"
    assert msgspec.structs.replace(Config().log, level="debug").level == "debug"
