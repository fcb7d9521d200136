"""The real cluster for tests, and a clean one for each of them.

A test that takes `cluster` (or a fixture that does) and is marked `cluster` gets the kubelet that its `kubelet` marker
asks for, and all that it made in the API is gone after it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

sys.path.append(str(Path(__file__).parent))  # the one place: import mode importlib leaves it to us

from gpunode import GpuNode
from onenode import Cluster, KubeletSettings
from onenode.errors import OccupiedError
from onenode.machine import missing

from tests.nvml.standin.build import CompilerMissingError

CLEANED = ("DaemonSet", "Pod", "ResourceClaim", "ResourceClaimTemplate", "DeviceClass")
GONE_SECONDS = 60.0


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "kubelet(**settings): the KubeletSettings that a cluster test wants, where not the defaults"
    )


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The running cluster: started for the session, or the one that somebody started by hand, which is left running."""
    if lacking := missing():
        _leave_out("; ".join(f"{thing.what} ({thing.remedy})" for thing in lacking))
    real = Cluster()
    with real.reserved():
        if not real.is_kept:
            real.down()  # what a session that was killed has left
        try:
            real.up()
        except OccupiedError as error:
            _leave_out(str(error))
        try:
            yield real
        finally:
            if not real.is_kept:
                real.down()


@pytest.fixture(autouse=True)
def clean_node(request: pytest.FixtureRequest) -> Iterator[None]:
    """Before a test of the cluster, its kubelet; after it, all objects gone that weren't there before."""
    if "cluster" not in request.fixturenames:
        yield
        return
    real: Cluster = request.getfixturevalue("cluster")
    marker = request.node.get_closest_marker("kubelet")
    real.configure_kubelet(KubeletSettings(**marker.kwargs) if marker else KubeletSettings())
    before = _objects(real)
    yield
    if not real.is_complete:
        real.up()
    for kind, name in sorted(_objects(real) - before, key=lambda made: CLEANED.index(made[0])):
        real.api.delete(kind, name)
    real.wait_for(lambda: _objects(real) <= before, GONE_SECONDS, "the test's objects gone")


@pytest.fixture
def bare_node(cluster: Cluster, tmp_path: Path) -> Iterator[GpuNode]:
    """The node with GPUs, and the daemon not started yet."""
    try:
        node = GpuNode(cluster, tmp_path)
    except CompilerMissingError as error:
        _leave_out(str(error))
    try:
        node.wait_forgotten()
        yield node
    finally:
        node.close()
        if cluster.is_complete:
            node.wait_forgotten()


@pytest.fixture
def gpus(bare_node: GpuNode) -> GpuNode:
    """The node with GPUs: the daemon runs, kubelet has its devices, and the Node object says so."""
    bare_node.start_ready()
    return bare_node


def _objects(real: Cluster) -> set[tuple[str, str]]:
    return {(kind, found["metadata"]["name"]) for kind in CLEANED for found in real.api.list(kind)}


def _leave_out(why: str) -> NoReturn:
    text = f"left out, the tests on a real Kubernetes (kubelet, scheduler, containerd, pods): {why}"
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(text)
    pytest.skip(text)
