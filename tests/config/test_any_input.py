"""Whatever somebody gives, the answer is a configuration or a ConfigError whose every problem prints on one line."""

import string

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuplugin.config import Config, document, load
from gpuplugin.config.reading import Reading, leaves
from gpuplugin.config.rules import RESOURCE_PREFIX, resource_name, seconds
from gpuplugin.config.table import SETTINGS
from gpuplugin.errors import ConfigError

SETTABLE = [setting for setting in SETTINGS if setting.env]
NAMES = sorted({part for key in leaves() for part in key.split(".")} | {"pattern", "name", "replicas", "devices"})
LIKELY = ["none", "all", "/", "cdi-cri", "envvar", "nvidia.com/gpu", "v1", "60s", 0, 1, 2, 13, True, None, 2.5]

scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.sampled_from(LIKELY))
keys = st.one_of(st.sampled_from(NAMES), st.text())
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4))


def outcome(path, environ, flags) -> Config | ConfigError:
    try:
        return load(path, environ, flags)
    except ConfigError as refused:
        return refused


def loads_or_is_refused(path, environ=None, flags=None) -> None:
    found = outcome(path, environ or {}, flags or {})
    if isinstance(found, Config):
        return
    assert found.problems
    for problem in found.problems:
        text = str(problem)
        text.encode()
        assert len(text.splitlines()) == 1
        assert problem.source
        assert problem.allowed


any_file = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)


@any_file
@given(st.dictionaries(keys, values, max_size=6))
def test_any_mapping(tmp_path, content):
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(content, allow_unicode=True), errors="surrogatepass", encoding="utf-8")
    loads_or_is_refused(path)


@any_file
@given(st.data())
def test_any_value_under_any_key(tmp_path, data):
    content: dict = {}
    for key in data.draw(st.lists(st.sampled_from(sorted(leaves())), max_size=8, unique=True)):
        *sections, last = key.split(".")
        place = content
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = data.draw(values)
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    loads_or_is_refused(path)


@any_file
@given(st.one_of(st.binary(), st.text(alphabet="[]{}:,&*!<>|#\n -'\"\\xuU0a%@`?~", max_size=40).map(str.encode)))
def test_any_bytes(tmp_path, content):
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    loads_or_is_refused(path)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from([name for s in SETTABLE for name in s.env]), st.text(), max_size=4),
    st.dictionaries(st.text(string.ascii_uppercase + "_").map("GPUPLUGIN_".__add__), st.text(), max_size=2),
    st.dictionaries(
        st.one_of(st.text(), st.sampled_from([n for s in SETTABLE for n in s.flags])), st.text(), max_size=4
    ),
)
def test_any_environment_and_flags(environ, more, flags):
    loads_or_is_refused(
        None, {**environ, **more}, {name: text for name, text in flags.items() if name != "config-file"}
    )


@given(st.text())
def test_a_scalar_is_read_without_raising(text):
    document.plain_scalar(text)


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers_keep_their_value(number):
    assert document.plain_scalar(str(number)) == number


@given(st.text(string.ascii_lowercase + string.digits + "-.", min_size=1, max_size=60))
def test_a_resource_name_is_prefixed_once_and_then_stays(text):
    try:
        name = resource_name(text)
    except ValueError:
        return
    assert name == RESOURCE_PREFIX + text
    assert resource_name(name) == name
    assert len(name) <= 63


@given(st.integers(0, 1000), st.integers(0, 59), st.integers(0, 59))
def test_durations_add_up(hours, minutes, rest):
    assert seconds(f"{hours}h{minutes}m{rest}s") == hours * 3600 + minutes * 60 + rest


def test_a_problem_in_a_strange_key_prints(tmp_path):
    root = document.parse('"a\\nb": {"\\ud800": 1}\nlog: {"\\ud800x": 1, "\\ud800x": 2}', "f").root
    reading = Reading()
    reading.tree(root)
    assert all(str(problem).isprintable() for problem in reading.problems)
