"""What sysfs tells of PCI devices and NUMA nodes, and what it costs when it says nonsense."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplugin.discovery.sysfs import CPU_LIMIT, READ_LIMIT, Sysfs, parse_cpulist
from gpuplugin.errors import SysfsError
from gpuplugin.model.ids import PciAddress
from gpuplugin.model.inventory import NumaNode, PciePath
from tests.discovery.sysfs_tree import GPU, GPU_BRIDGES, NIC, VF, Tree, warned


class TestCpulist:
    @pytest.mark.parametrize(
        ("text", "cpus"),
        [
            ("", ()),
            ("\n", ()),
            ("0\n", (0,)),
            ("0-3,8", (0, 1, 2, 3, 8)),
            ("5-5", (5,)),
            (f"{CPU_LIMIT - 1}", (CPU_LIMIT - 1,)),
        ],
    )
    def test_good(self, text, cpus):
        assert parse_cpulist(text) == cpus

    @pytest.mark.parametrize(
        "text",
        ["-", "a", "1-", "-1", "3-1", "0,,2", ",", "0-3,2", "+1", "1_0", "٣", "0 1", "0-99999999999", f"{CPU_LIMIT}"],
    )
    def test_garbage(self, text):
        with pytest.raises(ValueError, match="is not a"):
            parse_cpulist(text)

    @given(st.frozensets(st.integers(0, 300)))
    def test_whatever_the_kernel_prints_is_read_back(self, cpus):
        ranges: list[list[int]] = []
        for cpu in sorted(cpus):
            if ranges and ranges[-1][-1] == cpu - 1:
                ranges[-1].append(cpu)
            else:
                ranges.append([cpu])
        text = ",".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else f"{r[0]}" for r in ranges)
        assert parse_cpulist(text + "\n") == tuple(sorted(cpus))

    @given(st.text(max_size=30))
    def test_any_text_is_read_or_refused(self, text):
        try:
            cpus = parse_cpulist(text)
        except ValueError:
            return
        assert list(cpus) == sorted(set(cpus))


class TestPci:
    def test_place_and_numa_node(self, tree):
        assert tree.sysfs.pci(PciAddress("0000:1b:00.0")) == (0, PciePath("pci0000:17", GPU_BRIDGES))
        assert tree.sysfs.take_warnings() == ()

    def test_nvmls_notation_is_understood(self, tree):
        assert tree.sysfs.pci(PciAddress("00000000:1B:00.0"))[0] == 0

    @pytest.mark.parametrize(
        ("content", "numa", "warning"),
        [
            ("1\n", 1, ""),
            ("-1\n", None, ""),
            ("-2\n", None, "numa_node: '-2' is not a number"),
            ("", None, "numa_node: '' is not a line of text"),
            ("zero\n", None, "numa_node: 'zero' is not a number"),
            ("0\n1\n", None, "numa_node: '0\\n1' is not a line of text"),
            (b"\xff\xfe\n", None, "numa_node: 'utf-8' codec can't decode"),
            (b"\0" * 8, None, "numa_node: '\\x00"),
            ("9" * 5000, None, "is not a number"),
            ("9" * (READ_LIMIT + 1), None, "numa_node: longer than 65536 bytes"),
            (None, None, "numa_node: No such file or directory"),
        ],
    )
    def test_numa_node(self, tree, content, numa, warning):
        (tree.root / GPU / "numa_node").unlink()
        if content is not None:
            tree.file(f"{GPU}/numa_node", content)
        found, path = tree.sysfs.pci(PciAddress("0000:1b:00.0"))
        assert (found, path) == (numa, PciePath("pci0000:17", GPU_BRIDGES))
        warnings = tree.sysfs.take_warnings()
        assert [warning in each for each in warnings] == ([True] if warning else [])
        assert all(len(each) < 300 for each in warnings)

    @pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
    def test_something_else_in_the_place_of_a_file(self, tree, make):
        file = tree.root / GPU / "numa_node"
        file.unlink()
        make(file)
        before = set(Path("/proc/self/fd").iterdir())
        assert tree.sysfs.pci(PciAddress("0000:1b:00.0"))[0] is None
        assert "numa_node" in warned(tree)
        assert set(Path("/proc/self/fd").iterdir()) == before

    @pytest.mark.parametrize(
        ("folder", "path"),
        [
            ("devices/pci0000:00/0000:00:05.0", PciePath("pci0000:00", ())),
            (
                "devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:02.0/10000:e1:00.0",
                PciePath("pci10000:e0", (PciAddress("10000:e0:02.0"),)),
            ),
            (
                "devices/platform/d40000.pcie/pci000f:00/000f:00:00.0/000f:01:00.0",
                PciePath("pci000f:00", (PciAddress("000f:00:00.0"),)),
            ),
            ("devices/odd/0000:02:00.0", None),
            ("devices/pci0000:00/odd/0000:02:00.0", None),
        ],
    )
    def test_other_trees(self, tree, folder, path):
        tree.device(folder)
        assert tree.sysfs.pci(PciAddress(Path(folder).name)) == (0, path)
        assert bool(tree.sysfs.take_warnings()) == (path is None)

    @pytest.mark.parametrize(
        ("target", "warning"),
        [
            ("bus/pci/devices/0000:2b:00.0", "0000:2b:00.0: "),
            ("devices/nowhere/0000:2b:00.0", "No such file or directory"),
            ("../elsewhere", "which is not a device's folder in"),
            ("file", "which is not a device's folder in"),
        ],
    )
    def test_a_link_that_leads_nowhere(self, tree, target, warning):
        (tree.root.parent / "elsewhere").mkdir()
        tree.file("file", "")
        tree.link("bus/pci/devices/0000:2b:00.0", target)
        assert tree.sysfs.pci(PciAddress("0000:2b:00.0")) == (None, None)
        assert warning in warned(tree)
        assert tree.sysfs.pci(PciAddress("0000:1b:00.0"))[0] == 0

    @pytest.mark.parametrize("address", ["../../../../etc", "", "1b:00", "0000:1b:00.0/../x"])
    def test_what_is_no_address_is_not_looked_up(self, tree, address):
        assert tree.sysfs.pci(PciAddress(address)) == (None, None)
        assert "is not a PCI address" in warned(tree)

    def test_an_unknown_device(self, tree):
        assert tree.sysfs.pci(PciAddress("0000:ff:00.0")) == (None, None)
        assert "0000:ff:00.0: No such file" in warned(tree)

    def test_a_tree_without_a_pci_bus(self, tmp_path):
        with pytest.raises(SysfsError, match="is this the host's /sys") as raised:
            Sysfs(tmp_path).pci(PciAddress("0000:1b:00.0"))
        assert raised.value.path == tmp_path / "bus/pci/devices"


class TestNumaNodes:
    def test_none(self, tree):
        assert tree.sysfs.numa_nodes() == ()
        assert tree.sysfs.take_warnings() == ()

    def test_in_the_order_of_ids(self, tree):
        for n in range(11):
            tree.file(f"devices/system/node/node{n}/cpulist", f"{n * 2}-{n * 2 + 1}\n")
            tree.file(f"devices/system/node/node{n}/distance", " ".join("10" if n == m else "21" for m in range(11)))
        tree.file("devices/system/node/online", "0-10")
        (tree.root / "devices/system/node/nodeX").mkdir()
        nodes = tree.sysfs.numa_nodes()
        assert [node.id for node in nodes] == list(range(11))
        assert nodes[10].cpus == (20, 21)
        assert nodes[10].distances == (21,) * 10 + (10,)
        assert tree.sysfs.take_warnings() == ()

    @pytest.mark.parametrize(
        ("file", "content", "expected", "warning"),
        [
            ("cpulist", "\n", NumaNode(0, (), (10,)), ""),
            ("cpulist", "lots", NumaNode(0, (), (10,)), "cpulist: 'lots' is not a number"),
            ("cpulist", None, NumaNode(0, (), (10,)), "cpulist: No such file"),
            ("distance", "near", NumaNode(0, (0, 1), ()), "distance: 'near' is not a number"),
            ("distance", "10 21", NumaNode(0, (0, 1), ()), "distance: 2 distances for 1 NUMA nodes"),
            ("distance", None, NumaNode(0, (0, 1), ()), "distance: No such file"),
        ],
    )
    def test_garbage(self, tree, file, content, expected, warning):
        tree.file("devices/system/node/node0/cpulist", "0-1\n")
        tree.file("devices/system/node/node0/distance", "10\n")
        changed = tree.file(f"devices/system/node/node0/{file}", content or "")
        if content is None:
            changed.unlink()
        assert tree.sysfs.numa_nodes() == (expected,)
        assert [warning in each for each in tree.sysfs.take_warnings()] == ([True] if warning else [])

    def test_a_folder_that_cannot_be_listed(self, tree):
        tree.file("devices/system/node", "")
        with pytest.raises(SysfsError, match="Not a directory"):
            tree.sysfs.numa_nodes()


FILES = (
    f"{NIC}/numa_node",
    "class/infiniband/mlx5_0/node_guid",
    "class/infiniband/mlx5_0/ports/1/rate",
    "class/infiniband/mlx5_0/ports/1/state",
    "class/infiniband/mlx5_0/ports/1/link_layer",
    "class/infiniband_verbs/uverbs0/ibdev",
    "devices/system/node/node0/cpulist",
    "devices/system/node/node0/distance",
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(FILES), st.none() | st.binary(max_size=20) | st.text(max_size=10), min_size=1))
def test_whatever_the_files_say_the_other_devices_are_as_they_were(tmp_path_factory, contents):
    tree = Tree(tmp_path_factory.mktemp("garbage") / "sys")
    tree.device(GPU, "1\n")
    for n, device in enumerate((NIC, VF)):
        tree.nic(f"mlx5_{n}", device, uverbs=f"uverbs{n}")
        tree.file(f"devices/system/node/node{n}/cpulist", f"{n}\n")
        tree.file(f"devices/system/node/node{n}/distance", "10 21\n")
    gpu, nic, node = tree.sysfs.pci(PciAddress("0000:1b:00.0")), tree.sysfs.nics()[1], tree.sysfs.numa_nodes()[1]
    for path, content in contents.items():
        file = tree.file(path, content or b"")
        if content is None:
            file.unlink()
    assert tree.sysfs.pci(PciAddress("0000:1b:00.0")) == gpu
    spoilt, other = tree.sysfs.nics()
    assert (spoilt.name, spoilt.pci) == ("mlx5_0", "0000:1c:00.0")
    if contents.get("class/infiniband_verbs/uverbs0/ibdev") not in ("mlx5_1", b"mlx5_1"):
        assert other == nic
    assert tree.sysfs.numa_nodes()[1] == node
    assert len(tree.sysfs.take_warnings()) <= 2 * len(contents)


def test_warnings_are_given_once_and_then_forgotten(tree):
    for _ in range(3):
        tree.sysfs.pci(PciAddress("0000:ff:00.0"))
    assert len(tree.sysfs.take_warnings()) == 1
    assert tree.sysfs.take_warnings() == ()


@pytest.mark.skipif(not Path("/sys/bus/pci/devices").is_dir(), reason="this machine's kernel has no PCI bus")
def test_this_machines_own_tree():
    sysfs = Sysfs()
    for link in Path("/sys/bus/pci/devices").iterdir():
        _, path = sysfs.pci(PciAddress(link.name))
        assert path is not None
        assert path.root in str(link.resolve())
    cpus = [cpu for node in sysfs.numa_nodes() for cpu in node.cpus]
    assert len(cpus) == len(set(cpus))
