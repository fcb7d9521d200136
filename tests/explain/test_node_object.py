"""What a Node object has against a pod, as tables."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.explain.node_object import NodeTold, beside_a_gpu, of_node
from gpuplugin.explain.podfile import PodObject, Toleration
from gpuplugin.explain.quantity import quantity, whole

GPU = "nvidia.com/gpu"
WELL = NodeTold("n", conditions={"Ready": ("True", "")}, allocatable={GPU: "8", "memory": "64Gi"}, labels={"zone": "a"})
POD = PodObject("team/x", ())


def tolerating(*tolerations: Toleration) -> PodObject:
    return replace(POD, tolerations=tolerations)


def tainted(key: str, value: str = "", effect: str = "NoSchedule") -> NodeTold:
    return replace(WELL, taints=((key, value, effect),))


CORDONED = replace(WELL, unschedulable=True, taints=(("node.kubernetes.io/unschedulable", "", "NoSchedule"),))


@pytest.mark.parametrize(
    ("node", "pod", "against"),
    [
        (WELL, None, ""),
        (WELL, POD, ""),
        (CORDONED, None, "cordoned"),
        (CORDONED, POD, "cordoned"),
        (CORDONED, tolerating(Toleration(operator="Exists")), ""),
        (replace(WELL, conditions={"Ready": ("False", "kubelet is down")}), None, "not ready: kubelet is down"),
        (replace(WELL, conditions={}), None, "not ready"),
        (replace(WELL, conditions={**WELL.conditions, "DiskPressure": ("True", "full")}), None, "DiskPressure: full"),
        (tainted("gpu"), None, ""),  # whether it is tolerated is not known, and said
        (tainted("gpu"), POD, "taint gpu:NoSchedule"),
        (tainted("gpu", "yes", "NoExecute"), POD, "taint gpu=yes:NoExecute"),
        (tainted("gpu", effect="PreferNoSchedule"), POD, ""),
        (tainted("gpu"), tolerating(Toleration("gpu", "Exists")), ""),
        (tainted("gpu", "a"), tolerating(Toleration("gpu", "Equal", "a")), ""),
        (tainted("gpu", "a"), tolerating(Toleration("gpu", "", "a", "NoSchedule")), ""),
        (tainted("gpu", "a"), tolerating(Toleration("gpu", "Equal", "b")), "taint gpu=a:NoSchedule"),
        (tainted("gpu"), tolerating(Toleration("gpu", "Exists", "", "NoExecute")), "taint gpu:NoSchedule"),
        (WELL, replace(POD, selector={"zone": "a"}), ""),
        (WELL, replace(POD, selector={"zone": "b"}), "wants zone=b, and this node has zone=a"),
        (WELL, replace(POD, selector={"rack": "b"}), "wants rack=b, and this node has no label rack"),
    ],
)
def test_what_keeps_a_pod_off(node, pod, against):
    found = of_node(node, {GPU: 1}, {GPU: 8}, pod)
    assert [cause.why for cause in found.causes if against not in cause.why] == []
    assert bool(found.causes) == bool(against)
    assert all(cause.do for cause in found.causes)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({GPU: 8, "memory": 64 << 30}, ""),
        ({GPU: 9}, f"9 {GPU} are wanted, and the Node object has 8 {GPU} allocatable"),
        ({"memory": 65 << 30}, "65Gi memory are wanted, and the Node object has 64Gi memory"),
        ({"hugepages-2Mi": 1 << 21}, "2Mi hugepages-2Mi are wanted, and the Node object has 0"),
    ],
)
def test_what_the_node_object_has_too_little_of(wanted, says):
    causes = of_node(WELL, wanted, {GPU: 8}).causes
    assert [says in cause.why for cause in causes] == [True] * bool(says)


def test_what_depends_on_the_pod_or_lags_behind_is_noted():
    assert of_node(tainted("gpu"), {}, {GPU: 8}).notes == ("the pod has to tolerate gpu:NoSchedule",)
    assert "says 8 nvidia.com/gpu allocatable, and kubelet was told of 7" in of_node(WELL, {}, {GPU: 7}).notes[0]
    assert "affinity" in of_node(WELL, {}, {GPU: 8}, replace(POD, affinity=True)).notes[0]


def test_what_it_adds_to_a_gpu():
    assert beside_a_gpu(WELL, {GPU: 8}) == ()
    assert beside_a_gpu("no token", {}) == ("the Node object was not looked at: no token",)
    cordoned, behind = beside_a_gpu(CORDONED, {GPU: 7})
    assert cordoned == "node n is cordoned"
    assert "says 8" in behind


@pytest.mark.parametrize(
    ("text", "milli"),
    [("4", 4000), ("1500m", 1500), ("0.5", 500), (".5", 500), ("1.", 1000), ("2k", 2_000_000), ("1Ki", 1_024_000),
     ("1e3", 1_000_000), ("5E-1", 500), ("+3", 3000), ("2000000u", 2000), ("1E", 10**21), (8, 8000)],
)  # fmt: skip
def test_quantities(text, milli):
    assert quantity(text) * 1000 == milli


@pytest.mark.parametrize("text", ["", "four", "1KiB", "1 Gi", "--1", "1e", "Gi", None])
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises(ValueError, match="no quantity"):
        quantity(text)


@given(st.integers(0, 10**9), st.sampled_from(["", "k", "Mi", "Gi"]))
def test_whole_numbers_come_back(number, suffix):
    assert whole(f"{number}{suffix}") == number * quantity(f"1{suffix}")
    assert whole(f"{number}1m") == (number * 10 + 1 + 999) // 1000
