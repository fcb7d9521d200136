"""Who has what, where kubelet's files and its API tell different parts of it."""

from dataclasses import replace

import pytest

from gpuplugin.explain.memory import NodeMemory
from gpuplugin.explain.owners import Listed, cpu_holders, memory_held, pods_by_uid
from gpuplugin.model.kubelet import CpuState, KubeletStates, MemoryBlock, MemoryOfNode, MemoryState

MAIN, INIT = "main", "init"


def cpus(own: dict[tuple[str, str], set[int]], policy: str = "static", shared: set[int] | None = None) -> CpuState:
    return CpuState(policy, frozenset(shared or {0}), {who: frozenset(its) for who, its in own.items()})


def listed(own: dict[str, set[int]], memory: dict[str, int] | None = None) -> Listed:
    """CPUs and bytes of memory of NUMA node 0, by pod; each has a container main."""
    blocks = {(pod, MAIN): (MemoryBlock("memory", (0,), size),) for pod, size in (memory or {}).items()}
    return Listed({(pod, MAIN): frozenset(its) for pod, its in own.items()}, blocks, {0: {"memory": 100}})


def holders(state: CpuState | None, said: Listed) -> tuple[dict[int, str], list[str]]:
    return cpu_holders(state, said, pods_by_uid(KubeletStates(state), said))


def test_init_containers_keep_cpus_that_the_api_does_not_tell_of():
    found, notes = holders(cpus({("u1", MAIN): {1, 2}, ("u1", INIT): {1, 2, 3}}), listed({"a/x": {1, 2}}))
    assert found == {
        1: "pod a/x (container main)",
        2: "pod a/x (container main)",
        3: "pod a/x (container init)",
    }
    assert notes == []


def test_what_a_pod_had_that_has_ended_is_free_and_told_of():
    found, notes = holders(cpus({("u1", MAIN): {1}, ("u2", MAIN): {5, 6}}), listed({"a/x": {1}}))
    assert found == {1: "pod a/x (container main)"}
    assert len(notes) == 1
    assert "CPUs 5-6" in notes[0]
    assert "UID u2" in notes[0]


def test_where_they_contradict_each_other_kubelets_word_counts():
    found, notes = holders(cpus({}, shared={0, 1, 2}), listed({"a/x": {1}}))
    assert found == {1: "pod a/x (container main)"}
    assert "CPUs 1 are shared by cpu_manager_state" in notes[0]
    found, notes = holders(cpus({}, "none"), listed({"a/x": {1}}))
    assert found == {1: "pod a/x (container main)"}
    assert "policy none" in notes[0]


def test_without_the_file_it_is_said_what_is_not_known():
    found, notes = holders(None, listed({"a/x": {1}}))
    assert found == {1: "pod a/x (container main)"}
    assert "cpu_manager_state is not seen" in notes[0]


def test_an_init_container_alone_is_found_by_the_devices_of_its_pod():
    gpu = frozenset({("nvidia.com/gpu", "GPU-0")})
    state = cpus({("u1", INIT): {3}, ("u2", INIT): {4}})
    states = KubeletStates(state, devices={("u1", MAIN): gpu})
    said = replace(listed({}), devices={("a/x", MAIN): gpu})
    assert pods_by_uid(states, said) == {"u1": "a/x"}
    found, notes = cpu_holders(state, said, {"u1": "a/x"})
    assert (found, len(notes)) == ({3: "pod a/x (container init)"}, 1)


def test_a_pods_name_is_found_by_cpus_first_and_then_by_memory():
    memory = MemoryState(
        "Static", {}, {(uid, MAIN): (MemoryBlock("memory", (0,), 7),) for uid in ("u1", "u2", "u3", "u4")}
    )
    said = listed({"a/x": {1}, "a/y": set()}, {"a/x": 7, "a/y": 7, "a/z": 8})
    assert pods_by_uid(KubeletStates(cpus({("u2", MAIN): {1}}), memory), said) == {"u2": "a/x", "u1": "a/y"}


def state(own: dict[tuple[str, str], int], free: int) -> MemoryState:
    blocks = {who: (MemoryBlock("memory", (0,), size),) for who, size in own.items()}
    return MemoryState("Static", {0: MemoryOfNode({"memory": 100}, {"memory": free}, len(own), (0,))}, blocks)


def free_of(of: MemoryState | None, said: Listed) -> tuple[int, set[str], int]:
    memory, notes = memory_held(of, said, pods_by_uid(KubeletStates(memory=of), said))
    assert memory is not None
    return memory.free("memory"), {share.who for share in memory.shares}, len(notes)


@pytest.mark.parametrize(
    ("of", "said", "found"),
    [
        (state({("u1", MAIN): 30}, 70), {"a/x": 30}, (70, {"pod a/x (container main)"}, 0)),
        (  # an init container's, which the pod keeps
            state({("u1", MAIN): 30, ("u1", INIT): 20}, 50),
            {"a/x": 30},
            (50, {"pod a/x (container main)", "pod a/x (container init)"}, 0),
        ),
        (state({("u1", MAIN): 30, ("u2", MAIN): 20}, 50), {"a/x": 30}, (70, {"pod a/x (container main)"}, 1)),
        (state({}, 100), {"a/x": 30}, (70, {"pod a/x (container main)"}, 0)),  # not written yet
        (None, {"a/x": 30}, (70, {"pod a/x (container main)"}, 1)),
    ],
)
def test_memory_by_both(of, said, found):
    assert free_of(of, listed({}, said)) == found


def test_what_kubelet_itself_counts_is_taken_where_it_is_all_of_it():
    one = state({("u1", MAIN): 30}, 70)
    memory, _ = memory_held(one, listed({}, {"a/x": 30}), {"u1": "a/x"})
    assert memory is not None
    assert memory.now == {0: NodeMemory({"memory": 70}, 1, frozenset({0}))}


def test_memory_that_kubelet_does_not_give_out_is_none():
    assert memory_held(state({}, 100), Listed({}), {}) == (None, [])
