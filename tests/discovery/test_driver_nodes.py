"""Nodes beside those of whole GPUs: MIG capabilities, IMEX channels, NICs; and the numbers that the kernel gives."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # import mode importlib leaves it to us

import driver_files as made

from gpuplugin.discovery.device_nodes import NodeSearch
from gpuplugin.discovery.driver_root import DriverRootSearch
from gpuplugin.discovery.places import Place
from gpuplugin.model.driver_root import Capability, Wanted
from gpuplugin.model.ids import MigUuid

MIG = MigUuid("MIG-3-0")
TABLE = "config 1\nmonitor 2\ngpu4/gi3/access 300\ngpu4/gi3/ci0/access 301\nnonsense\ngpu4/gi9/access x\n"


@pytest.fixture
def nodes(tmp_path: Path) -> NodeSearch:
    return NodeSearch(Place(tmp_path, "/host"), tmp_path / "sys", tmp_path / "proc")


def mknod(root: Path, path: str, major: int, minor: int) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mknod(file, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    except PermissionError:
        pytest.skip("making device nodes needs root")


def test_capabilities_come_from_the_table_of_all_instances(tmp_path: Path, nodes: NodeSearch) -> None:
    made.write(tmp_path, "/proc/driver/nvidia-caps/mig-minors", TABLE.encode())
    assert nodes.capabilities([made.gpu("0000:1b:00.0", 4, (3, 0))]) == {
        MIG: (Capability("gpu4/gi3/access", 300), Capability("gpu4/gi3/ci0/access", 301))
    }


def test_without_the_table_they_come_from_the_instances_own_files(tmp_path: Path, nodes: NodeSearch) -> None:
    for name, minor in (("gi3", 21), ("gi3/ci0", 22)):
        text = f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        made.write(tmp_path, f"/proc/driver/nvidia/capabilities/gpu4/mig/{name}/access", text.encode())
    (group,) = nodes.capabilities([made.gpu("0000:1b:00.0", 4, (3, 0))]).values()
    assert [(capability.minor, capability.path) for capability in group] == [
        (21, "/dev/nvidia-caps/nvidia-cap21"),
        (22, "/dev/nvidia-caps/nvidia-cap22"),
    ]


@pytest.mark.parametrize("text", [None, b"", b"DeviceFileMinor: x", b"\xff"])
def test_a_driver_that_does_not_tell_leaves_the_number_open(
    tmp_path: Path, nodes: NodeSearch, text: bytes | None
) -> None:
    if text is not None:
        made.write(tmp_path, "/proc/driver/nvidia/capabilities/gpu4/mig/gi3/access", text)
    (group,) = nodes.capabilities([made.gpu("0000:1b:00.0", 4, (3, 0))]).values()
    assert [capability.minor for capability in group] == [None, None]
    assert list(nodes.nodes_of(group)) == []


def test_a_gpu_without_mig_devices_or_minor_number_has_no_capabilities(nodes: NodeSearch) -> None:
    assert nodes.capabilities([made.gpu("0000:1b:00.0", 4), made.gpu("0000:1c:00.0", None, (1, 0))]) == {}


def test_a_look_brings_the_capabilities_nodes(tmp_path: Path) -> None:
    made.write(tmp_path, "/proc/driver/nvidia-caps/mig-minors", TABLE.encode())
    mknod(tmp_path, "/dev/nvidia-caps/nvidia-cap300", 511, 300)
    place = Place(tmp_path, "/host")
    looked = DriverRootSearch(place, place, tmp_path / "sys", tmp_path / "proc", "x86_64")
    facts = looked.look(made.VERSION, [made.gpu("0000:1b:00.0", 4, (3, 0))])
    assert [(node.path, node.host, node.number) for node in facts.nodes] == [
        ("/dev/nvidia-caps/nvidia-cap300", "/host/dev/nvidia-caps/nvidia-cap300", (511, 300))
    ]
    assert [capability.name for capability in facts.caps[MIG]] == ["gpu4/gi3/access", "gpu4/gi3/ci0/access"]


def test_majors_are_those_of_character_devices(tmp_path: Path, nodes: NodeSearch) -> None:
    assert nodes.majors() == {}
    text = b"Character devices:\n  1 mem\n195 nvidia\n510 nvidia-uvm\n\nBlock devices:\n259 blkext\n  8 nvidia-caps\n"
    made.write(tmp_path, "/proc/devices", text)
    assert nodes.majors() == {"mem": 1, "nvidia": 195, "nvidia-uvm": 510}


def extras(nodes: NodeSearch, **wanted: bool) -> dict[str, tuple[list[str], str | None]]:
    return {
        extra.name: ([node.path for node in extra.nodes] + [file.path for file in extra.files], extra.missing)
        for extra in nodes.extras(Wanted(**wanted))
    }


def test_what_is_wanted_beside_gpus_is_found(tmp_path: Path, nodes: NodeSearch) -> None:
    made.write(tmp_path, "/run/udev/data")
    for path in ("gdrdrv", "nvidia-fs0", "nvidia-fs1", "infiniband/uverbs0", "infiniband/umad0", "infiniband/rdma_cm"):
        made.write(tmp_path, f"/dev/{path}")
    made.write(tmp_path, "/etc/cufile.json")
    assert extras(nodes) == {}
    assert extras(nodes, gdrcopy=True, gds=True, mofed=True) == {
        "gdrcopy": (["/dev/gdrdrv"], None),
        "gds": (["/dev/nvidia-fs0", "/dev/nvidia-fs1", "/etc/cufile.json", "/run/udev"], None),
        "mofed": (["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"], None),
    }


def test_pipes_of_mps_come_along_where_somebody_runs_it(tmp_path: Path, nodes: NodeSearch) -> None:
    assert extras(nodes, mps=True) == {}
    (tmp_path / "tmp/nvidia-mps").mkdir(parents=True)
    assert extras(nodes, mps=True) == {"mps": (["/tmp/nvidia-mps"], None)}
    assert extras(nodes) == {}


def test_what_is_wanted_and_not_there_is_told_with_what_to_do(nodes: NodeSearch) -> None:
    modules = "load the kernel modules ib_uverbs and rdma_ucm"
    found = extras(nodes, gdrcopy=True, gds=True, mofed=True)
    assert found == {
        "gdrcopy": ([], "gdrcopy: /host/dev/gdrdrv is not on the host; load the kernel module gdrdrv"),
        "gds": ([], "gds: /host/dev/nvidia-fs0 is not on the host; load the kernel module nvidia-fs"),
        "mofed": (
            [],
            f"mofed: /host/dev/infiniband/uverbs0, /host/dev/infiniband/rdma_cm is not on the host; {modules}",
        ),
    }


def test_imex_channels_are_named_and_may_be_required(tmp_path: Path, nodes: NodeSearch) -> None:
    made.write(tmp_path, "/proc/devices", b"Character devices:\n509 nvidia-caps-imex-channels\n")
    made.write(tmp_path, "/dev/nvidia-caps-imex-channels/channel3")
    there, gone = nodes.extras(Wanted(imex_channels=(3, 4), imex_required=True))
    assert ([node.path for node in there.nodes], there.missing) == (["/dev/nvidia-caps-imex-channels/channel3"], None)
    assert gone.required
    assert gone.missing is not None
    assert "mknod /dev/nvidia-caps-imex-channels/channel4 c 509 4" in gone.missing


def test_a_nic_is_looked_up_at_the_moment_of_the_call(tmp_path: Path, nodes: NodeSearch) -> None:
    for kind, name, nic in (
        ("infiniband_verbs", "uverbs1", "mlx5_0"),
        ("infiniband_verbs", "uverbs0", "mlx5_1"),
        ("infiniband_mad", "umad7", "mlx5_0"),
        ("infiniband_mad", "issm7", "mlx5_0"),
    ):
        made.write(tmp_path, f"/sys/class/{kind}/{name}/ibdev", f"{nic}\n".encode())
        made.write(tmp_path, f"/dev/infiniband/{name}")
    made.write(tmp_path, "/dev/infiniband/rdma_cm")
    found = nodes.nic("mlx5_0")
    assert found.missing is None
    assert [node.path for node in found.nodes] == [
        "/dev/infiniband/uverbs1",
        "/dev/infiniband/rdma_cm",
        "/dev/infiniband/umad7",
    ]
    (tmp_path / "sys/class/infiniband_verbs/uverbs1/ibdev").write_text("mlx5_9\n")
    made.write(tmp_path, "/sys/class/infiniband_verbs/uverbs5/ibdev", b"mlx5_0\n")
    missing = nodes.nic("mlx5_0").missing
    assert missing is not None
    assert missing.startswith("mlx5_0: /host/dev/infiniband/uverbs5 is not on the host; look whether mlx5_0 has")
    assert "uverbs of it" in str(nodes.nic("mlx5_8").missing)


def test_the_stamp_differs_with_everything_a_look_would_find_differently(tmp_path: Path) -> None:
    made.debian(tmp_path)
    place = Place(tmp_path, "/host")
    looked = DriverRootSearch(place, place, tmp_path / "sys", tmp_path / "proc", "x86_64")
    looked.look(made.VERSION, [])
    seen = [looked.stamp()]
    assert looked.stamp() == seen[0]
    for path in (
        "/proc/driver/nvidia/version",
        "/proc/devices",
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap1",
        "/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access",
        "/proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access",
        f"{made.DEBIAN}/libnvidia-new.so.{made.VERSION}",
        f"{made.DEBIAN}/libcuda.so.{made.VERSION}",
        "/etc/ld.so.cache",
    ):
        made.write(tmp_path, path, b"changed")
        assert looked.stamp() != seen[-1], path
        looked.look(made.VERSION, [])
        seen.append(looked.stamp())
    made.write(tmp_path, "/dev/tty7")
    assert looked.stamp() == seen[-1], "only the driver's nodes count"
