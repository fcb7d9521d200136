"""Faults come from XIDs and probes, and go with evidence and after a while."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.model.health import HEALTHY, DeviceHealth, Level, XidEvent
from gpuplugin.model.ids import GpuUuid
from gpuplugin.plan.faults import TABLE, FaultKind, Policy
from gpuplugin.plan.health import Finding, Health, Recovery, after_probe, after_xid, forget, with_cordons

A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")
RECOVERY = Recovery(passes=3, quiet_seconds=60)
CLEAN, CLEAN_UNTOLD = Finding(), Finding(told=False)
LOST, ASKS = Finding({FaultKind.LOST: "GPU is lost"}), Finding({FaultKind.RESET_WANTED: "asks for: reset"})
LOOK_INTO, RESET, RESTART = 74, 95, 79  # of the catalogue's kinds


def xid(code, gpu=A, now=0.0, health=None):
    return after_xid(health or Health(), XidEvent(gpu, code), f"XID {code}", now)


def probed(health, *findings, start=1.0, gpu=A, step=1.0, policy=lambda _: Policy.UNHEALTHY):
    for number, finding in enumerate(findings):
        health = after_probe(health, gpu, finding, start + number * step, RECOVERY, policy)
    return health


def test_an_xid_takes_away_its_gpu_only():
    health = xid(RESTART)
    assert health.of(A) == DeviceHealth(Level.UNHEALTHY, "XID 79")
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
    health = probed(xid(LOOK_INTO), CLEAN, CLEAN)
    assert not health.of(A).usable
    health = probed(health, Finding({FaultKind.SILENT: "errors"}), CLEAN, CLEAN, start=3)
    assert not health.of(A).usable, "a failed probe starts the count afresh"
    assert probed(health, CLEAN, start=6).of(A) == HEALTHY


@pytest.mark.parametrize(
    ("health", "finding"),
    [
        (xid(LOOK_INTO), CLEAN_UNTOLD),
        (xid(RESET), CLEAN),
        (xid(RESTART), CLEAN),
        (probed(Health(), LOST, start=0), CLEAN),
    ],
    ids=["a driver that cannot tell", "an XID that calls for a reset", "for a restart", "fell off the bus"],
)
def test_where_answering_again_proves_nothing_a_quiet_time_is_needed_as_well(health, finding):
    for now in (1, 2, 3, 4, 59):
        health = after_probe(health, A, finding, now, RECOVERY)
        assert not health.of(A).usable
    assert after_probe(health, A, finding, 60, RECOVERY).of(A) == HEALTHY


def test_the_quiet_time_is_counted_from_when_the_gpu_was_last_seen_lost():
    health = probed(Health(), *[LOST] * 30, start=0)
    assert not probed(health, *[CLEAN] * 59, start=30).of(A).usable
    assert probed(health, *[CLEAN] * 60, start=30).of(A) == HEALTHY


def test_what_the_driver_asks_for_keeps_the_gpu_away_and_is_told():
    health = probed(xid(RESET), *[ASKS] * 90)
    assert health.of(A).reason == "XID 95; asks for: reset"
    assert probed(health, CLEAN, CLEAN, start=91).of(A).reason == "XID 95; asks for: reset"
    assert probed(health, CLEAN, CLEAN, CLEAN, start=91).of(A) == HEALTHY


def test_a_probe_alone_can_start_a_fault():
    assert probed(Health(), LOST).of(A).reason == "GPU is lost"
    assert probed(Health(), ASKS).of(A).reason == "asks for: reset"


def test_a_lost_gpu_with_a_fault_of_one_instance_is_lost_as_a_whole():
    health = after_xid(Health(), XidEvent(A, 94, 3, 0), "XID 94", 0)
    assert not probed(health, LOST).of(A, 4, 0).usable


def test_a_repeated_xid_starts_recovery_afresh_and_is_told_as_the_same_fault():
    health = probed(xid(LOOK_INTO), CLEAN)
    again = xid(LOOK_INTO, health=health, now=2)
    assert again.told == health.told
    assert not probed(again, CLEAN, CLEAN, start=3).of(A).usable


def test_an_xid_does_not_take_the_place_of_another():
    health = xid(45, health=xid(RESTART))
    assert health.of(A).reason == "XID 79; XID 45"


def test_the_same_trouble_found_twice_is_said_once():
    both = Finding({FaultKind.LOST: "gone", FaultKind.UNREADABLE: "gone"})
    assert [told.kind for told in probed(Health(), both, both, both).told] == [FaultKind.LOST]


def test_what_a_look_met_while_a_gpu_was_lost_is_not_told_as_something_new():
    old = Finding({FaultKind.UNREADABLE: "gone"})
    health = probed(probed(Health(), LOST, start=0), *[old] * 59)
    assert [told.kind for told in health.told] == [FaultKind.LOST]
    assert probed(health, CLEAN, start=60).told == ()


@pytest.mark.parametrize("kind", [kind for kind in FaultKind if TABLE[kind].begins > 1])
def test_what_may_pass_must_be_found_several_times_in_a_row(kind):
    seen, times = Finding({kind: "seen"}), TABLE[kind].begins
    assert probed(Health(), *[seen] * (times - 1)).of(A) == HEALTHY
    assert probed(Health(), *[seen] * (times - 1), CLEAN, seen).of(A) == HEALTHY
    assert not probed(Health(), *[seen] * times).of(A).usable


def test_a_warning_leaves_the_gpu_in_service_and_is_told():
    hot = Finding({FaultKind.THERMAL: "hot"})
    health = probed(Health(), hot, hot, hot, policy=lambda _: Policy.WARN)
    assert health.of(A) == DeviceHealth(Level.HEALTHY, "hot")
    assert [told.text for told in health.told] == ["hot"]
    worse = xid(RESTART, health=health, now=9)
    assert worse.of(A).reason == "XID 79", "what keeps it away comes without what does not"


def test_what_is_to_be_ignored_is_nothing_and_ends_what_was_known_of_it():
    hot = Finding({FaultKind.THERMAL: "hot"})
    assert probed(Health(), *[hot] * 9, policy=lambda _: Policy.IGNORE) == Health()
    warned = probed(Health(), *[hot] * 3, policy=lambda _: Policy.WARN)
    assert probed(warned, *[hot] * 70, start=4, policy=lambda _: Policy.IGNORE).told == ()


def test_of_a_lost_gpu_nothing_else_is_known():
    hot = probed(Health(), *[Finding({FaultKind.THERMAL: "hot"})] * 3)
    assert probed(hot, *[LOST] * 200).of(A).reason == "hot; GPU is lost"


def test_a_cordon_holds_until_it_is_taken_away_and_keeps_its_time():
    health = with_cordons(Health(), {A: "fans"}, 5)
    assert health.of(A) == DeviceHealth(Level.UNHEALTHY, "cordoned: fans")
    assert probed(health, *[CLEAN] * 100).of(A) == health.of(A)
    assert with_cordons(health, {A: "fans"}, 9) is health
    assert with_cordons(health, {A: "dust"}, 9).of(A).reason == "cordoned: dust"
    assert with_cordons(xid(RESTART, health=health), {}, 9).of(A).reason == "XID 79"


def test_unknown_covers_everything_and_hides_nothing_when_it_goes():
    faulty = xid(RESTART)
    unknown = faulty.with_unknown("NVML does not answer", 7)
    assert unknown.of(B) == DeviceHealth(Level.UNKNOWN, "NVML does not answer")
    assert [(told.kind, told.gpu) for told in unknown.told] == [(FaultKind.NVML, None), (FaultKind.XID, A)]
    assert unknown.with_unknown("").told == faulty.told


def test_a_gpu_that_is_gone_takes_its_faults_with_it():
    health = xid(RESTART, B, health=xid(RESTART))
    assert {key.scope.gpu for key in forget(health, frozenset({B})).faults} == {B}
    assert forget(health, frozenset({A, B})) is health


steps = st.lists(
    st.tuples(st.sampled_from(["xid", "clean", "untold", "lost", "asks"]), st.sampled_from([A, B])),
    max_size=40,
)


@given(steps)
def test_health_is_never_given_back_without_the_passes_and_never_spreads(history):
    health, clean = Health(), {A: RECOVERY.passes, B: RECOVERY.passes}
    findings = {"clean": CLEAN, "untold": CLEAN_UNTOLD, "lost": LOST, "asks": ASKS}
    now = 0.0
    for what, gpu in history:
        now += 60
        other = B if gpu is A else A
        before = health.of(other)
        if what == "xid":
            health, clean[gpu] = xid(RESTART, gpu, now, health), 0
        else:
            health = after_probe(health, gpu, findings[what], now, RECOVERY)
            clean[gpu] = clean[gpu] + 1 if what in ("clean", "untold") else 0
        assert health.of(other) == before
        assert health.of(gpu).usable is (clean[gpu] >= RECOVERY.passes)
