"""What sysfs tells of RDMA NICs, and what it costs when it says nonsense."""

from __future__ import annotations

import pytest

from gpuplugin.errors import SysfsError
from gpuplugin.model.inventory import PciePath
from tests.discovery.sysfs_tree import NIC, NIC_BRIDGES, VF, warned


class TestNics:
    def test_none(self, tree):
        assert tree.sysfs.nics() == ()
        assert tree.sysfs.take_warnings() == ()

    def test_all_facts(self, tree):
        tree.nic("mlx5_0", NIC, uverbs="uverbs7", netdev="ibs1")
        (nic,) = tree.sysfs.nics()
        assert tree.sysfs.take_warnings() == ()
        assert nic.name == "mlx5_0"
        assert nic.pci == "0000:1c:00.0"
        assert nic.numa == 0
        assert nic.pcie == PciePath("pci0000:17", NIC_BRIDGES)
        assert nic.link_layer == "InfiniBand"
        assert nic.rate == "400 Gb/sec (4X NDR)"
        assert nic.state == "ACTIVE"
        assert nic.node_guid == "0c42:a103:0065:0f3a"
        assert nic.netdev == "ibs1"
        assert nic.uverbs == "uverbs7"

    def test_virtual_functions_stand_beside_their_nic(self, tree):
        tree.nic("mlx5_0", NIC, uverbs="uverbs0")
        tree.nic("mlx5_1", VF, uverbs="uverbs1")
        tree.link(f"{VF}/physfn", NIC)
        assert [(nic.name, nic.pci, nic.uverbs) for nic in tree.sysfs.nics()] == [
            ("mlx5_0", "0000:1c:00.0", "uverbs0"),
            ("mlx5_1", "0000:1c:00.2", "uverbs1"),
        ]

    def test_a_scalable_function_has_its_parents_address(self, tree):
        tree.device(NIC)
        tree.nic("mlx5_4", f"{NIC}/mlx5_core.sf.4", uverbs="uverbs4")
        tree.nic("mlx5_0", NIC, uverbs="uverbs0")
        parent, function = tree.sysfs.nics()
        assert (function.name, function.pci, function.uverbs) == ("mlx5_4", "0000:1c:00.0", "uverbs4")
        assert function.pcie == parent.pcie == PciePath("pci0000:17", NIC_BRIDGES)

    def test_two_nics_on_one_device_are_told_apart_by_name(self, tree):
        for n in (0, 1):
            tree.nic(f"dual_{n}", NIC, uverbs=f"uverbs{n}")
            tree.file(f"class/infiniband_verbs/uverbs{n}/ibdev", f"dual_{1 - n}\n")
        assert [nic.uverbs for nic in tree.sysfs.nics()] == ["uverbs1", "uverbs0"]

    def test_the_ports_own_interface_among_representors(self, tree):
        tree.nic("mlx5_0", NIC)
        for name in ("aaa_rep0", "ens1", "zzz_rep1"):
            (tree.root / NIC / "net" / name).mkdir(parents=True)
        assert tree.sysfs.nics()[0].netdev == "aaa_rep0"
        tree.file("class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "ens1\n")
        assert tree.sysfs.nics()[0].netdev == "ens1"
        assert tree.sysfs.take_warnings() == ()

    def test_the_first_port_is_the_one_with_the_lowest_number(self, tree):
        tree.nic("mlx5_0", NIC)
        for port in ("2", "10"):
            tree.file(f"class/infiniband/mlx5_0/ports/{port}/state", "1: DOWN\n")
        assert tree.sysfs.nics()[0].state == "ACTIVE"

    def test_a_nic_made_of_software_is_none_of_ours(self, tree):
        tree.file("class/infiniband/rxe0/node_guid", "0000:0000:0000:0000\n")
        assert tree.sysfs.nics() == ()
        assert tree.sysfs.take_warnings() == ()

    @pytest.mark.parametrize(
        ("path", "content", "fact", "warning"),
        [
            ("node_guid", "not a guid", "node_guid", "node_guid: 'not a guid' is not a GUID"),
            ("node_guid", None, "node_guid", "node_guid: No such file"),
            ("ports/1/rate", "", "rate", "rate: '' is not a line"),
            ("ports/1/rate", b"\xff", "rate", "rate: 'utf-8' codec"),
            ("ports/1/state", None, "state", "state: No such file"),
            ("ports/1/link_layer", "a\nb", "link_layer", "link_layer: 'a\\nb' is not a line"),
        ],
    )
    def test_garbage_costs_one_fact(self, tree, path, content, fact, warning):
        tree.nic("mlx5_0", NIC)
        tree.nic("mlx5_1", VF)
        file = tree.file(f"class/infiniband/mlx5_0/{path}", content or "")
        if content is None:
            file.unlink()
        bad, good = tree.sysfs.nics()
        assert getattr(bad, fact) is None
        assert getattr(good, fact) is not None
        facts = ("link_layer", "rate", "state", "node_guid")
        assert [name for name in facts if getattr(bad, name) is None] == [fact]
        assert [warning in each for each in tree.sysfs.take_warnings()] == [True]

    @pytest.mark.parametrize(
        ("spoil", "names", "warning"),
        [
            (lambda t: t.link("class/infiniband/mlx5_0/device", "devices/gone"), ["mlx5_1"], "No such file"),
            (
                lambda t: t.link("class/infiniband/mlx5_0/device", "class/infiniband/mlx5_0/device"),
                ["mlx5_1"],
                "Too many levels",
            ),
            (lambda t: t.link("class/infiniband/mlx5_0/device", "devices"), ["mlx5_1"], "not on a PCI bus"),
            (lambda t: t.file("class/infiniband/stray", ""), ["mlx5_0", "mlx5_1"], ""),
            (lambda t: t.file(f"{NIC}/net", ""), ["mlx5_0", "mlx5_1"], "net: Not a directory"),
            (lambda t: t.file("class/infiniband_verbs", ""), ["mlx5_0", "mlx5_1"], "verbs: Not a dir"),
            (
                lambda t: t.link("class/infiniband_verbs/uverbs0/device", "devices/gone"),
                ["mlx5_0", "mlx5_1"],
                "uverbs0/device: No such",
            ),
        ],
        ids=["broken link", "loop", "not PCI", "stray file", "net is a file", "verbs is a file", "broken uverbs"],
    )
    def test_one_bad_nic_hides_no_other(self, tree, spoil, names, warning):
        tree.nic("mlx5_0", NIC)
        tree.nic("mlx5_1", VF)
        spoil(tree)
        assert [nic.name for nic in tree.sysfs.nics()] == names
        assert [warning in each for each in tree.sysfs.take_warnings()] == ([True] if warning else [])

    def test_a_nic_without_ports(self, tree):
        tree.device(NIC)
        tree.link("class/infiniband/mlx5_0/device", NIC)
        tree.file("class/infiniband/mlx5_0/node_guid", "0c42:a103:0065:0f3a\n")
        (nic,) = tree.sysfs.nics()
        assert (nic.link_layer, nic.rate, nic.state) == (None, None, None)
        assert "ports: no port" in warned(tree)

    def test_a_folder_that_cannot_be_listed(self, tree):
        tree.file("class/infiniband", "")
        with pytest.raises(SysfsError, match="Not a directory"):
            tree.sysfs.nics()
