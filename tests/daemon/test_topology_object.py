"""What is counted as free on each NUMA node, and what is known of kubelet's policy."""

from __future__ import annotations

import pytest

from gpuplugin.daemon.topology_object import amounts, kubelet_policy
from gpuplugin.labels.zones import Amount
from gpuplugin.model.health import HEALTHY, DeviceHealth, Level
from gpuplugin.plan.desired import OfferedDevice, OfferedResource
from gpuplugin.plan.sharing import Kind, Share

SICK = DeviceHealth(Level.UNHEALTHY, "lost")
GPU = "nvidia.com/gpu"


def device(name: str, numa=(0,), health=HEALTHY, share=None) -> OfferedDevice:
    return OfferedDevice(name, name, 0, 0, health, numa, share=share)


def test_free_is_what_is_healthy_and_no_pods():
    devices = (device("a"), device("b"), device("c", health=SICK), device("d", numa=(1,)), device("e", numa=()))
    held = {(GPU, "a"), (GPU, "c"), ("other", "b")}
    assert list(amounts([OfferedResource(GPU, devices)], held)) == [Amount(GPU, 0, 3, 2, 1), Amount(GPU, 1, 1, 1, 1)]


def test_replicas_are_counted_each():
    shared = device("a", share=Share(Kind.TIME_SLICING, 4))
    assert list(amounts([OfferedResource(GPU, (shared,))], {(GPU, "a::2")})) == [Amount(GPU, 0, 4, 4, 3)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("topologyManagerPolicy: single-numa-node\n", ("single-numa-node", "container")),
        ("topologyManagerPolicy: restricted\ntopologyManagerScope: pod\n", ("restricted", "pod")),
        ("kind: KubeletConfiguration\n", ("none", "container")),
        ("{", None),
        ("- 1", None),
        ("since: 2026-13-45\n", None),
        ("[" * 5000, None),
    ],
)
def test_kubelets_policy_is_in_its_file(tmp_path, text, expected):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    found = kubelet_policy([tmp_path / "none", file])
    assert (tuple(found.values()) or None) == expected
