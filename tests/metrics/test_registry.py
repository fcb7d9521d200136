"""The table of all series: what holds for every row."""

import re

import pytest

from gpuplugin.metrics import registry
from gpuplugin.metrics.series import Kind
from gpuplugin.model.telemetry import Quantity

EVERYTHING = tuple(registry.REGISTRY.values())


def test_no_name_is_given_twice():
    assert len(EVERYTHING) == len(registry.DEVICE_SERIES) + len(registry.OWN_SERIES)


def test_whatever_is_measured_is_shown():
    assert {series.quantity for series in EVERYTHING} - {None} == set(Quantity)


@pytest.mark.parametrize("series", EVERYTHING, ids=lambda series: series.name)
def test_names_labels_and_words_are_as_prometheus_wants_them(series):
    assert re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", series.name)
    assert len(set(series.labels)) == len(series.labels)
    assert series.help[0].isupper() or series.help[0].isdigit()
    assert not series.help.endswith(".")
    if not series.name.startswith("DCGM_FI_"):
        assert series.name.endswith("_total") is (series.kind is Kind.COUNTER)
