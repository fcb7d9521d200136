"""Faults come from XIDs and probes, and go with evidence and after a while."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.model.health import HEALTHY, DeviceHealth, Level, XidEvent
from gpuplugin.model.ids import GpuUuid
from gpuplugin.plan.health import Finding, Health, Recovery, Scope, after_probe, after_xid, forget

A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")
RECOVERY = Recovery(passes=3, quiet_seconds=60)
CLEAN, CLEAN_UNTOLD = Finding(asks=""), Finding()


def test_an_xid_takes_away_its_gpu_only():
    health = after_xid(Health(), XidEvent(A, 79), "XID 79: fallen off the bus", 0)
    assert health.of(A) == DeviceHealth(Level.UNHEALTHY, "XID 79: fallen off the bus")
    assert health.of(B) == HEALTHY


@pytest.mark.parametrize(
    ("event", "device", "hit"),
    [
        (XidEvent(A, 94), (A, None, None), True),
        (XidEvent(A, 94), (A, 3, 0), True),
        (XidEvent(A, 94, 3), (A, 3, 0), True),
        (XidEvent(A, 94, 3), (A, 4, 0), False),
        (XidEvent(A, 94, 3, 1), (A, 3, 1), True),
        (XidEvent(A, 94, 3, 1), (A, 3, 0), False),
        (XidEvent(A, 94, 3, 1), (A, None, None), True),
        (XidEvent(A, 94, 3, 1), (B, 3, 1), False),
    ],
)
def test_an_instance_scope_reaches_that_instance_and_the_whole_gpu(event, device, hit):
    health = after_xid(Health(), event, "x", 0)
    assert health.of(*device).usable is not hit


def test_recovery_needs_clean_probes_in_a_row():
    health = after_xid(Health(), XidEvent(A, 95), "XID 95", 0)
    for now in (1, 2):
        health = after_probe(health, A, CLEAN, now, RECOVERY)
        assert not health.of(A).usable
    health = after_probe(health, A, Finding("GPU is lost"), 3, RECOVERY)
    for now in (4, 5):
        health = after_probe(health, A, CLEAN, now, RECOVERY)
        assert not health.of(A).usable, "a failed probe starts the count afresh"
    assert after_probe(health, A, CLEAN, 6, RECOVERY).of(A) == HEALTHY


def test_where_the_driver_cannot_tell_a_quiet_time_is_needed_as_well():
    health = after_xid(Health(), XidEvent(A, 95), "XID 95", 0)
    for now in (1, 2, 3, 4, 59):
        health = after_probe(health, A, CLEAN_UNTOLD, now, RECOVERY)
        assert not health.of(A).usable
    assert after_probe(health, A, CLEAN_UNTOLD, 60, RECOVERY).of(A) == HEALTHY


def test_what_the_driver_asks_for_keeps_the_gpu_away_and_is_told():
    health = after_xid(Health(), XidEvent(A, 95), "XID 95", 0)
    for now in range(1, 9):
        health = after_probe(health, A, Finding(asks="GPU reset"), now, RECOVERY)
    assert health.of(A).reason == "XID 95; the driver asks for: GPU reset"


def test_a_probe_alone_can_start_a_fault():
    health = after_probe(Health(), A, Finding("GPU is lost"), 0, RECOVERY)
    assert health.of(A).reason == "GPU is lost"
    assert after_probe(Health(), A, Finding(asks="node reboot"), 0, RECOVERY).of(A).reason.endswith("node reboot")


def test_a_lost_gpu_with_a_fault_of_one_instance_is_lost_as_a_whole():
    health = after_xid(Health(), XidEvent(A, 94, 3, 0), "XID 94", 0)
    health = after_probe(health, A, Finding("GPU is lost"), 1, RECOVERY)
    assert not health.of(A, 4, 0).usable


def test_a_repeated_xid_starts_recovery_afresh():
    health = after_xid(Health(), XidEvent(A, 95), "XID 95", 0)
    health = after_probe(health, A, CLEAN, 1, RECOVERY)
    health = after_xid(health, XidEvent(A, 95), "XID 95", 2)
    for now in (3, 4):
        health = after_probe(health, A, CLEAN, now, RECOVERY)
    assert not health.of(A).usable


def test_unknown_covers_everything_and_hides_nothing_when_it_goes():
    faulty = after_xid(Health(), XidEvent(A, 79), "XID 79", 0)
    unknown = faulty.with_unknown("NVML does not answer")
    assert unknown.of(B) == DeviceHealth(Level.UNKNOWN, "NVML does not answer")
    assert unknown.with_unknown("") == faulty


def test_a_gpu_that_is_gone_takes_its_faults_with_it():
    health = after_xid(after_xid(Health(), XidEvent(A, 79), "x", 0), XidEvent(B, 79), "y", 0)
    assert set(forget(health, frozenset({B})).faults) == {Scope(B)}
    assert forget(health, frozenset({A, B})) is health


steps = st.lists(
    st.one_of(
        st.tuples(st.just("xid"), st.sampled_from([A, B])),
        st.tuples(st.sampled_from(["clean", "untold", "lost", "asks"]), st.sampled_from([A, B])),
    ),
    max_size=40,
)


@given(steps)
def test_health_is_never_given_back_without_the_passes_and_never_spreads(history):
    health, clean = Health(), {A: RECOVERY.passes, B: RECOVERY.passes}
    findings = {"clean": CLEAN, "untold": CLEAN_UNTOLD, "lost": Finding("lost"), "asks": Finding(asks="reset")}
    for now, (what, gpu) in enumerate(history):
        other = B if gpu is A else A
        before = health.of(other)
        if what == "xid":
            health, clean[gpu] = after_xid(health, XidEvent(gpu, 79), "XID 79", now), 0
        else:
            health = after_probe(health, gpu, findings[what], now, RECOVERY)
            clean[gpu] = clean[gpu] + 1 if what in ("clean", "untold") else 0
        assert health.of(other) == before
        if clean[gpu] < RECOVERY.passes:
            assert not health.of(gpu).usable
        elif what == "clean":
            assert health.of(gpu).usable
