"""The rules, for any machine: one control daemon a GPU, none ended that has clients, all wanted in the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.mps.decide import Known, Running, decide, limits, outdated
from gpuplugin.plan.mps import MpsGroup

GPUS = tuple(f"GPU-{letter}" for letter in "abcde")
NAMES = ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/small")


def group(resource, gpus, memory=None):
    return MpsGroup("/run/nvidia/mps", resource, tuple(gpus), 4, 25, memory or {})


def split(draw):
    """Some resources, each GPU in at most one of them."""
    owner = draw(st.lists(st.sampled_from((*NAMES, None)), min_size=len(GPUS), max_size=len(GPUS)))
    parts = {name: [gpu for gpu, of in zip(GPUS, owner, strict=True) if of == name] for name in NAMES}
    return {name: gpus for name, gpus in parts.items() if gpus}


wanted_groups = st.composite(lambda draw: tuple(group(name, gpus) for name, gpus in split(draw).items()))()
daemons = st.composite(lambda draw: {name: Running(name, 100, frozenset(gpus)) for name, gpus in split(draw).items()})()
counts = st.dictionaries(st.sampled_from(NAMES), st.none() | st.integers(0, 3))
names = st.frozensets(st.sampled_from(NAMES))


@given(wanted_groups, daemons, counts, names, names, st.frozensets(st.sampled_from(GPUS)))
def test_rules_that_always_hold(wanted, running, clients, told, resting, present):
    known = Known(present, running, clients, told, dict.fromkeys(resting, "rests"))
    plan = decide(wanted, known)
    served = [gpu for one in running.values() for gpu in one.gpus]
    started = [gpu for one in plan.start for gpu in one.gpus]
    assert len({*served, *started}) == len(served) + len(started)
    assert all(clients.get(resource) == 0 and resource in told for resource in plan.end)
    assert not {one.resource for one in plan.start} & resting
    kept, starting = {one.resource for one in plan.keep}, {one.resource for one in plan.start}
    assert kept | starting | plan.waiting.keys() == {one.resource for one in wanted} | running.keys()
    assert not kept & plan.waiting.keys()
    assert set(plan.end) <= plan.waiting.keys()


@given(wanted_groups, daemons)
def test_without_clients_what_is_wanted_comes_about(wanted, running):
    now = dict(running)
    for _ in range(3):
        known = Known(frozenset(GPUS), now, dict.fromkeys(NAMES, 0), frozenset(NAMES))
        plan = decide(wanted, known)
        for resource in plan.end:
            del now[resource]
        now |= {one.resource: Running(one.resource, 200, frozenset(one.gpus)) for one in plan.start}
    assert {name: one.gpus for name, one in now.items()} == {one.resource: frozenset(one.gpus) for one in wanted}
    assert not decide(wanted, Known(frozenset(GPUS), now)).waiting


def test_a_gpu_that_fell_off_the_bus_ends_no_client_of_the_others():
    running = {NAMES[0]: Running(NAMES[0], 100, frozenset(GPUS))}
    assert outdated((group(NAMES[0], GPUS[:4]),), Known(frozenset(GPUS[:4]), running)) == {}
    assert outdated((group(NAMES[0], GPUS[:4]),), Known(frozenset(GPUS), running)) == {NAMES[0]: "still serves GPU-e"}


def test_a_daemon_for_the_whole_machine_serves_every_gpu():
    running = {NAMES[0]: Running(NAMES[0], 100, None)}
    known = Known(frozenset(GPUS), running, {NAMES[0]: 2})
    assert decide((group(NAMES[0], GPUS),), known).keep
    plan = decide((group(NAMES[1], GPUS[:1]),), known)
    assert plan.waiting == {
        NAMES[0]: "the MPS control daemon is wanted no more; it is replaced when its 2 clients have left",
        NAMES[1]: f"its GPUs are still served by the MPS control daemon of {NAMES[0]}",
    }


def test_limits_are_whole_mebibytes_and_name_gpus_by_uuid():
    memory = {"GPU-b": (80 << 30) // 3, "GPU-a": 10 << 30, "GPU-c": 5}
    assert limits(group(NAMES[0], ("GPU-a", "GPU-b", "GPU-c"), memory)) == (
        "set_default_device_pinned_mem_limit GPU-a 10240M",
        "set_default_device_pinned_mem_limit GPU-b 27306M",
        "set_default_active_thread_percentage 25",
    )
