from itertools import product
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.errors import MigRefused
from gpuplugin.sim import machine, mig
from gpuplugin.sim.snapshot import Snapshot

EVEN = (0, 2, 4, 6)
SEVEN = {
    19: ((0, 1, 2, 3, 4, 5, 6), 1, 7),
    20: ((0, 1, 2, 3, 4, 5, 6), 1, 1),
    15: (EVEN, 2, 4),
    14: (EVEN[:3], 2, 3),
    9: ((0, 4), 4, 2),
    5: ((0,), 4, 1),
    0: ((0,), 8, 1),
}


@pytest.fixture
def on() -> Snapshot:
    return mig.set_mode(machine.load("hgx-h100").snapshot, 0, enabled=True)


@pytest.mark.parametrize(
    ("model", "memory", "multiprocessors"),
    [
        ("NVIDIA A100-SXM4-40GB", [4864, 9856, 19968, 19968, 40192, 4864, 9856], [14, 28, 42, 56, 98, 14, 14]),
        ("NVIDIA A100 80GB PCIe", [9856, 19968, 40192, 40192, 80384, 9856, 19968], [14, 28, 42, 56, 98, 14, 14]),
        ("NVIDIA H100 80GB HBM3", [9984, 20096, 40448, 40448, 81152, 9984, 20096], [16, 32, 60, 64, 132, 16, 26]),
    ],
)
def test_seven_slice_gpus(model: str, memory: list[int], multiprocessors: list[int]) -> None:
    table = mig.profiles(model)
    assert {each.id: (each.starts, each.size, each.count) for each in table} == SEVEN
    assert [each.number for each in table] == [0, 1, 2, 3, 4, 7, 9]
    assert [each.memory_mib for each in table] == memory
    assert [each.multiprocessors for each in table] == multiprocessors


def test_a30() -> None:
    assert {each.name: (each.id, each.starts, each.size, each.count) for each in mig.profiles("NVIDIA A30")} == {
        "1g.6gb": (14, (0, 1, 2, 3), 1, 4),
        "1g.6gb+me": (21, (0, 1, 2, 3), 1, 1),
        "2g.12gb": (5, (0, 2), 2, 2),
        "2g.12gb+me": (6, (0, 2), 2, 1),
        "4g.24gb": (0, (0,), 4, 1),
    }


@pytest.mark.parametrize("model", ["Tesla T4", "NVIDIA L40S", "Tesla V100-SXM2-32GB", "NVIDIA A300"])
def test_gpus_without_mig(model: str) -> None:
    assert mig.profiles(model) == ()


@pytest.mark.parametrize("name", [each.name for each in mig.profiles("NVIDIA H100 80GB HBM3")])
def test_as_many_fit_as_the_table_says(on: Snapshot, name: str) -> None:
    kind = next(each for each in mig.profiles("NVIDIA H100 80GB HBM3") if each.name == name)
    now = on
    for start in kind.starts[: kind.count]:
        now, record = mig.create(now, 0, name)
        assert (record.start, record.size, record.profile_id) == (start, kind.size, kind.id)
    with pytest.raises(MigRefused, match="starts that are free: \\[\\]"):
        mig.create(now, 0, name)


wishes = st.lists(
    st.sampled_from(
        [(each.name, start) for each in mig.profiles("NVIDIA H100 80GB HBM3") for start in (*each.starts, None, 3)]
    ),
    max_size=12,
)


@given(wishes, st.data())
def test_no_two_instances_ever_overlap(wanted: list[tuple[str, int | None]], data: st.DataObject) -> None:
    now = mig.set_mode(machine.load("hgx-h100").snapshot, 0, enabled=True)
    for profile, start in wanted:
        before = now
        try:
            now, _ = mig.create(now, 0, profile, start)
        except MigRefused:
            assert now is before
        if now.migs and data.draw(st.booleans()):
            now = mig.destroy(now, 0, data.draw(st.sampled_from(now.migs)).slot)
    taken = [at for record in now.migs for at in range(record.start, record.start + record.size)]
    assert len(set(taken)) == len(taken)
    assert set(taken) <= set(range(8))
    for what in ("slot", "gi", "uuid"):
        values = [getattr(record, what) for record in now.migs]
        assert len(set(values)) == len(values)


def test_slots_keep_their_numbers_and_holes_are_filled(on: Snapshot) -> None:
    now = on
    for _ in range(3):
        now, _ = mig.create(now, 0, "1g.10gb")
    now = mig.destroy(now, 0, 1)
    assert [record.slot for record in now.migs] == [0, 2]
    now, record = mig.create(now, 0, "2g.20gb")
    assert (record.slot, record.gi, record.start) == (1, 2, 4)


def test_the_same_place_on_the_same_gpu_gets_the_same_uuid(on: Snapshot) -> None:
    first, second = (mig.create(on, 0, "3g.40gb", 4)[1].uuid for _ in range(2))
    assert first == second
    assert UUID(first.removeprefix("MIG-"))


def test_a_mode_may_wait_for_a_reset(on: Snapshot) -> None:
    pending = mig.set_mode(on, 0, enabled=False, needs_reset=True)
    assert [(now.gpu(0).mig_current, now.gpu(0).mig_pending) for now in (pending, mig.reset(pending, 0))] == [
        (True, False),
        (False, False),
    ]


def test_what_a_gpu_cannot_do_is_refused(on: Snapshot) -> None:
    with pytest.raises(MigRefused, match=r"GPU 1 .* does not have MIG on"):
        mig.create(on, 1, "1g.10gb")
    with pytest.raises(MigRefused, match=r"one of the profiles 1g\.10gb,"):
        mig.create(on, 0, "1g.5gb")
    with pytest.raises(MigRefused, match="no MIG device in slot 0"):
        mig.destroy(on, 0, 0)
    now, _ = mig.create(on, 0, "7g.80gb")
    with pytest.raises(MigRefused, match="destroy them first"):
        mig.set_mode(now, 0, enabled=False)
    with pytest.raises(MigRefused, match="has no MIG"):
        mig.set_mode(machine.load("vm-flat").snapshot, 0, enabled=True)


def test_three_and_four_share_a_gpu_but_two_fours_do_not(on: Snapshot) -> None:
    fits = []
    for pair in product(("3g.40gb", "4g.40gb"), repeat=2):
        try:
            now, _ = mig.create(on, 0, pair[1], 0)
            mig.create(now, 0, pair[0], 4)
            fits.append(pair)
        except MigRefused:
            pass
    assert fits == [("3g.40gb", "3g.40gb"), ("3g.40gb", "4g.40gb")]
