"""Why a pod has these GPUs, with and without a memory of the choice."""

from gpuplugin.config import Config
from gpuplugin.explain.gpu import Known
from gpuplugin.explain.pod import Had, PodAnswer, why_these
from gpuplugin.explain.stocks import machine, stocks
from gpuplugin.model.choices import Choice
from gpuplugin.plan.desired import Facts
from gpuplugin.plan.health import Health
from gpuplugin.topology.graph import Graph
from tests.plan.machine import gpu, inventory

NAME = "nvidia.com/gpu"
MACHINE = inventory(*(gpu(index) for index in range(4)))
HOLDERS = {(NAME, "GPU-1"): "pod a/b (container c)", (NAME, "GPU-3"): "pod a/x (container c)"}
KNOWN = Known(MACHINE, Config(), Facts(Health()), HOLDERS)
HAD = [Had("c", NAME, ("GPU-1",)), Had("d", "rdma/hca", ("mlx5_0",))]


def answer(*choices: Choice, known: Known = KNOWN):
    return why_these(known, Graph.of(MACHINE), "a/b", HAD, {"c": (5, 4)}, choices)


def test_the_newest_choice_of_these_devices_says_what_was_free():
    old, new = (Choice(at, NAME, ("GPU-1",), free) for at, free in [(1.0, ("GPU-1",)), (2.0, ("GPU-1", "GPU-2"))])
    (reason,) = answer(old, new, Choice(3.0, NAME, ("GPU-0",), ("GPU-0",))).containers
    assert (reason.gpus, reason.cpus, reason.at) == ((1,), "4-5", 2.0)
    assert (reason.free_then, reason.free_now) == ((1, 2), (0, 2))
    assert reason.why.startswith("kubelet left GPU 1-2 open")


def test_no_choice_at_all_is_said():
    (reason,) = answer(Choice(1.0, NAME, ("GPU-1",), ("GPU-1",))).containers
    assert "nothing else was free" in reason.why


def test_what_is_not_remembered_is_not_made_up():
    (reason,) = answer(known=Known(MACHINE, Config(), Facts(Health()))).containers
    assert (reason.at, reason.free_then, reason.free_now) == (None, None, None)
    assert "is not known" in reason.why


def test_a_pod_of_claims_alone_has_those_and_one_without_anything_has_nothing():
    told = why_these(KNOWN, Graph.of(MACHINE), "a/b", [], {}, [], ["gpu.nvidia.com/node/gpu-0 by claim a/c"])
    assert (told.containers, len(told.claims)) == ((), 1)
    assert why_these(KNOWN, Graph.of(MACHINE), "a/b", [], {}, []) == PodAnswer("a/b", ())


def test_stocks_are_ours_as_decided_and_others_as_kubelet_says():
    others = {(NAME, "GPU-0"): frozenset({7}), ("rdma/hca", "mlx5_0"): frozenset({1})}
    found = stocks(KNOWN, others, (1, 2), {2: "pod a/b (container c)"})
    assert found[NAME].free == {"GPU-0", "GPU-2"}
    assert found[NAME].nodes["GPU-0"] == {0}
    assert found["rdma/hca"].nodes == {"mlx5_0": frozenset({1})}
    assert found["cpu"].free == {"1"}
    assert machine(KNOWN) == {0}
