"""Who may have a GPU that is wanted, and which of the two ways hands it out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.config.settings import Dra
from gpuplugin.model.holds import Hold, Holder, Owner, Use
from gpuplugin.model.ids import GpuUuid, PciAddress
from gpuplugin.model.inventory import Gpu
from gpuplugin.plan.ledger import Ledger, divide

CLAIM = Holder(Owner.CLAIMS, "team", "train", "uid-1", ("team/pod-a",))
OTHER = Holder(Owner.CLAIMS, "team", "train", "uid-2")
POD = Holder(Owner.DEVICE_PLUGIN, "team", "old")


def uuid(index):
    return GpuUuid(f"GPU-{index}")


def gpu(index):
    return Gpu(
        index, uuid(index), PciAddress(f"0000:0{index}:00.0"), index, "NVIDIA H100", *[None] * 3, None, (), *[None] * 3
    )


@pytest.mark.parametrize(
    ("one", "other", "barred"),
    [
        (Use.EXCLUSIVE, Use.EXCLUSIVE, True),
        (Use.EXCLUSIVE, Use.SHARED, True),
        (Use.SHARED, Use.SHARED, False),
        (Use.WATCHED, Use.EXCLUSIVE, False),
        (Use.WATCHED, Use.SHARED, False),
        (Use.WATCHED, Use.WATCHED, False),
    ],
)
def test_uses_that_bar_each_other_do_so_both_ways(one, other, barred):
    assert one.bars(other) is other.bars(one) is barred
    held = Hold(uuid(1), CLAIM, one)
    assert Ledger((held,)).bars([Hold(uuid(1), OTHER, other)]) == ((held,) if barred else ())


def test_holder_is_told_apart_by_uid_and_does_not_bar_itself():
    ledger = Ledger((Hold(uuid(1), CLAIM),))
    assert ledger.bars([Hold(uuid(1), Holder(Owner.CLAIMS, "team", "train", "uid-1"))]) == ()
    assert ledger.bars([Hold(uuid(1), OTHER)])
    assert ledger.bars([Hold(uuid(2), OTHER)]) == ()


def test_holders_are_named_so_that_people_find_them():
    assert str(CLAIM) == "claim team/train (UID uid-1, prepared for pod team/pod-a)"
    assert str(OTHER) == "claim team/train (UID uid-2)"
    assert str(POD) == "pod team/old, which has it from the device plugin"


def test_gpus_are_divided_as_configured_by_uuid_address_and_model():
    gpus = [gpu(index) for index in range(4)]
    of = lambda *names: divide(gpus, Dra(gpus=names).includes, Ledger()).of(Owner.CLAIMS)  # noqa: E731
    assert of() == frozenset()
    assert of("*") == of("*H100*") == {one.uuid for one in gpus}
    assert of("GPU-2", "0000:01:00.0") == {uuid(1), uuid(2)}


def test_gpu_that_changes_owner_is_withheld_until_the_other_has_let_go():
    gpus = [gpu(0), gpu(1)]
    to_claims = divide(gpus, lambda _: True, Ledger((Hold(uuid(0), POD),)))
    assert to_claims.of(Owner.CLAIMS) == {uuid(0), uuid(1)}
    assert dict(to_claims.withheld) == {
        uuid(0): "still held by pod team/old, which has it from the device plugin; it is handed out by claims once that"
        " has ended"
    }
    back = divide(gpus, lambda _: False, Ledger((Hold(uuid(1), CLAIM),)))
    assert set(back.withheld) == {uuid(1)}
    assert "claim team/train" in back.withheld[uuid(1)]
    assert "device plugin once" in back.withheld[uuid(1)]


def test_who_only_watches_withholds_nothing():
    assert not divide([gpu(0)], lambda _: False, Ledger((Hold(uuid(0), CLAIM, Use.WATCHED),))).withheld


@given(st.sets(st.integers(0, 7)), st.lists(st.tuples(st.integers(0, 7), st.sampled_from([CLAIM, POD, OTHER]))))
def test_never_two_owners_and_never_offered_while_the_other_has_it(for_claims, holds):
    gpus = [gpu(index) for index in range(8)]
    division = divide(gpus, lambda one: one.index in for_claims, Ledger(tuple(Hold(uuid(i), who) for i, who in holds)))
    plugin, claims = division.of(Owner.DEVICE_PLUGIN), division.of(Owner.CLAIMS)
    assert plugin | claims == {one.uuid for one in gpus}
    assert not plugin & claims
    for index, who in holds:
        free_for_other = division.owners[uuid(index)] is not who.owner and uuid(index) not in division.withheld
        assert not free_for_other
