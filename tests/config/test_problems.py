"""Each kind of mistake, with the exact words that people read."""

from itertools import pairwise
from pathlib import Path

import pytest

from gpuplugin.config import Config, document, load
from gpuplugin.config.reading import leaves
from gpuplugin.config.show import default
from gpuplugin.config.unsupported import UNSUPPORTED
from gpuplugin.errors import ConfigError

NAME = (
    "a resource name of at most 63 characters with its prefix nvidia.com/ (added when missing): lower-case letters,"
    " digits, - and ., beginning and ending with a letter or digit"
)
REPLICATED = "a list of mappings with the keys name, replicas, rename, devices, spread"


@pytest.fixture
def problems(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("c.yaml")

    def of(content: str | bytes) -> list[str]:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(ConfigError) as caught:
            load(path, {}, {})
        return [str(problem) for problem in caught.value.problems]

    return of


MISTAKES = {
    "an unknown key": (
        "log: {levle: info}",
        "c.yaml:1: log: 'levle' is not allowed; allowed: the keys level, format. Did you mean level?",
    ),
    "an unknown key like nothing": (
        "log: {colour: red}",
        "c.yaml:1: log: 'colour' is not allowed; allowed: the keys level, format",
    ),
    "a key in the wrong place": (
        "\nmigStrategy: none",
        (
            "c.yaml:2: (top): 'migStrategy' is not allowed; allowed: the keys version, flags, resources, sharing,"
            " devices, imex, cdi, dra, health, metrics, node, events, labels, profiles, rescanSeconds, paths, log. "
            "Did you mean flags.migStrategy?"
        ),
    ),
    "a key twice": (
        "rescanSeconds: 5\nlog: {}\nrescanSeconds: 6",
        "c.yaml:3: (top): 'rescanSeconds' is not allowed; allowed: each key once. It already stands on line 1",
    ),
    "a key that is a number": (
        "1: x",
        "c.yaml:1: (top): '1' is not allowed; allowed: keys that are text. Put the key in quotes",
    ),
    "a word of another list": (
        "flags: {migStrategy: triple}",
        "c.yaml:1: flags.migStrategy: 'triple' is not allowed; allowed: one of none, single, mixed",
    ),
    "another version": ("version: v2", "c.yaml:1: version: 'v2' is not allowed; allowed: v1"),
    "a number for a boolean": (
        "flags:\n  failOnInitError: 1",
        "c.yaml:2: flags.failOnInitError: 1 is not allowed; allowed: true or false",
    ),
    "a boolean for a number": (
        "rescanSeconds: true",
        "c.yaml:1: rescanSeconds: True is not allowed; allowed: a number from 1 to 86400",
    ),
    "a fraction for a whole number": (
        "health: {recoveryProbes: 1.5}",
        "c.yaml:1: health.recoveryProbes: 1.5 is not allowed; allowed: a whole number from 1 to 1000",
    ),
    "a number too small": (
        "health: {probeSeconds: 0}",
        "c.yaml:1: health.probeSeconds: 0 is not allowed; allowed: a number from 0.1 to 3600",
    ),
    "no number": (
        "health: {quietSeconds: .nan}",
        "c.yaml:1: health.quietSeconds: '.nan' is not allowed; allowed: a number from 0 to 86400",
    ),
    "a relative path": (
        "paths: {sysfs: sys}",
        "c.yaml:1: paths.sysfs: 'sys' is not allowed; allowed: an absolute path without ..",
    ),
    "a path upwards": (
        "paths: {sysfs: /a/../b}",
        "c.yaml:1: paths.sysfs: '/a/../b' is not allowed; allowed: an absolute path without ..",
    ),
    "a control character": (
        'paths: {sysfs: "/a\\0"}',
        "c.yaml:1: paths.sysfs: '/a\\x00' is not allowed; allowed: an absolute path without ..",
    ),
    "a text for a mapping": (
        "log: debug",
        "c.yaml:1: log: 'debug' is not allowed; allowed: a mapping with the keys level, format",
    ),
    "a list for the whole": (
        "- log",
        (
            "c.yaml:1: (top): ['log'] is not allowed; allowed: a mapping with the keys version, flags, resources,"
            " sharing, devices, imex, cdi, dra, health, metrics, node, events, labels, profiles, rescanSeconds, paths,"
            " log"
        ),
    ),
    "a text for a list": (
        "health: {disable: all}",
        "c.yaml:1: health.disable: 'all' is not allowed; allowed: a list of an XID number of 1 or more, or all",
    ),
    "an XID that is none": (
        "health:\n  enable:\n  - 13\n  - thirteen",
        "c.yaml:4: health.enable[1]: 'thirteen' is not allowed; allowed: an XID number of 1 or more, or all",
    ),
    "XID 0": (
        "health: {enable: [0]}",
        "c.yaml:1: health.enable[0]: 0 is not allowed; allowed: an XID number of 1 or more, or all",
    ),
    "a value twice in a list": (
        "health: {disable: [13, 31, '13']}",
        "c.yaml:1: health.disable[2]: '13' is not allowed; allowed: each value once",
    ),
    "an empty list of strategies": (
        "flags: {plugin: {deviceListStrategy: []}}",
        (
            "c.yaml:1: flags.plugin.deviceListStrategy: [] is not allowed; allowed: one or more of envvar,"
            " volume-mounts, cdi-annotations, cdi-cri"
        ),
    ),
    "an unknown strategy alone": (
        "flags: {plugin: {deviceListStrategy: cdi}}",
        (
            "c.yaml:1: flags.plugin.deviceListStrategy: 'cdi' is not allowed; allowed: one of envvar, volume-mounts,"
            " cdi-annotations, cdi-cri"
        ),
    ),
    "a resource of another vendor": (
        "resources: {gpus: [{pattern: '*', name: example.com/gpu}]}",
        (
            f"c.yaml:1: resources.gpus[0].name: 'example.com/gpu' is not allowed; allowed: {NAME}. The part after"
            " nvidia.com/ breaks that"
        ),
    ),
    "a resource name too long": (
        f"resources: {{gpus: [{{pattern: '*', name: {'a' * 53}}}]}}",
        (
            f"c.yaml:1: resources.gpus[0].name: '{'a' * 53}' is not allowed; allowed: {NAME}. nvidia.com/{'a' * 53} has"
            " 64 characters"
        ),
    ),
    "a key that must be there": (
        "resources:\n  gpus:\n  - pattern: '*'",
        f"c.yaml:3: resources.gpus[0].name: None is not allowed; allowed: {NAME}. It must be given",
    ),
    "a pattern that an earlier one covers": (
        "resources:\n  gpus:\n  - {pattern: '*', name: a}\n  - {pattern: 'H*', name: b}",
        (
            "c.yaml:2: resources.gpus[1].pattern: 'H*' is not allowed; allowed: a pattern that no earlier entry covers."
            " The first match counts: remove this entry or move it up"
        ),
    ),
    "sharing without resources": (
        "sharing:\n  timeSlicing: {}",
        f"c.yaml:2: sharing.timeSlicing.resources: None is not allowed; allowed: {REPLICATED}. It must be given",
    ),
    "too few replicas": (
        "sharing: {mps: {resources: [{name: gpu, replicas: 1}]}}",
        "c.yaml:1: sharing.mps.resources[0].replicas: 1 is not allowed; allowed: a whole number from 2 to 4096",
    ),
    "devices that are none": (
        "sharing: {mps: {resources: [{name: gpu, replicas: 2, devices: [GPU-1]}]}}",
        (
            "c.yaml:1: sharing.mps.resources[0].devices: ['GPU-1'] is not allowed; allowed: all, a count of 1 or more,"
            " or a list of GPU indexes, gpu:mig indexes, GPU UUIDs or MIG UUIDs"
        ),
    ),
    "an IMEX channel other than 0": (
        "imex: {channelIDs: [1]}",
        "c.yaml:1: imex.channelIDs[0]: 1 is not allowed; allowed: 0",
    ),
    "a duration that is none": (
        "flags: {gfd: {sleepInterval: soon}}",
        (
            "c.yaml:1: flags.gfd.sleepInterval: 'soon' is not allowed; allowed: a duration such as 90s or 1m30s, a"
            " number of nanoseconds, or infinite"
        ),
    ),
    "a tag": (
        "log: {level: !!python/name:os.system info}",
        (
            "c.yaml:1: log.level: 'tag:yaml.org,2002:python/name:os.system' is not allowed; allowed: values without a"
            " tag of their own"
        ),
    ),
    "a tag on a mapping": (
        "log: !!set {level}",
        "c.yaml:1: log: 'tag:yaml.org,2002:set' is not allowed; allowed: values without a tag of their own",
    ),
    "a tag on a quoted text": (
        "log: {level: !mine 'info'}",
        "c.yaml:1: log.level: '!mine' is not allowed; allowed: values without a tag of their own",
    ),
    "broken YAML": (
        "log: {level: info",
        "c.yaml:1: (top): 'column 18' is not allowed; allowed: valid YAML. Expected ',' or '}', but got '<stream end>'",
    ),
    "an alias of nothing": (
        "log: *nothing",
        "c.yaml:1: (top): 'column 6' is not allowed; allowed: valid YAML. Found undefined alias 'nothing'",
    ),
    "two documents": (
        "log: {}\n---\nlog: {}",
        "c.yaml:3: (top): '2 documents' is not allowed; allowed: one document in a file",
    ),
    "not UTF-8": (
        b"log: {level: \xff}",
        "c.yaml: (top): 'byte 0xff at offset 13' is not allowed; allowed: UTF-8 text. Save the file as UTF-8",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_words(problems, mistake):
    content, expected = MISTAKES[mistake]
    assert problems(content) == [expected]


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"a YAML file that can be read\. It cannot: No such file or directory"):
        load(tmp_path / "none.yaml", {}, {})


def test_a_folder_for_a_file(tmp_path):
    with pytest.raises(ConfigError, match="It cannot: Is a directory"):
        load(tmp_path, {}, {})


def test_a_file_too_large(problems):
    (text,) = problems("#" * (document.BYTES_MAX + 1))
    assert text.endswith("allowed: at most 1048576 bytes")


def test_aliases_cannot_unfold_without_bound(problems):
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in pairwise("abcdefghi")]
    (text,) = problems("\n".join(lines))
    assert text.endswith("allowed: at most 20000 values")


@pytest.mark.parametrize(
    "content",
    [
        "log: &a [*a]",
        "log: &a {<<: *a}",
        "log: &a {<<: [*a, *a]}",
        "log: &a {level: *a}",
        "log: " + "[" * 40 + "]" * 40,
        "[" * 5000,
    ],
)
def test_nesting_cannot_go_on_for_ever(problems, content):
    assert problems(content)[-1].endswith("allowed: at most 32 levels, one inside the other")


@pytest.mark.parametrize("number", ["9" * 5000, "0x" + "f" * 5000, "1e999", "-" + "9" * 30, "0b" + "1" * 70])
def test_a_huge_number_is_refused_and_shown_short(problems, number):
    (text,) = problems(f"health: {{probeSeconds: {number}}}")
    assert text.startswith("c.yaml:1: health.probeSeconds: ")
    assert len(text) < 250


def test_anchors_and_merges_mean_what_yaml_says(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "log: &l {level: debug}\npaths: {cdi: &p /x, proc: *p}\nhealth: {<<: [{probeSeconds: 9}], quietSeconds: 1}"
    )
    config = load(path, {}, {})
    assert (config.log.level, config.paths.proc, config.health.probe_seconds) == ("debug", "/x", 9.0)


def test_what_a_section_says_wins_over_what_is_merged_into_it(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("health: {probeSeconds: 5, <<: {probeSeconds: 9, quietSeconds: 8}}")
    health = load(path, {}, {}).health
    assert (health.probe_seconds, health.quiet_seconds) == (5.0, 8.0)


def test_a_merge_of_something_else_is_refused(problems):
    assert problems("log: {<<: debug}") == [
        "c.yaml:1: log.<<: 'debug' is not allowed; allowed: a mapping, or a list of them"
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0:1", "0:1"),
        ("2020-01-01", "2020-01-01"),
        ("yes", True),
        ("off", False),
        ("~", None),
        ("0x10", 16),
        ("010", 8),
        ("0o10", 8),
        ("0b11", 3),
        ("1_000", 1000),
        ("-5", -5),
        ("08", 8.0),
        ("1.5e3", 1500.0),
        (".5", 0.5),
        (".inf", ".inf"),
        ("0x", "0x"),
        ("_1", "_1"),
        ("0b_", "0b_"),
        ("18446744073709551616", "18446744073709551616"),
        ("v1", "v1"),
    ],
)
def test_plain_scalars_mean_what_they_mean_to_the_references_library(text, value):
    found = document.plain_scalar(text)
    assert (found, type(found)) == (value, type(value))


WANTED = {
    "flags.deviceDiscoveryStrategy": "tegra",
    "flags.gfd.sleepInterval": "30s",
    "cdi.featureFlags": "[some]",
}


@pytest.mark.parametrize("row", UNSUPPORTED, ids=lambda row: row.key)
def test_what_would_need_more_than_this_version_has_is_refused(problems, row):
    depth = row.key.count(".")
    (text,) = problems(f"{row.key.replace('.', ': {')}: {WANTED[row.key]}{'}' * depth}")
    assert text.startswith(f"c.yaml:1: {row.key}: ")
    assert text.endswith(f"; allowed: {row.allowed}. {row.what} not supported by this version of gpuplugin")


@pytest.mark.parametrize("row", UNSUPPORTED, ids=lambda row: row.key)
def test_what_is_refused_exists_and_is_fine_at_its_default(row):
    assert row.key in leaves()
    usual = default(Config(), row.key)
    assert row.fine(() if usual is None else usual)
