"""Where a value comes from, which one wins, and what the reference's files, variables and flags mean here."""

from pathlib import Path

import pytest

from gpuplugin.config import Config, load, load_with_sources
from gpuplugin.errors import ConfigError


def written(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def refusals(environ=None, flags=None, file=None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(file, environ or {}, flags or {})
    return [str(problem) for problem in caught.value.problems]


def test_nothing_given_gives_the_defaults():
    assert load(None, {}, {}) == Config()


@pytest.mark.parametrize(
    ("file", "environ", "flag", "expected", "source"),
    [
        (False, False, False, "info", None),
        (True, False, False, "error", "config.yaml:2"),
        (True, True, False, "warning", "environment GPUPLUGIN_LOG_LEVEL"),
        (True, True, True, "debug", "flag --log-level"),
        (False, True, False, "warning", "environment GPUPLUGIN_LOG_LEVEL"),
        (True, False, True, "debug", "flag --log-level"),
    ],
)
def test_flags_win_over_environment_over_file(tmp_path, file, environ, flag, expected, source):
    loaded = load_with_sources(
        written(tmp_path, "log:\n  level: error\n") if file else None,
        {"GPUPLUGIN_LOG_LEVEL": "warning"} if environ else {},
        {"log-level": "debug"} if flag else {},
    )
    assert loaded.config.log.level == expected
    assert loaded.sources.get("log.level", "").removeprefix(f"{tmp_path}/") == (source or "")


def test_a_value_of_a_weaker_source_must_still_be_right(tmp_path):
    path = written(tmp_path, "log:\n  level: loud\n")
    assert refusals(flags={"log-level": "debug"}, file=path) == [
        f"{path}:2: log.level: 'loud' is not allowed; allowed: one of debug, info, warning, error"
    ]


@pytest.mark.parametrize("named", ["argument", "flag", "environment"])
def test_the_file_is_named_by_argument_flag_or_environment(tmp_path, named):
    path = written(tmp_path, "rescanSeconds: 5\n")
    loaded = load_with_sources(
        path if named == "argument" else None,
        {"CONFIG_FILE": "/does/not/exist" if named != "environment" else str(path)},
        {"config-file": str(path)} if named == "flag" else {},
    )
    assert (loaded.config.rescan_seconds, loaded.file) == (5.0, path)


def test_an_empty_config_file_variable_names_no_file():
    assert load_with_sources(None, {"CONFIG_FILE": ""}, {}).file is None


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "---\n", "null\n", "{}\n", "flags:\nsharing:\n  mps:\n"])
def test_a_file_that_sets_nothing_is_fine(tmp_path, text):
    assert load(written(tmp_path, text), {}, {}) == Config()


@pytest.mark.parametrize("text", ["1", "t", "T", "true", "TRUE", "True"])
def test_true_in_the_environment_is_what_go_reads_as_true(text):
    assert load(None, {"FAIL_ON_INIT_ERROR": text}, {}).flags.fail_on_init_error is True


@pytest.mark.parametrize("text", ["0", "f", "F", "false", "FALSE", "False", ""])
def test_false_in_the_environment_is_what_go_reads_as_false_and_nothing_at_all(text):
    assert load(None, {"FAIL_ON_INIT_ERROR": text}, {}).flags.fail_on_init_error is False


@pytest.mark.parametrize("text", ["yes", "no", "on", "tRue", " true", "2"])
def test_other_words_are_no_booleans_in_the_environment(text):
    assert refusals({"FAIL_ON_INIT_ERROR": text}) == [
        f"environment FAIL_ON_INIT_ERROR: flags.failOnInitError: {text!r} is not allowed; allowed: true or false"
    ]


def test_the_device_roots_default_to_the_drivers():
    assert load(None, {"NVIDIA_DRIVER_ROOT": "/run/nvidia/driver", "NVIDIA_DEV_ROOT": ""}, {}).flags.dev_root == Path(
        "/run/nvidia/driver"
    )
    assert load(None, {"NVIDIA_DRIVER_ROOT": "/run/nvidia/driver"}, {"dev-root": "/"}).flags.dev_root == Path("/")


@pytest.mark.parametrize(
    ("environ", "flags"),
    [
        ({"DEVICE_LIST_STRATEGY": "envvar, cdi-cri"}, {}),
        ({}, {"device-list-strategy": "envvar,cdi-cri"}),
        ({"DEVICE_LIST_STRATEGY": "cdi-cri"}, {"device-list-strategy": ["envvar", "cdi-cri"]}),
    ],
)
def test_lists_are_split_at_commas_and_replaced_as_a_whole(environ, flags):
    assert load(None, environ, flags).flags.plugin.device_list_strategy == ("envvar", "cdi-cri")


def test_one_strategy_alone_may_stand_for_a_list(tmp_path):
    path = written(tmp_path, "flags: {plugin: {deviceListStrategy: envvar}}")
    assert load(path, {}, {}).flags.plugin.device_list_strategy == ("envvar",)


