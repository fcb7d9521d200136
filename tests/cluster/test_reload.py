"""A configuration that changes while pods come, on the real thing."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gpunode import GPU, READY_SECONDS, GpuNode
from onenode import Cluster
from onenode.layout import NODE
from onenode.pods import busybox_pod

pytestmark = pytest.mark.cluster

PODS = 12


class Profile:
    """A folder such as a ConfigMap's volume is: its contents are exchanged as one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._number = folder, 0
        folder.mkdir()
        (folder / "config.yaml").symlink_to("..data/config.yaml")

    def write(self, text: str) -> None:
        self._number += 1
        new = self.folder / f"..{self._number}"
        new.mkdir()
        (new / "config.yaml").write_text(text)
        (self.folder / "..new").symlink_to(new.name)
        (self.folder / "..new").replace(self.folder / "..data")

    def slices(self, replicas: int, policy: str = "distributed") -> None:
        self.write(
            json.dumps(
                {
                    "flags": {"plugin": {"sharedDevicesAllocationPolicy": policy}},
                    "sharing": {"timeSlicing": {"resources": [{"name": GPU, "replicas": replicas}]}},
                }
            )
        )


@pytest.fixture
def profile(bare_node: GpuNode, tmp_path: Path) -> Profile:
    """The file that the daemon of `bare_node` runs with: four slices of each GPU."""
    made = Profile(tmp_path / "profile")
    made.slices(4)
    bare_node.start(CONFIG_FILE=str(made.folder / "config.yaml"))
    bare_node.wait_said("kubelet watches", resource=GPU)
    bare_node.wait_allocatable(32)
    return made


@pytest.fixture
def node_label(cluster: Cluster) -> Iterator[Callable[[str | None], None]]:
    """Sets, or with None takes away, the label by which our Node chooses a file."""

    def put(value: str | None) -> None:
        cluster.api.patch("Node", NODE, {"metadata": {"labels": {"nvidia.com/device-plugin.config": value}}})

    yield put
    put(None)


def test_pods_come_up_while_the_file_flips_and_a_gpu_breaks(bare_node: GpuNode, profile: Profile):
    names = [f"pod-{number}" for number in range(PODS)]
    for number, name in enumerate(names):
        profile.slices((8, 4, 6)[number % 3], ("packed", "distributed")[number % 2])
        bare_node.send(signal.SIGHUP)
        bare_node.cluster.api.apply(busybox_pod(name, limits={GPU: 1}))
        if number == PODS // 2:
            bare_node.state.recovery(7, 1)
            bare_node.state.xid(7, 95)
    for name in names:
        assert len(bare_node.in_container(bare_node.cluster.wait_for_phase(name, "Running"))) == 1
    profile.slices(8)
    bare_node.wait_allocatable(56, READY_SECONDS)  # without those of the GPU that broke in between
    assert len(bare_node.said("kubelet watches", resource=GPU)) == 1
    assert len(bare_node.said("registered with kubelet", resource=GPU)) == 1
    assert not bare_node.said("refused")
    held = bare_node.held()
    assert len(frozenset().union(*held.values())) == PODS
    bare_node.end(*names)


def test_file_that_is_refused_leaves_the_earlier_one_in_force(bare_node: GpuNode, profile: Profile):
    profile.write("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpus, replicas: 2}]}}")
    refused = bare_node.wait_said("configuration refused: the earlier one stays in force")
    assert "sharing.timeSlicing.resources[0].name" in refused["reason"]
    assert len(bare_node.in_container(bare_node.pod("still", 1))) == 1
    assert bare_node.cluster.allocatable()[GPU] == "32"


def test_label_of_the_node_chooses_the_file(
    bare_node: GpuNode, tmp_path: Path, node_label: Callable[[str | None], None]
):
    available = tmp_path / "available"
    available.mkdir()
    for name, replicas in (("few", 2), ("many", 4)):
        entry = {"name": GPU, "replicas": replicas}
        (available / name).write_text(json.dumps({"sharing": {"timeSlicing": {"resources": [entry]}}}))
    node_label("many")
    bare_node.start(
        CONFIG_FILE_SRCDIR=str(available),
        DEFAULT_CONFIG="few",
        NODE_NAME=NODE,
        KUBECONFIG=str(bare_node.cluster.layout.admin_kubeconfig),
    )
    bare_node.wait_allocatable(32)
    node_label(None)
    bare_node.wait_allocatable(16)
    node_label("none-of-them")
    assert "it has: few, many" in bare_node.wait_said("no configuration chosen")["reason"]
    assert bare_node.cluster.allocatable()[GPU] == "16"
    assert bare_node.said("offering")[0]["usable"] == 32  # and no whole GPUs before


def test_resource_that_is_renamed_counts_under_its_new_name_alone(bare_node: GpuNode, profile: Profile):
    profile.write("sharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 2}]}}")
    bare_node.cluster.wait_for(
        lambda: bare_node.cluster.allocatable().get(f"{GPU}.shared") == "16", READY_SECONDS, "16 slices"
    )
    bare_node.wait_allocatable(0)


def test_gpus_of_running_pods_are_not_given_again_under_the_new_name_of_their_resource(
    bare_node: GpuNode, tmp_path: Path
):
    """Kubelet takes them for other devices that nobody has: it is we who must hold them back."""
    renamed = "nvidia.com/h100"
    profile = Profile(tmp_path / "profile")
    profile.write("{}")
    bare_node.start(CONFIG_FILE=str(profile.folder / "config.yaml"))
    bare_node.wait_allocatable(8)
    old = bare_node.in_container(bare_node.pod("old", 4))
    profile.write(json.dumps({"resources": {"gpus": [{"pattern": "*H100*", "name": renamed}]}}))

    def allocatable(count: int) -> None:
        bare_node.cluster.wait_for(
            lambda: bare_node.cluster.allocatable().get(renamed) == f"{count}", READY_SECONDS, f"{count} {renamed}"
        )

    allocatable(4)
    bare_node.cluster.api.apply(busybox_pod("new", limits={renamed: 4}))
    new = bare_node.in_container(bare_node.cluster.wait_for_phase("new", "Running"))
    assert len(new) == 4
    assert not new & old
    bare_node.end("old")
    allocatable(8)
    bare_node.cluster.api.apply(busybox_pod("newer", limits={renamed: 4}))
    assert bare_node.in_container(bare_node.cluster.wait_for_phase("newer", "Running")) == old
    bare_node.end("new", "newer")
