"""The real kubelet still calls what was recorded of it, and what the stand-in is held to."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpunode import GPU, SOCKETS, GpuNode
from onenode.pods import busybox_pod
from relay import Relay

from tests.kubelet_trace import SCENARIO, Step, record, recorded

pytestmark = pytest.mark.cluster


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Short, since a socket's path is."""
    folder = Path(tempfile.mkdtemp(prefix="gpu"))
    yield folder
    shutil.rmtree(folder)


def take(step: Step, gpus: GpuNode) -> None:
    match step.what:
        case "admit":
            gpus.pod(step.name, step.count)
        case "refuse":
            gpus.cluster.api.apply(busybox_pod(step.name, limits={GPU: step.count}))
            gpus.cluster.wait_for_phase(step.name, "Failed")
        case "end":
            gpus.end(step.name)
        case "lose":
            gpus.state.lose(step.count)
            gpus.wait_allocatable(7)
        case "restore":
            gpus.state.restore(step.count)
            gpus.wait_allocatable(8)


def test_real_kubelet_calls_what_was_recorded(bare_node: GpuNode, short_folder: Path):
    with Relay(SOCKETS / "kubelet.sock", short_folder) as relay:
        bare_node.start_ready(KUBELET_SOCKET=str(relay.socket))
        for step in SCENARIO:
            take(step, bare_node)
        trace = list(relay.trace)
    if os.environ.get("GPUPLUGIN_TEST_UPDATE_GOLDEN") == "1":
        record(trace)
    assert trace == recorded(), (
        "if a newer kubelet calls otherwise, the stand-in must too: GPUPLUGIN_TEST_UPDATE_GOLDEN=1"
    )
