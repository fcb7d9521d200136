"""The messages kubelet gets, as values."""

import pytest

from gpuplugin.deviceplugin.response import container_response, device_list
from gpuplugin.errors import DeviceUnavailable, UnknownDevice
from gpuplugin.model.health import HEALTHY, DeviceHealth, Level
from gpuplugin.model.ids import DeviceId, GpuUuid, NumaId, ResourceName
from gpuplugin.plan.desired import OfferedDevice, OfferedResource

KIND = "gpuplugin.io/gpu"


def device(index, health=HEALTHY, numa=(0,)):
    uuid = f"GPU-{index}"
    return OfferedDevice(DeviceId(uuid), GpuUuid(uuid), index, index, health, tuple(map(NumaId, numa)))


RESOURCE = OfferedResource(
    ResourceName("nvidia.com/gpu"),
    (device(0), device(1, numa=(1,)), device(2, DeviceHealth(Level.UNHEALTHY, "XID 79")), device(10, numa=())),
)


def test_the_list_has_every_device_with_level_and_numa_node():
    listed = [
        (d.ID, d.health, [n.ID for n in d.topology.nodes], d.HasField("topology"))
        for d in device_list(RESOURCE).devices
    ]
    assert listed == [
        ("GPU-0", "Healthy", [0], True),
        ("GPU-1", "Healthy", [1], True),
        ("GPU-2", "Unhealthy", [0], True),
        ("GPU-10", "Healthy", [], False),
    ]


def test_cdi_cri_names_devices_and_nothing_else():
    response = container_response(RESOURCE, ["GPU-1", "GPU-0"], ["cdi-cri"], KIND)
    assert [d.name for d in response.cdi_devices] == ["gpuplugin.io/gpu=GPU-0", "gpuplugin.io/gpu=GPU-1"]
    assert not response.envs
    assert not response.mounts
    assert not response.devices
    assert not response.annotations


def test_envvar_lists_uuids_in_the_order_of_gpu_indices():
    response = container_response(RESOURCE, ["GPU-10", "GPU-1"], ["envvar"], KIND)
    assert dict(response.envs) == {"NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-10"}
    assert not response.cdi_devices


def test_a_device_named_twice_is_given_once():
    assert len(container_response(RESOURCE, ["GPU-0", "GPU-0"], ["cdi-cri"], KIND).cdi_devices) == 1


def test_an_unknown_id_is_named():
    with pytest.raises(UnknownDevice, match=r"nvidia.com/gpu has no device 'GPU-7'"):
        container_response(RESOURCE, ["GPU-0", "GPU-7"], ["cdi-cri"], KIND)


def test_an_unhealthy_device_is_refused_with_its_reason():
    with pytest.raises(DeviceUnavailable, match="GPU-2 cannot be used: XID 79"):
        container_response(RESOURCE, ["GPU-2"], ["cdi-cri"], KIND)
