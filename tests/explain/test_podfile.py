"""What a Pod wants for itself, as kubelet reads it."""

import pytest

from gpuplugin.errors import NothingToExplain
from gpuplugin.explain.fit import Asked
from gpuplugin.explain.podfile import PodObject, Said, Toleration, pod_object

GPU, GI = "nvidia.com/gpu", 1 << 30


def pod(*resources: dict[str, dict[str, object]]) -> dict[str, object]:
    made = [{"name": f"c{number}", "resources": each} for number, each in enumerate(resources)]
    return {"kind": "Pod", "spec": {"containers": made}}


def limits(cpu: object, **more: object) -> dict[str, dict[str, object]]:
    return {"limits": {"cpu": cpu, "memory": "1Gi", GPU: 2, **more}}


def containers(document: object) -> tuple[Asked, ...]:
    return pod_object(document).containers


@pytest.mark.parametrize(
    ("cpu", "own"),
    [("4", 4), (4, 4), ("4000m", 4), ("4.0", 4), ("1e1", 10), ("1500m", None), ("500m", None), ("0.5", None)],
)
def test_whole_cpus_of_a_guaranteed_pod_are_its_own(cpu, own):
    wanted = {"memory": GI, GPU: 2} if own is None else {"cpu": own, "memory": GI, GPU: 2}
    assert containers(pod(limits(cpu))) == (Asked("c0", wanted),)


def test_memory_and_huge_pages_of_a_guaranteed_pod_are_its_own():
    wanted = {"cpu": 4, "memory": GI, GPU: 2, "hugepages-2Mi": 64 << 20, "hugepages-1Gi": 2 * GI}
    huge = {"hugepages-2Mi": "64Mi", "hugepages-1Gi": "2Gi"}
    assert containers(pod(limits(4, **huge))) == (Asked("c0", wanted),)


def test_a_pod_of_which_one_container_has_no_limits_gets_nothing_of_its_own_but_devices():
    assert containers(pod(limits(4), {})) == (Asked("c0", {GPU: 2}), Asked("c1", {}))
    requests_less = {**limits(4), "requests": {"cpu": "2"}}
    assert containers(pod(requests_less)) == (Asked("c0", {GPU: 2}),)
    init = pod(limits(4))
    init["spec"] = {**init["spec"], "initContainers": [{"name": "first"}]}  # type: ignore[dict-item]
    assert containers(init) == (Asked("c0", {GPU: 2}),)


def test_amounts_that_are_written_otherwise_are_the_same():
    same = {**limits("2"), "requests": {"cpu": "2000m", "memory": "1024Mi"}}
    assert containers(pod(same)) == (Asked("c0", {"cpu": 2, "memory": GI, GPU: 2}),)


def test_what_decides_where_it_runs_and_what_became_of_it():
    document = {
        "kind": "Pod",
        "metadata": {"name": "x", "namespace": "team"},
        "spec": {
            "nodeName": "node-1",
            "containers": [{"name": "main"}],
            "initContainers": [{"name": "first"}],
            "nodeSelector": {"zone": "a"},
            "affinity": {"nodeAffinity": {}},
            "tolerations": [{"key": "gpu", "operator": "Exists"}, {"key": "k", "value": "v", "effect": "NoSchedule"}],
            "resourceClaims": [{"name": "g", "resourceClaimName": "one"}, {"name": "h"}],
        },
        "status": {
            "phase": "Failed",
            "reason": "TopologyAffinityError",
            "message": "Pod was rejected",
            "resourceClaimStatuses": [{"name": "h", "resourceClaimName": "x-h-abc"}],
            "conditions": [{"type": "PodScheduled", "status": "True"}],
        },
    }
    assert pod_object(document) == PodObject(
        "team/x",
        (Asked("main", {}),),
        "node-1",
        (Toleration("gpu", "Exists"), Toleration("k", "", "v", "NoSchedule")),
        {"zone": "a"},
        affinity=False,
        init=("first",),
        claims=("team/one", "team/x-h-abc"),
        said=Said("Failed", "TopologyAffinityError", "Pod was rejected"),
    )


def test_while_it_waits_it_is_the_scheduler_that_has_spoken():
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    status = {"phase": "Pending", "conditions": [{"type": "Ready"}, waiting]}
    assert pod_object({**pod({}), "status": status}).said == Said("Pending", "Unschedulable", "0/1 nodes")


@pytest.mark.parametrize(
    "document", [None, [], {}, {"kind": "Deployment"}, {"kind": "Pod"}, {"kind": "Pod", "spec": 3}, pod(limits("four"))]
)
def test_what_is_no_pod_is_refused_with_a_reason(document):
    with pytest.raises(NothingToExplain):
        containers(document)
