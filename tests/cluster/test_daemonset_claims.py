"""Claims served by the daemon in its image, with the rights and the folders that the chart gives it, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from claims import DRIVER, claim, claiming_pod, request
from deployed import Deployed, container_id, resident
from gpunode import GpuNode
from helm_chart import rendered

pytestmark = pytest.mark.cluster


@pytest.fixture
def deployed(bare_node: GpuNode, tmp_path: Path) -> Iterator[Deployed]:
    made = Deployed(bare_node, tmp_path)
    made.load_image("1")
    try:
        yield made
    finally:
        made.cluster.api.delete("Pod", "claims", grace=0)
        made.cluster.api.delete("ResourceClaim", "claims")
        made.cluster.wait_for(lambda: not made.cluster.api.exists("ResourceClaim", "claims"), 60, "the claim gone")
        made.close()


def test_a_pod_gets_claimed_gpus_and_the_api_server_refuses_nothing(deployed: Deployed):
    deployed.apply("1", rendered("--set=config.dra.gpus=all"))
    pod = deployed.wait_ready("1")
    api = deployed.cluster.api
    api.apply(claim("claims", request("gpus", 4)), claiming_pod("claims", "claims"))
    with deployed.telling():
        inside = deployed.node.in_container(deployed.cluster.wait_for_phase("claims", "Running"))
    told = deployed.cluster.wait_for(
        lambda: api.get("ResourceClaim", "claims")["status"]["devices"], 30, "status.devices"
    )
    assert {one["data"]["uuid"] for one in told if one["driver"] == DRIVER} == inside
    assert len(inside) == 4
    print(f"\n  resident in the pod, serving claims: {resident(container_id(pod))} MiB")
    said = [str({**entry, "timestamp": ""}).lower() for entry in deployed.log(pod)]
    assert [line for line in said if "403" in line or "forbidden" in line] == []
