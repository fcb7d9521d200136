"""`kubectl apply -f daemonset.yaml`: what people do, on the real thing, with the daemon in its image."""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployed import Deployed, container_id, resident, traces
from gpunode import SOCKETS, GpuNode

pytestmark = pytest.mark.cluster
MIB_RESIDENT = 80.0


@pytest.fixture
def deployed(bare_node: GpuNode, tmp_path: Path) -> Iterator[Deployed]:
    made = Deployed(bare_node, tmp_path)
    try:
        yield made
    finally:
        made.close()


def modes(folder: Path) -> dict[str, int]:
    """The folders below and including `folder`, sockets and files left aside, with their modes."""
    found = [folder, *(path for path in folder.iterdir() if path.is_dir())]
    return {str(path): stat.S_IMODE(path.stat().st_mode) for path in found}


def test_clean_node_has_its_gpus_by_one_manifest_and_loses_all_of_it_again(deployed: Deployed):
    deployed.load_image("1")
    assert deployed.cluster.allocatable().get("nvidia.com/gpu", "0") == "0"
    before = modes(SOCKETS.parent)
    began = time.monotonic()
    deployed.apply("1")
    deployed.wait_allocatable(8)
    seconds = time.monotonic() - began
    pod = deployed.wait_ready("1")
    print(f"\n  apply to allocatable: {seconds:.1f} s; resident in the pod: {resident(container_id(pod))} MiB")
    assert resident(container_id(pod)) < MIB_RESIDENT
    assert seconds < 30  # what was asked for, and many times what it takes

    tp4 = deployed.node.pod("tp4", 4)
    assert deployed.node.in_container(tp4) in (deployed.node.uuids(0, 1, 2, 3), deployed.node.uuids(4, 5, 6, 7))
    assert modes(SOCKETS.parent) == before

    deployed.node.end("tp4")
    deployed.delete()
    assert traces() == []
