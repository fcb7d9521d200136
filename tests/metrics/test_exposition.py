"""The text format, read back by rules of its specification."""

import gzip
import math
import re

from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.metrics.exposition import Exposition, labels
from gpuplugin.metrics.series import Family, Kind, Sample, Series

_PAIR = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"')
_UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def read_labels(text):
    if not text:
        return {}
    inside = text[1:-1]
    found = list(_PAIR.finditer(inside))
    assert ",".join(match[0] for match in found) == inside
    return {match[1]: re.sub(r'\\[\\"n]', lambda each: _UNESCAPED[each[0]], match[2]) for match in found}


@given(st.dictionaries(st.sampled_from(["a", "pod", "UUID", "GPU_I_ID"]), st.text()))
def test_labels_come_back_as_they_went_but_for_empty_ones(pairs):
    assert read_labels(labels(pairs)) == {name: value for name, value in pairs.items() if value}


@given(st.one_of(st.floats(allow_nan=True, allow_infinity=False), st.integers(0, 1 << 64)))
def test_values_lose_nothing(value):
    shown = written(value).rpartition(" ")[2].strip()
    assert (math.isnan(value) and shown == "nan") or float(shown) == float(value)
    if isinstance(value, int):
        assert int(shown) == value


def written(value):
    return Exposition(lambda: [Family(Series("one", Kind.GAUGE, "text"), [Sample("", value)])]).plain.decode()


def test_a_family_has_its_help_and_type_once_and_none_without_values():
    some = Series("some_total", Kind.COUNTER, "two\nlines and a \\", ("a",))
    none = Series("none", Kind.GAUGE, "text")
    text = Exposition(
        lambda: [Family(some, [Sample('{a="1"}', 1), Sample('{a="2"}', 2.5)]), Family(none, [])]
    ).plain.decode()
    assert text == (
        "# HELP some_total two\\nlines and a \\\\\n# TYPE some_total counter\n"
        'some_total{a="1"} 1\nsome_total{a="2"} 2.5\n'
    )


def test_compressed_it_is_the_same_and_it_is_written_once():
    asked = []

    def families():
        asked.append(True)
        yield Family(Series("one", Kind.GAUGE, "text"), [Sample("", 1)])

    snapshot = Exposition(families)
    assert gzip.decompress(snapshot.gzipped) == snapshot.plain == snapshot.plain
    assert len(asked) == 1
