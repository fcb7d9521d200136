"""The table of faults: complete, and said of each on each surface what belongs there."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.config.settings import Health as Settings
from gpuplugin.config.settings import HealthPolicies
from gpuplugin.model import xid
from gpuplugin.model.ids import GpuUuid
from gpuplugin.plan.event_budget import AGAIN_SECONDS, BURST, REFILL_SECONDS, EventBudget
from gpuplugin.plan.faults import LONGEST_LABEL, TABLE, FaultKind, Policy, Surface, Told, as_label, cells, policy
from gpuplugin.plan.health import Finding, Health, Recovery, after_probe, with_cordons
from gpuplugin.plan.node_condition import LONGEST_MESSAGE, node_health
from tests.plan.machine import gpu, inventory

GPU = GpuUuid("GPU-0")
WITHDRAWING = [Policy.UNHEALTHY, Policy.RESET, Policy.REBOOT]
CONFIGURED = [kind for kind in FaultKind if kind not in (FaultKind.CORDONED, FaultKind.NVML)]


def test_the_table_has_a_row_for_each_kind_with_a_reason_of_its_own():
    assert set(TABLE) == set(FaultKind)
    reasons = [row.reason for row in TABLE.values()]
    assert len(set(reasons)) == len(reasons)
    assert all(reason.isalnum() and reason[0].isupper() for reason in reasons)
    assert all(row.ends for row in TABLE.values())


@pytest.mark.parametrize("kind", CONFIGURED)
def test_each_kind_has_a_policy_in_the_configuration(kind):
    assert kind.name.lower() in HealthPolicies.__struct_fields__
    assert policy(kind, Settings()) in Policy


def test_the_configuration_has_no_policy_for_what_is_no_kind():
    assert set(HealthPolicies.__struct_fields__) == {kind.name.lower() for kind in CONFIGURED}


@pytest.mark.parametrize("kind", CONFIGURED)
def test_what_is_configured_is_made_of_it(kind):
    field = next(one for one in msgspec.structs.fields(HealthPolicies) if one.name == kind.name.lower())
    for value in ("unhealthy", "reset", "reboot"):
        settings = msgspec.convert({"policies": {field.encode_name: value}}, Settings)
        assert policy(kind, settings) is Policy(value)


@pytest.mark.parametrize("kind", [FaultKind.LOST, FaultKind.HUNG, FaultKind.SILENT, FaultKind.UNREADABLE])
@pytest.mark.parametrize("value", ["ignore", "warn"])
def test_a_gpu_that_cannot_be_talked_to_cannot_stay_in_service(kind, value):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"policies": {kind.value: value}}, Settings)


@pytest.mark.parametrize(
    ("code", "expected"), [(79, Policy.REBOOT), (95, Policy.RESET), (74, Policy.UNHEALTHY), (9999, Policy.UNHEALTHY)]
)
def test_of_an_xid_is_made_what_the_catalogue_advises(code, expected):
    assert policy(FaultKind.XID, Settings(), xid.kind(code)) is expected


TAINTS = {
    FaultKind.NVML: "gpuplugin.io/unknown=it-broke",
    **{kind: "gpuplugin.io/unhealthy=it-broke" for kind in FaultKind if kind is not FaultKind.NVML},
}
LEVELS = {kind: taint.partition("/")[2].partition("=")[0] for kind, taint in TAINTS.items()}
REASONS = {
    FaultKind.XID: "GpuXid",
    FaultKind.LOST: "GpuLost",
    FaultKind.HUNG: "GpuHung",
    FaultKind.SILENT: "GpuSilent",
    FaultKind.UNREADABLE: "GpuUnreadable",
    FaultKind.RESET_WANTED: "GpuResetWanted",
    FaultKind.REBOOT_WANTED: "GpuRebootWanted",
    FaultKind.ACTION_WANTED: "GpuActionWanted",
    FaultKind.ECC_UNCORRECTABLE: "GpuEccErrors",
    FaultKind.ROW_REMAP_PENDING: "GpuRowRemapPending",
    FaultKind.ROW_REMAP_FAILED: "GpuRowRemapFailed",
    FaultKind.NVLINK: "GpuNvlink",
    FaultKind.FABRIC: "GpuFabric",
    FaultKind.THERMAL: "GpuHot",
    FaultKind.POWER_BRAKE: "GpuPowerBrake",
    FaultKind.CORDONED: "GpuCordoned",
    FaultKind.NVML: "NvmlUnknown",
}
LINES = {FaultKind.XID: "XID", FaultKind.NVML: "the GPUs cannot be looked at: trying again"}


@pytest.mark.parametrize("surface", list(Surface))
@pytest.mark.parametrize("kind", list(FaultKind))
@pytest.mark.parametrize("made_of_it", list(Policy))
def test_every_cell(kind, surface, made_of_it):
    expected = {
        Surface.DEVICE_PLUGIN: LEVELS[kind] if made_of_it in WITHDRAWING else None,
        Surface.TAINT: TAINTS[kind] if made_of_it in WITHDRAWING else None,
        Surface.STREAM: "it broke",
        Surface.CONDITION: REASONS[kind],
        Surface.EVENT: f"Warning {REASONS[kind]}",
        Surface.METRIC: kind.value,
        Surface.LOG: LINES.get(kind, "fault"),
    }[surface]
    said = cells(Told(kind, made_of_it, GPU, "it broke", 0.0))
    assert said.get(surface) == (None if made_of_it is Policy.IGNORE else expected)


@given(st.text())
def test_any_text_becomes_a_labels_value(text):
    value = as_label(text)
    assert len(value) <= LONGEST_LABEL
    assert value == "" or (value[0].isalnum() and value[-1].isalnum())


# -- the Node's condition ---------------------------------------------------

MACHINE = inventory(gpu(0), gpu(1))


def ill(kind, made_of_it, uuid="GPU-0", health=None):
    found = Finding({kind: "it broke"})
    known = health or Health()
    for now in itertools.count(TABLE[kind].begins):
        known = after_probe(known, GpuUuid(uuid), found, now, Recovery(3, 60), lambda _: made_of_it)
        if any(told.kind is kind for told in known.told):
            return known
    raise AssertionError


def test_all_well():
    assert node_health(MACHINE, Health()) == type(node_health(MACHINE, Health()))(
        "True", "AllGpusHealthy", "2 GPUs are in service"
    )


@pytest.mark.parametrize(
    ("health", "status", "reason", "words"),
    [
        (ill(FaultKind.LOST, Policy.RESET), "False", "GpuLost", "GPU 0: it broke (a reset is wanted)"),
        (ill(FaultKind.THERMAL, Policy.WARN), "True", "GpuHot", "GPU 0: it broke"),
        (with_cordons(Health(), {GPU: "fans"}, 0), "False", "GpuCordoned", "GPU 0: cordoned: fans"),
        (Health().with_unknown("NVML is stuck"), "Unknown", "NvmlUnknown", "NVML is stuck"),
        (
            ill(FaultKind.HUNG, Policy.REBOOT, "GPU-1", ill(FaultKind.LOST, Policy.RESET)),
            "False",
            "GpuHung",
            "GPU 0: it broke (a reset is wanted); GPU 1: it broke (a reboot is wanted)",
        ),
    ],
)
def test_the_condition_is_the_worst_and_tells_everything(health, status, reason, words):
    told = node_health(MACHINE, health)
    assert (told.status, told.reason, told.message) == (status, reason, words)


def test_a_message_has_an_end():
    many = inventory(*(gpu(index) for index in range(16)))
    health = with_cordons(Health(), {one.uuid: "x" * 200 for one in many.gpus}, 0)
    assert len(node_health(many, health).message) == LONGEST_MESSAGE


# -- how many Events --------------------------------------------------------


def test_the_same_is_told_again_only_after_a_while():
    budget = EventBudget()
    assert budget.allows("a", 0)
    assert not budget.allows("a", AGAIN_SECONDS - 1)
    assert budget.allows("b", AGAIN_SECONDS - 1)
    assert budget.allows("a", AGAIN_SECONDS)
    assert budget.take_left_out() == 1
    assert budget.take_left_out() == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 100)), max_size=200))
def test_never_more_than_a_burst_and_what_time_brings(steps):
    budget, now, written = EventBudget(), 0.0, 0
    for what, pause in steps:
        now += pause
        written += budget.allows(what, now)
    assert written <= BURST + now / REFILL_SECONDS + 1e-6
