"""dcgm-exporter's custom list."""

import pytest

from gpuplugin.errors import CollectorsInvalid
from gpuplugin.metrics.collectors import read
from gpuplugin.metrics.series import Kind

LIST = """\
# Format
# If line starts with a '#' it is considered a comment
# DCGM FIELD, Prometheus metric type, help message

# Clocks
DCGM_FI_DEV_SM_CLOCK,  gauge, SM clock frequency (in MHz).
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, counter, "Total energy, since boot (in mJ)."
DCGM_FI_DEV_VGPU_LICENSE_STATUS, gauge, vGPU License status
DCGM_FI_PROF_PCIE_TX_BYTES, counter, Total bytes sent.
DCGM_FI_DRIVER_VERSION, label, Driver Version
DCGM_FI_DEV_SERIAL, label, Serial
"""


def test_what_we_have_is_shown_as_the_list_says_and_what_we_have_not_is_named():
    chosen = read(LIST, "custom.csv")
    assert [(one.name, one.kind, one.help) for one in chosen.series] == [
        ("DCGM_FI_DEV_SM_CLOCK", Kind.GAUGE, "SM clock frequency (in MHz)."),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", Kind.COUNTER, "Total energy, since boot (in mJ)."),
        ("DCGM_FI_PROF_PCIE_TX_BYTES", Kind.COUNTER, "Total bytes sent."),
    ]
    assert chosen.missing == ("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "DCGM_FI_DEV_SERIAL")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("DCGM_FI_DEV_SM_CLOCK, gauge", "line 2: 'DCGM_FI_DEV_SM_CLOCK, gauge' has 2 columns; allowed: field, type"),
        ("DCGM_FI_DEV_SM_CLOCK, histogram, x", "type 'histogram' is not allowed; allowed: gauge, counter, label"),
        ("DCGM_FI_DEV_SM_CLOCK, gauge, a, b", "has 4 columns"),
    ],
)
def test_a_line_that_makes_no_sense_is_named(line, words):
    with pytest.raises(CollectorsInvalid) as refused:
        read(f"# list\n{line}\n", "custom.csv")
    assert words in str(refused.value)
    assert str(refused.value).startswith("custom.csv: line 2: ")


def test_an_empty_list_is_one_of_nothing():
    assert read("", "custom.csv").series == ()
