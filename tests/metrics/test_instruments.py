"""Counting while things happen."""

from gpuplugin.errors import DeviceHeld, NvmlHung
from gpuplugin.metrics import instruments, registry
from gpuplugin.metrics.exposition import Exposition
from gpuplugin.metrics.instruments import MOST_LABEL_SETS, Counter, Histogram, XidCounts
from gpuplugin.model.health import XidEvent
from tests.metrics.promtool import promtool
from tests.metrics.test_exposition import read_labels


def values(family, suffix=""):
    return {tuple(read_labels(s.labels).values()): s.value for s in family.samples if s.suffix == suffix}


def test_a_counter_counts_by_its_labels():
    counter = Counter(registry.PREPARE_ERRORS)
    for reason in ("device_held", "device_held", "claim_changed"):
        counter.inc("prepare", reason)
    assert values(counter.family()) == {("prepare", "device_held"): 2, ("prepare", "claim_changed"): 1}


def test_a_histogram_has_each_bucket_with_those_before_it():
    histogram = Histogram(registry.ADMISSION, (0.1, 1.0))
    for seconds in (0.1, 0.5, 0.7, 30.0):
        histogram.observe(seconds, "Allocate")
    family = histogram.family()
    assert values(family, "_bucket") == {("Allocate", "0.1"): 1, ("Allocate", "1.0"): 3, ("Allocate", "+Inf"): 4}
    assert values(family, "_sum") == {("Allocate",): 31.3}
    assert values(family, "_count") == {("Allocate",): 4}


def test_labels_beyond_the_limit_are_counted_together():
    counter = Counter(registry.ALLOCATIONS)
    for number in range(MOST_LABEL_SETS + 10):
        counter.inc(f"resource-{number}")
    counter.inc("resource-0")
    assert len(counter.family().samples) == MOST_LABEL_SETS + 1
    assert (counter.count("other"), counter.count("resource-0")) == (10, 2)


def test_xids_are_counted_by_code_and_repeats_are_seen():
    xids = XidCounts()
    for code in (94, 94, 79):
        xids.saw(XidEvent("GPU-1", code), 1)
    xids.saw(XidEvent("GPU-1", 94, 3, 0), 1)
    counts, seen = xids.families()
    assert values(counts) == {("1", "GPU-1", "94"): 2, ("1", "GPU-1", "79"): 1, ("1", "GPU-1", "3", "94"): 1}
    assert values(seen).keys() == values(counts).keys()
    assert xids.last == {("GPU-1", None): 79, ("GPU-1", 3): 94}


def test_errors_are_told_by_their_class():
    assert instruments.reason(DeviceHeld(["gpu-0"], ["uid"])) == "device_held"
    before = instruments.NVML_ERRORS.count("probe", "nvml_hung")
    instruments.nvml_called("probe", 10.0, NvmlHung("probe", 10.0))
    instruments.nvml_called("probe", 0.001, None)
    assert instruments.NVML_ERRORS.count("probe", "nvml_hung") == before + 1


def test_promtool_finds_no_fault_with_them():
    instruments.ADMISSION.observe(0.01, "Allocate")
    instruments.XIDS.saw(XidEvent("GPU-1", 94), 1)
    instruments.nvml_called("probe", 0.001, NvmlHung("probe", 10.0))
    assert promtool("check", "metrics", text=Exposition(instruments.families).plain.decode()) == (0, "")
