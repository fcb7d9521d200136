"""Whatever is killed, however often: no GPU is lost, and none is given to two pods."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from gpunode import GPU, SOCKETS, GpuNode, Held
from onenode import Component
from onenode.api import Json
from onenode.pods import busybox_pod

pytestmark = pytest.mark.cluster

TIMES = 20 if os.environ.get("GPUPLUGIN_TEST_MORE") != "1" else 100


class Holders:
    """Pods that hold GPUs, and the check that each still holds what it had, in kubelet's books and in its container."""

    def __init__(self, gpus: GpuNode, **counts: int) -> None:
        self._gpus = gpus
        self._pods: dict[str, Json] = {name: gpus.pod(name, count) for name, count in counts.items()}
        self.held = gpus.held()
        self.assert_unchanged()

    def assert_unchanged(self) -> None:
        """Nothing lost, nothing given twice, no container another."""
        inside: Held = {name: self._gpus.in_container(pod) for name, pod in self._pods.items()}
        held = self._gpus.cluster.wait_for(self._all_held, 30, "kubelet's books, which it opens after its pods")
        assert inside == {name: held.get(name) for name in inside} == self.held
        assert sum(map(len, held.values())) == len(frozenset().union(*held.values()))
        for name, pod in self._pods.items():
            now = self._gpus.cluster.api.get("Pod", name)["status"]["containerStatuses"][0]
            assert now["containerID"] == pod["status"]["containerStatuses"][0]["containerID"]

    def _all_held(self) -> Held | None:
        held = self._gpus.held()
        return held if self._pods.keys() <= held.keys() else None


def watches(gpus: GpuNode) -> int:
    return len(gpus.said("kubelet watches"))


def test_kubelet_and_daemon_killed_time_and_again_neither_lose_nor_double_a_gpu(gpus: GpuNode, record_property):
    holders = Holders(gpus, four=4, two=2)
    back: list[float] = []
    for turn in range(TIMES):
        seen = watches(gpus)
        gpus.cluster.restart(Component.KUBELET, signal.SIGKILL)
        began = time.monotonic()
        gpus.cluster.wait_for(lambda seen=seen: watches(gpus) > seen, 30, "kubelet to watch again")
        gpus.cluster.wait_for(lambda: len(gpus.healthy()) == 8, 30, "eight GPUs at kubelet")
        back.append(time.monotonic() - began)
        holders.assert_unchanged()
        assert gpus.stop(signal.SIGKILL) == -signal.SIGKILL
        holders.assert_unchanged()
        gpus.start()
        gpus.wait_watched()
        holders.assert_unchanged()
        if turn % 5 == 4:
            rest = gpus.in_container(gpus.pod("new", 1))
            assert not rest & frozenset().union(*holders.held.values())
            gpus.end("new")
    record_property("seconds from kubelet's socket to eight GPUs at kubelet", sorted(back))
    print("back after kubelet:", " ".join(f"{seconds:.2f}" for seconds in sorted(back)))
    assert len(list(SOCKETS.glob("gpuplugin-*.sock"))) == 1
    gpus.wait_allocatable(8)


def test_kubelet_that_starts_after_the_daemon_gets_its_gpus(bare_node: GpuNode):
    bare_node.cluster.stop(Component.KUBELET, signal.SIGKILL)
    (SOCKETS / "kubelet.sock").unlink()
    bare_node.start()
    bare_node.wait_said("not registered")
    bare_node.cluster.start(Component.KUBELET)
    bare_node.wait_watched()
    bare_node.wait_allocatable(8)
    assert len(bare_node.said("not registered")) == 1


def test_socket_that_somebody_deleted_is_made_again(gpus: GpuNode):
    holders = Holders(gpus, two=2)
    (old,) = SOCKETS.glob("gpuplugin-*.sock")
    seen = watches(gpus)
    old.unlink()
    gpus.cluster.wait_for(lambda: watches(gpus) > seen, 30, "kubelet to watch again")
    (new,) = SOCKETS.glob("gpuplugin-*.sock")
    assert new != old
    holders.assert_unchanged()
    gpus.pod("after", 1)


def test_second_daemon_takes_over_and_the_first_takes_back(gpus: GpuNode, tmp_path):
    holders = Holders(gpus, two=2)
    with (tmp_path / "second.log").open("wb") as log, second_daemon(gpus, log) as second:
        gpus.cluster.wait_for(lambda: b"kubelet watches" in (tmp_path / "second.log").read_bytes(), 30, "the second")
        gpus.pod("during", 1)
        holders.assert_unchanged()
        second.terminate()
        assert second.wait(15) == 0
    gpus.pod("after", 4)
    holders.assert_unchanged()
    assert gpus.cluster.allocatable()[GPU] == "8"


def test_stopped_daemon_fails_nobody_for_good(gpus: GpuNode):
    holders = Holders(gpus, two=2)
    gpus.send(signal.SIGSTOP)
    gpus.cluster.api.apply(busybox_pod("asks", limits={GPU: 1}))
    gpus.cluster.wait_for(lambda: gpus.cluster.api.get("Pod", "asks")["spec"]["nodeName"], 30, "the pod scheduled")
    gpus.send(signal.SIGCONT)
    gpus.cluster.wait_for_phase("asks", "Running")
    holders.assert_unchanged()


def test_api_server_that_is_down_changes_nothing(gpus: GpuNode):
    holders = Holders(gpus, two=2)
    gpus.cluster.stop(Component.API_SERVER, signal.SIGKILL)
    assert gpus.stop(signal.SIGKILL) == -signal.SIGKILL
    gpus.start()
    gpus.wait_watched()
    gpus.cluster.start(Component.API_SERVER)
    holders.assert_unchanged()
    gpus.pod("after", 1)


@contextmanager
def second_daemon(gpus: GpuNode, log) -> Iterator[subprocess.Popen[bytes]]:
    process = gpus.spawn(log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
