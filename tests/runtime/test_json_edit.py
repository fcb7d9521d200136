import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.errors import RuntimeConfigRefused
from gpuplugin.runtime.json_edit import read, with_value

PATH = Path("/etc/docker/daemon.json")

WRITTEN = [
    pytest.param("", '{\n  "features": {\n    "cdi": true\n  }\n}\n', id="no file"),
    pytest.param("{}\n", '{\n  "features": {\n    "cdi": true\n  }\n}\n', id="empty object"),
    pytest.param('{"a": [1,2]}', '{"a": [1,2], "features": {"cdi": true}}', id="one line"),
    pytest.param(
        '{\n    "a": [1,\n 2],\n    "b": {}\n}\n',
        '{\n    "a": [1,\n 2],\n    "b": {},\n    "features": {\n        "cdi": true\n    }\n}\n',
        id="laid out by four",
    ),
    pytest.param(
        '{\n\t"features": {\n\t\t"buildkit": true\n\t},\n\t"b": 1\n}',
        '{\n\t"features": {\n\t\t"buildkit": true,\n\t\t"cdi": true\n\t},\n\t"b": 1\n}',
        id="features there, by tabs",
    ),
    pytest.param(
        '{"features": {"cdi":  false , "x": 1}}', '{"features": {"cdi":  true , "x": 1}}', id="switched off before"
    ),
]


@pytest.mark.parametrize(("before", "after"), WRITTEN)
def test_everything_else_stays_byte_for_byte(before, after):
    assert with_value(PATH, before, ("features", "cdi"), value=True) == after


REFUSED = [
    ('{\n  "a": 1,\n}\n', 3, "not JSON"),
    ("[1]", None, "not a JSON object"),
    ('{"a": 1, "a": 2}', None, "a is there twice"),
    ('{"features": 1}', None, "features is 1, allowed is an object"),
]


@pytest.mark.parametrize(("text", "line", "why"), REFUSED)
def test_what_cannot_be_edited_is_refused(text, line, why):
    with pytest.raises(RuntimeConfigRefused, match=why) as refused:
        with_value(PATH, text, ("features", "cdi"), value=True)
    assert refused.value.line == line


KEYS = st.text(max_size=5) | st.sampled_from(["features", "cdi"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4), st.sampled_from([None, 2, 4, "\t"]), st.booleans())
def test_any_document_survives(document, indent, ascii_only):
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only)
    if not isinstance(document.get("features", {}), dict):
        return
    after = with_value(PATH, text, ("features", "cdi"), value=True)
    now = read(PATH, after)
    assert now["features"].pop("cdi") is True
    document.setdefault("features", {}).pop("cdi", None)
    assert now == document
    assert list(now) == list(document)
    assert with_value(PATH, after, ("features", "cdi"), value=True) == after
