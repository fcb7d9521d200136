"""Whatever GPUs, machines and profiles are called, Kubernetes takes the labels; equal nodes have equal ones."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.labels import text
from gpuplugin.labels.build import labels
from gpuplugin.labels.facts import NodeFacts
from tests.labels.nodes import fabric, facts, gpu

VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
NAMES = st.text(max_size=90) | st.text("AB1-_. ", max_size=90)
PROFILES = st.sampled_from(["1g.10gb", "1g.10gb+me", "3g.40gb", "1c.3g.40gb"]) | NAMES


@st.composite
def nodes(draw: st.DrawFn) -> NodeFacts:
    models = draw(st.lists(NAMES, min_size=1, max_size=3))
    gpus = [
        gpu(
            index,
            draw(st.sampled_from(models)),
            mig=draw(st.sampled_from([None, False, True])),
            profiles=draw(st.lists(PROFILES, max_size=4)),
            fabric=draw(st.none() | st.builds(fabric, NAMES, st.integers(0, 1 << 32))),
            numa=draw(st.none() | st.integers(0, 1023)),
        )
        for index in range(draw(st.integers(1, 5)))
    ]
    share = {"replicas": draw(st.integers(1, 9)), "sharing": draw(st.sampled_from(["time-slicing", "mps"]))}
    strategy = draw(st.sampled_from(["none", "single", "mixed"]))
    return facts(*gpus, strategy=strategy, share=share, driver=draw(NAMES), machine=draw(NAMES))


@given(nodes())
def test_every_label_is_one_that_kubernetes_takes(node):
    for key, value in labels(node).items():
        prefix, _, name = key.partition("/")
        assert PREFIX.fullmatch(prefix)
        assert VALUE.fullmatch(name), key
        assert name
        assert VALUE.fullmatch(value), (key, value)


@given(nodes(), st.randoms())
def test_the_order_in_which_gpus_are_found_does_not_matter(node, dice):
    models = [one.model for one in node.gpus]
    order = sorted(node.gpus, key=lambda _: dice.random())
    by_uuid = {offer_key(offer): offer for offer in node.offers}
    moved = replace(node, gpus=tuple(order), offers=tuple(by_uuid[key] for key in sorted(by_uuid)))
    assert len(models) == len(order)
    assert labels(moved) == labels(node)
    assert list(labels(node)) == sorted(labels(node))


def offer_key(offer):
    return offer.gpu.index, -1 if offer.mig is None else offer.mig.index


@given(NAMES, st.sampled_from(["MIG-1g.10gb", "SHARED", "INVALID"]))
def test_what_stands_after_a_name_is_never_lost(name, suffix):
    found = text.value(name, suffix)
    assert found.endswith(suffix)
    assert VALUE.fullmatch(found)


@given(NAMES, NAMES)
def test_where_the_references_rule_gives_a_valid_value_ours_gives_the_same(name, suffix):
    theirs = "-".join(filter(None, (text.sanitise(name), text.sanitise(suffix))))
    if VALUE.fullmatch(theirs) and not text.sanitise(name).endswith(("-", "_", ".")):
        assert text.value(name, suffix) == theirs


@given(NAMES, st.integers(8, 63))
def test_pieces_of_keys_fit_and_long_ones_stay_apart(name, room):
    found = text.key_part(name, room)
    assert VALUE.fullmatch(found)
    assert 0 < len(found) <= room
    longer = f"{'A' * room}{name}"
    assert text.key_part(f"{longer}1", room) != text.key_part(f"{longer}2", room)
