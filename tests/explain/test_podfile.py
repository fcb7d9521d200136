"""What a Pod wants for itself, as kubelet reads it."""

import pytest

from gpuplugin.errors import NothingToExplain
from gpuplugin.explain.fit import Asked
from gpuplugin.explain.podfile import containers

GPU = "nvidia.com/gpu"


def pod(*resources: dict[str, dict[str, object]]) -> dict[str, object]:
    made = [{"name": f"c{number}", "resources": each} for number, each in enumerate(resources)]
    return {"kind": "Pod", "spec": {"containers": made}}


def limits(cpu: object, **more: object) -> dict[str, dict[str, object]]:
    return {"limits": {"cpu": cpu, "memory": "1Gi", GPU: 2, **more}}


@pytest.mark.parametrize(
    ("cpu", "own"), [("4", 4), (4, 4), ("4000m", 4), ("1500m", None), ("500m", None), ("0.5", None)]
)
def test_whole_cpus_of_a_guaranteed_pod_are_its_own(cpu, own):
    wanted = {GPU: 2} if own is None else {"cpu": own, GPU: 2}
    assert containers(pod(limits(cpu))) == (Asked("c0", wanted),)


def test_a_pod_of_which_one_container_has_no_limits_gets_no_cpus_of_its_own():
    assert containers(pod(limits(4), {})) == (Asked("c0", {GPU: 2}), Asked("c1", {}))
    requests_less = {**limits(4), "requests": {"cpu": "2"}}
    assert containers(pod(requests_less)) == (Asked("c0", {GPU: 2}),)


@pytest.mark.parametrize(
    "document", [None, [], {}, {"kind": "Deployment"}, {"kind": "Pod"}, {"kind": "Pod", "spec": 3}]
)
def test_what_is_no_pod_is_refused_with_a_reason(document):
    with pytest.raises(NothingToExplain):
        containers(document)
