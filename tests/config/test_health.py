"""DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS, laid over the catalogue."""

import pytest

from gpuplugin.config import load

APPLICATION, RESET, UNKNOWN = 13, 109, 4242


def checks(disable=None, enable=None):
    given = {"DP_DISABLE_HEALTHCHECKS": disable, "DP_ENABLE_HEALTHCHECKS": enable}
    return load(None, {name: value for name, value in given.items() if value is not None}, {}).health.checks


@pytest.mark.parametrize(
    ("disable", "enable", "handled", "off"),
    [
        (None, None, {RESET, 79, UNKNOWN}, False),
        ("", "", {RESET, 79, UNKNOWN}, False),
        ("all", None, set(), True),
        ("ALL", None, set(), True),
        ("xids", None, set(), True),
        ("13,xids", None, set(), True),
        ("all", "79", {79}, False),
        ("109, 79,", None, {UNKNOWN}, False),
        ("79", "79", {RESET, 79, UNKNOWN}, False),
        (None, "13", {APPLICATION, RESET, 79, UNKNOWN}, False),
        (None, "all", {APPLICATION, RESET, 79, UNKNOWN}, False),
        ("all", "all", {APPLICATION, RESET, 79, UNKNOWN}, False),
        ("79", "xids", {APPLICATION, RESET, 79, UNKNOWN}, False),
    ],
)
def test_enable_wins_over_disable_over_the_catalogue(disable, enable, handled, off):
    found = checks(disable, enable)
    assert {xid for xid in (APPLICATION, RESET, 79, UNKNOWN) if found.handles(xid)} == handled
    assert found.off is off