def test_kubelets_socket_is_in_its_folder_unless_named():
    assert str(Config().paths.registration_socket) == "/var/lib/kubelet/device-plugins/kubelet.sock"
    assert str(load(None, {"KUBELET_SOCKET": "/k/s"}, {}).paths.registration_socket) == "/k/s"


def test_two_names_of_one_setting_may_agree_but_not_contradict():
    same = {"CONTAINER_DRIVER_ROOT": "/a", "DRIVER_ROOT_CTR_PATH": "/a"}
    assert load(None, same, {}).flags.plugin.container_driver_root == "/a"
    (text,) = refusals({**same, "DRIVER_ROOT_CTR_PATH": "/b"})
    assert text == (
        "environment DRIVER_ROOT_CTR_PATH: flags.plugin.containerDriverRoot: '/b' is not allowed; allowed: the same"
        " value under both names. environment CONTAINER_DRIVER_ROOT says '/a'; both mean the same setting,"
        " so remove one"
    )


def test_a_variable_that_begins_like_ours_and_is_none_is_a_mistake():
    (text,) = refusals({"GPUPLUGIN_LOG_LEVELS": "debug"})
    assert text.startswith("environment GPUPLUGIN_LOG_LEVELS: (top): 'GPUPLUGIN_LOG_LEVELS' is not allowed; allowed: ")
    assert text.endswith("Did you mean GPUPLUGIN_LOG_LEVEL?")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GPUPLUGIN_SERVICE_HOST", "10.0.0.1"),
        ("GPUPLUGIN_SERVICE_PORT", "9400"),
        ("GPUPLUGIN_SERVICE_PORT_METRICS", "9400"),
        ("GPUPLUGIN_PORT", "tcp://10.0.0.1:9400"),
        ("GPUPLUGIN_PORT_9400_TCP", "tcp://10.0.0.1:9400"),
        ("GPUPLUGIN_PORT_9400_TCP_ADDR", "10.0.0.1"),
        ("GPUPLUGIN_METRICS_SERVICE_HOST", "10.0.0.1"),
        ("GPUPLUGIN_METRICS_PORT", "tcp://10.0.0.1:9400"),
        ("GPUPLUGIN_NVML_STATE", "/x"),
        ("PATH", "/bin"),
        ("NVIDIA_VISIBLE_DEVICES", "all"),
    ],
)
def test_what_kubernetes_or_others_put_into_the_environment_is_left_alone(name, value):
    assert load(None, {name: value}, {}) == Config()


def test_an_unknown_flag_is_refused_with_the_nearest():
    (text,) = refusals(flags={"mig-stratgy": "none"})
    assert text.startswith("flag --mig-stratgy: (top): 'mig-stratgy' is not allowed; allowed: the flags cdi-annotation")
    assert text.endswith("Did you mean mig-strategy?")


def test_problems_of_all_sources_come_together(tmp_path):
    path = written(tmp_path, "log: {level: loud}\nrescanSeconds: 0\n")
    found = refusals({"MIG_STRATEGY": "some"}, {"health-probe-seconds": "fast"}, path)
    assert [text.partition(" is not")[0] for text in found] == [
        f"{path}:1: log.level: 'loud'",
        f"{path}:2: rescanSeconds: 0",
        "environment MIG_STRATEGY: flags.migStrategy: 'some'",
        "flag --health-probe-seconds: health.probeSeconds: 'fast'",
    ]


def test_the_first_matching_pattern_names_a_gpu(tmp_path):
    text = "resources:\n  gpus:\n  - {pattern: '*H100*80GB*', name: h100}\n  - {pattern: 'Tesla T4', name: t4}\n"
    resources = load(written(tmp_path, text), {}, {}).resources
    models = ("NVIDIA H100 80GB HBM3", "Tesla T4", "Tesla T40", "NVIDIA H200")
    assert [resources.gpu(model) for model in models] == [
        "nvidia.com/h100",
        "nvidia.com/t4",
        "nvidia.com/gpu",
        "nvidia.com/gpu",
    ]


SPELLED_OUT = """
version: v1
flags:
  migStrategy: "none"
  failOnInitError: true
  nvidiaDriverRoot: "/"
  plugin:
    passDeviceSpecs: false
    deviceListStrategy: "envvar"
    deviceIDStrategy: "uuid"
"""


def test_a_file_that_spells_out_the_references_defaults_loads(tmp_path):
    config = load(written(tmp_path, SPELLED_OUT), {}, {})
    assert config.flags.plugin.device_list_strategy == ("envvar",)
    assert config.flags.fail_on_init_error


def test_a_file_shared_with_feature_discovery_loads_when_it_asks_for_nothing_new(tmp_path):
    gfd = "  gfd: {oneshot: false, noTimestamp: false, sleepInterval: 1m, outputFile: null}\n"
    assert load(written(tmp_path, SPELLED_OUT + gfd), {}, {}).flags.gfd.sleep_interval == "1m"


def test_variables_of_the_projects_tests_are_no_settings():
    assert load(None, {"GPUPLUGIN_TEST_MORE": "1"}, {}) == Config()
