"""The vendor's catalogue as one table."""

import pytest

from gpuplugin.model.xid import CATALOGUE, XidKind, describe, kind, takes_gpu_away


@pytest.mark.parametrize(
    ("xid", "expected", "away"),
    [
        (13, XidKind.APPLICATION, False),
        (31, XidKind.APPLICATION, False),
        (94, XidKind.APPLICATION, False),
        (43, XidKind.IGNORE, False),
        (63, XidKind.IGNORE, False),
        (92, XidKind.IGNORE, False),
        (64, XidKind.RESET_GPU, True),
        (95, XidKind.RESET_GPU, True),
        (109, XidKind.RESET_GPU, True),
        (48, XidKind.INVESTIGATE, True),
        (79, XidKind.RESTART_MACHINE, True),
        (151, XidKind.RESTART_VM, True),
        (54, XidKind.MECHANICAL, True),
        (78, XidKind.UPDATE_SOFTWARE, True),
        (159, XidKind.UVM, True),
        (154, XidKind.RECOVERY_CHANGED, True),
        (0, XidKind.UNKNOWN, True),
        (173, XidKind.UNKNOWN, True),
    ],
)
def test_the_catalogue_decides(xid, expected, away):
    assert (kind(xid), takes_gpu_away(xid)) == (expected, away)


def test_no_code_stands_under_two_kinds():
    counts = {XidKind.APPLICATION: 48, XidKind.IGNORE: 21, XidKind.RESET_GPU: 14, XidKind.INVESTIGATE: 10}
    found = {each: sum(1 for code in CATALOGUE if kind(code) is each) for each in counts}
    assert found == counts
    assert all(1 <= code <= 172 for code in CATALOGUE)


def test_a_known_code_is_described_with_its_advice():
    assert describe(79) == "XID 79: GPU has fallen off the bus; restart the machine"
    assert describe(500) == "XID 500: not in the catalogue"
