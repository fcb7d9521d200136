"""What NVML answers, said as what is wrong: every condition, every wish, every way not to answer."""

from dataclasses import replace

import pytest

from gpuplugin.discovery.findings import finding_of, finding_of_error
from gpuplugin.discovery.nvml import Probe, RecoveryAction
from gpuplugin.errors import GpuLost, NvmlError, NvmlHung
from gpuplugin.model.condition import Condition
from gpuplugin.model.inventory import Fabric, FabricState
from gpuplugin.plan.faults import WISHES, FaultKind

JOINED = Fabric(FabricState.COMPLETED, "0" * 32, 0, 0, 0)
SOUND = Condition(0, rows_pending=False, rows_failed=False, nvlink_recoveries=3, fabric=JOINED, hot=False, braked=False)


def found(now, before=SOUND):
    return dict(finding_of(Probe(RecoveryAction.NONE, now), "", before).found)


def test_a_sound_gpu_has_no_fault():
    assert found(SOUND) == {}
    assert found(Condition()) == {}


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"ecc_uncorrectable": 7}, FaultKind.ECC_UNCORRECTABLE, "uncorrectable memory errors (ECC) since"),
        ({"rows_pending": True}, FaultKind.ROW_REMAP_PENDING, "reset the GPU when it is free"),
        ({"rows_failed": True}, FaultKind.ROW_REMAP_FAILED, "could not be replaced"),
        ({"links_down": (2, 5)}, FaultKind.NVLINK, "NVLinks are down: 2, 5"),
        ({"nvlink_recoveries": 4}, FaultKind.NVLINK, "had to recover"),
        ({"hot": True}, FaultKind.THERMAL, "heat"),
        ({"braked": True}, FaultKind.POWER_BRAKE, "power brake"),
        ({"fabric": replace(JOINED, state=FabricState.IN_PROGRESS)}, FaultKind.FABRIC, "has not been joined yet"),
        ({"fabric": replace(JOINED, status=999)}, FaultKind.FABRIC, "failed (NVML code 999)"),
        ({"fabric": replace(JOINED, health_mask=0b0001)}, FaultKind.FABRIC, "unhealthy: less bandwidth"),
        ({"fabric": replace(JOINED, health_mask=0b010000)}, FaultKind.FABRIC, "unhealthy: its routes are unhealthy"),
        ({"fabric": replace(JOINED, health_mask=5 << 8)}, FaultKind.FABRIC, "unhealthy: it is configured wrongly"),
    ],
)
def test_each_condition_is_one_fault_in_words(change, kind, words):
    (told,) = found(replace(SOUND, **change)).items()
    assert told[0] is kind
    assert words in told[1]


@pytest.mark.parametrize(
    "fabric",
    [
        None,
        replace(JOINED, state=FabricState.NOT_STARTED),
        replace(JOINED, state=FabricState.NOT_SUPPORTED),
        replace(JOINED, health_mask=0b0001_10_10_10_10),
    ],
)
def test_a_fabric_that_is_not_used_or_is_well_is_no_fault(fabric):
    assert found(replace(SOUND, fabric=fabric)) == {}


def test_a_count_of_recoveries_is_no_fault_until_it_grows():
    assert found(SOUND, None) == {}
    assert found(replace(SOUND, nvlink_recoveries=0)) == {}, "the driver was loaded anew"


@pytest.mark.parametrize("action", [action for action in RecoveryAction if action])
def test_each_wish_of_the_driver_is_a_fault_that_names_it(action):
    (told,) = finding_of(Probe(action), "").found.items()
    assert told[0] in WISHES
    assert told[1] == f"the driver asks for: {action.name.lower().replace('_', ' ')}"


def test_a_driver_that_cannot_tell_is_said_to():
    assert finding_of(Probe(RecoveryAction.NONE), "").told
    assert not finding_of(Probe(None), "").told


def test_what_a_look_could_not_read_is_a_fault():
    assert finding_of(Probe(None), "NVML: MEMORY").found == {FaultKind.UNREADABLE: "NVML: MEMORY"}


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (GpuLost("nvmlDeviceGetUUID", 15, "GPU_IS_LOST"), FaultKind.LOST, "NVML: GPU_IS_LOST"),
        (GpuLost("nvmlDeviceGetTemperatureV", 15, "GPU_IS_LOST"), FaultKind.LOST, "NVML: GPU_IS_LOST"),
        (NvmlHung("probe", 10), FaultKind.HUNG, "NVML: no answer within 10 s (probe)"),
        (NvmlError("nvmlX", 999, "UNKNOWN"), FaultKind.SILENT, "NVML: UNKNOWN (nvmlX)"),
    ],
)
def test_each_way_not_to_answer(error, kind, text):
    assert finding_of_error(error).found == {kind: text}
