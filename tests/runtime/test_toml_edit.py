"""Any TOML file survives: only our keys differ, and every line that is not theirs is still there."""

import tomllib
from pathlib import Path

import pytest
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplugin.errors import RuntimeConfigRefused
from gpuplugin.runtime.toml_edit import read, with_values

PATH = Path("/etc/containerd/config.toml")
CRI = ("plugins", "io.containerd.grpc.v1.cri")
HEADER = '[plugins."io.containerd.grpc.v1.cri"]'

WRITTEN = [
    pytest.param("", f"{HEADER}\nenable_cdi = true\n", id="empty file"),
    pytest.param("version = 2", f"version = 2\n\n{HEADER}\nenable_cdi = true\n", id="no newline at the end"),
    pytest.param(
        f"version = 2\n{HEADER}\n  sandbox_image = 'x' # keep\n\n  [plugins.b]\n",
        f"version = 2\n{HEADER}\n  sandbox_image = 'x' # keep\n  enable_cdi = true\n\n  [plugins.b]\n",
        id="table there: indented like its other keys",
    ),
    pytest.param(
        f"{HEADER}\nenable_cdi   = false   # as shipped\n[z]\n",
        f"{HEADER}\nenable_cdi   = true   # as shipped\n[z]\n",
        id="key there: its spaces and comment stay",
    ),
    pytest.param(
        '[plugins."io.containerd.grpc.v1.cri".containerd]\nx = 1\n',
        f'[plugins."io.containerd.grpc.v1.cri".containerd]\nx = 1\n\n{HEADER}\nenable_cdi = true\n',
        id="only a table below it is there",
    ),
    pytest.param(
        'plugins."io.containerd.grpc.v1.cri".x = 1 # dotted\nb = 1\n',
        'plugins."io.containerd.grpc.v1.cri".x = 1 # dotted\n'
        'plugins."io.containerd.grpc.v1.cri".enable_cdi = true\nb = 1\n',
        id="dotted keys",
    ),
    pytest.param(
        'plugins = { "io.containerd.grpc.v1.cri" = { x = 1 } } # inline\nb = 1\n',
        'plugins = { "io.containerd.grpc.v1.cri" = { x = 1, enable_cdi = true} } # inline\nb = 1\n',
        id="inline tables",
    ),
    pytest.param(
        f"a = 1\r\n{HEADER}\r\nx = 1\r\n[b]\r\n",
        f"a = 1\r\n{HEADER}\r\nx = 1\r\nenable_cdi = true\r\n[b]\r\n",
        id="line ends of Windows",
    ),
]


@pytest.mark.parametrize(("before", "after"), WRITTEN)
def test_everything_else_stays_byte_for_byte(before, after):
    assert with_values(PATH, before, CRI, {"enable_cdi": True}) == after


def test_a_list_keeps_its_lines_and_their_comments():
    before = f"{HEADER}\ncdi_spec_dirs = [\n  '/etc/cdi', # by hand\n  '/var/run/cdi',\n]\n"
    after = with_values(PATH, before, CRI, {"cdi_spec_dirs": ("/etc/cdi", "/var/run/cdi", "/srv/cdi")})
    assert tomllib.loads(after)["plugins"][CRI[1]]["cdi_spec_dirs"] == ["/etc/cdi", "/var/run/cdi", "/srv/cdi"]
    assert set(before.splitlines()) <= set(after.splitlines())


def test_a_broken_file_is_refused_with_its_line():
    with pytest.raises(RuntimeConfigRefused) as refused:
        read(PATH, "version = 2\n[plugins\n")
    assert refused.value.line == 2
    assert str(refused.value).startswith("/etc/containerd/config.toml:2: not TOML: ")


def test_a_file_that_cannot_be_edited_alone_is_refused_with_the_lines_to_add():
    with pytest.raises(
        RuntimeConfigRefused, match=r'\[plugins\] is no table.*set by hand \[plugins."io.*"\]: enable_cdi = true'
    ):
        with_values(PATH, "plugins = 1\n", CRI, {"enable_cdi": True})


NAMES = st.sampled_from(["a", "enable", "with space", "x.y", "plugins", CRI[1], "containerd", "é"])
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**31), 2**31),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12),
    st.dates(),
    st.lists(st.integers(0, 9), max_size=3),
)
DOCUMENTS = st.recursive(
    st.dictionaries(NAMES, SCALARS, max_size=4),
    lambda inner: st.dictionaries(
        NAMES, st.one_of(SCALARS, inner, st.lists(inner, min_size=1, max_size=2)), max_size=4
    ),
    max_leaves=12,
)


@st.composite
def texts(draw):
    """A document as text, with comments and blank lines strewn between its lines, and the CRI's table in most."""
    document = draw(DOCUMENTS)
    if draw(st.booleans()):
        plugins = document.setdefault("plugins", {})
        if isinstance(plugins, dict):
            section = plugins.setdefault(CRI[1], {})
            if isinstance(section, dict):
                section["enable_cdi"] = draw(st.booleans())
    lines = []
    for line in tomlkit.dumps(document).splitlines():
        lines += draw(st.lists(st.sampled_from(["", "# said by hand", "  # é = [1"]), max_size=1))
        lines.append(line)
    return draw(st.sampled_from(["\n", "\r\n"])).join([*lines, ""])


@given(texts())
@settings(deadline=None)
def test_any_document_survives(text):
    before = tomllib.loads(text)
    try:
        after = with_values(PATH, text, CRI, {"enable_cdi": True})
    except RuntimeConfigRefused:
        plugins = before.get("plugins")  # something else is where the table must be: the only reason to refuse
        assert "plugins" in before
        assert not isinstance(plugins, dict) or not isinstance(plugins.get(CRI[1], {}), dict)
        return
    assert with_values(PATH, after, CRI, {"enable_cdi": True}) == after
    now = tomllib.loads(after)
    assert now["plugins"][CRI[1]].pop("enable_cdi") is True
    section = before.setdefault("plugins", {}).setdefault(CRI[1], {})
    section.pop("enable_cdi", None)
    assert now == before
    rest = iter(after.splitlines())
    assert all(line in rest for line in text.splitlines() if "enable_cdi" not in line)
