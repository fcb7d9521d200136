"""The object that schedulers read, from amounts a NUMA node."""

from __future__ import annotations

from gpuplugin.labels.zones import Amount, topology_object
from gpuplugin.model.inventory import NumaNode

NUMA = (NumaNode(0, (0, 1), (10, 21)), NumaNode(1, (2, 3), (21, 10)))


def test_each_numa_node_is_a_zone_with_its_costs_and_devices():
    amounts = [Amount("nvidia.com/gpu", 1, 4, 3, 1), Amount("nvidia.com/gpu", 0, 4, 4, 4)]
    amounts.append(Amount("nvidia.com/a", 1, 1, 1, 1))
    found = topology_object("here", NUMA, amounts, {"topologyManagerScope": "pod", "a": "b"})
    assert found["metadata"] == {"name": "here"}
    assert found["attributes"] == [{"name": "a", "value": "b"}, {"name": "topologyManagerScope", "value": "pod"}]
    assert found["zones"][1] == {
        "name": "node-1",
        "type": "Node",
        "costs": [{"name": "node-0", "value": 21}, {"name": "node-1", "value": 10}],
        "resources": [
            {"name": "nvidia.com/a", "capacity": "1", "allocatable": "1", "available": "1"},
            {"name": "nvidia.com/gpu", "capacity": "4", "allocatable": "3", "available": "1"},
        ],
    }
    assert [zone["name"] for zone in found["zones"]] == ["node-0", "node-1"]


def test_a_numa_node_that_sysfs_does_not_have_is_a_zone_all_the_same():
    found = topology_object("here", (), [Amount("nvidia.com/gpu", 3, 1, 1, 1)], {})
    assert [(zone["name"], zone["costs"]) for zone in found["zones"]] == [("node-3", [])]
