"""Whatever a host lacks, what is published holds, and nothing is left out without a reason."""

from __future__ import annotations

from dataclasses import replace

from cdi_facts import driver_root, gpu, mig_gpu, with_capabilities
from hypothesis import given
from hypothesis import strategies as st

from cdi.build import Options, build, verify, without_missing
from cdi.hooks import Hooks
from cdi.names import Naming
from cdi.spec import encode
from cdi.validate import decode
from gpuplugin.model.driver_root import DriverRoot

GPUS = (gpu(0), mig_gpu(1, 2), mig_gpu(2, 1, "1g.24gb+gfx"))
WHOLE = with_capabilities(driver_root(3, "/alt", dri=True), *GPUS)
UUIDS = {uuid for one in GPUS for uuid in (one.uuid, *(device.uuid for device in one.mig_devices))}
OPTIONS = st.builds(
    Options,
    dri=st.booleans(),
    stand_ins=st.booleans(),
    namings=st.lists(st.sampled_from(Naming), min_size=1).map(tuple),
    everything=st.booleans(),
    whole_of_mig=st.just(True),
    hooks=st.sampled_from([None, Hooks("/usr/bin/nvidia-cdi-hook")]),
)


@st.composite
def hosts(draw: st.DrawFn) -> DriverRoot:
    """The whole one with nodes that are missing, are none, or have another number; majors are known or not."""
    nodes = []
    for node in WHOLE.nodes:
        fate = draw(st.sampled_from(["good"] * 12 + ["missing", "no node", "stale"]))
        if fate != "missing":
            number = {"good": node.number, "no node": None, "stale": (99, 99)}[fate]
            nodes.append(replace(node, number=number))
    majors = draw(st.sampled_from([{}, {"nvidia": 195, "nvidia-uvm": 195, "nvidia-caps": 511}]))
    caps = WHOLE.caps if draw(st.integers(0, 9)) else {}
    libraries = WHOLE.libraries if draw(st.integers(0, 9)) else ()
    return replace(WHOLE, nodes=tuple(nodes), majors=majors, caps=caps, libraries=libraries)


@given(hosts(), OPTIONS)
def test_what_is_published_holds_and_what_is_not_has_a_reason(root: DriverRoot, options: Options) -> None:
    built = build(GPUS, root, options=options)
    names = {device.name for device in built.spec.devices} if built.spec else set()
    assert set(built.refused) <= UUIDS
    assert all(built.refused.values())
    if Naming.UUID in options.namings:
        assert names & UUIDS == UUIDS - set(built.refused)
    if built.spec is None:
        assert set(built.refused) == UUIDS
        return
    assert decode(encode(built.spec)) == built.spec
    there = {node.host for node in root.nodes} | {node.host for dri in root.dri for node in dri.nodes}
    there |= {library.host for library in root.libraries} | {"/usr/bin/nvidia-cdi-hook"}
    assert verify(built.spec, there.__contains__) == ()
    assert ("all" in names) is options.everything


@given(hosts(), OPTIONS, st.data())
def test_whatever_goes_between_looking_and_publishing_is_taken_out(
    root: DriverRoot, options: Options, data: st.DataObject
) -> None:
    spec = build(GPUS, root, options=options).spec
    if spec is None:
        return
    paths = sorted(set(verify(spec, lambda _: False)))
    gone = set(data.draw(st.lists(st.sampled_from(paths), max_size=3)))
    left, refused = without_missing(spec, lambda path: path not in gone)
    kept = {device.name for device in left.devices} if left else set()
    assert kept | set(refused) == {device.name for device in spec.devices}
    assert not kept & set(refused)
    if left is not None:
        assert decode(encode(left)) == left
        assert verify(left, lambda path: path not in gone) == ()
