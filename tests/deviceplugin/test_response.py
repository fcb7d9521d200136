"""The messages kubelet gets, as values."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.config import Config
from gpuplugin.config.settings import Flags, Imex, PluginFlags
from gpuplugin.deviceplugin.response import Delivery, container_response, device_list
from gpuplugin.errors import DeviceUnavailable, UnknownDevice, UnsatisfiableRequest
from gpuplugin.model.driver_root import Capability, DriverRoot, Extra, Node
from gpuplugin.model.health import HEALTHY, DeviceHealth, Level
from gpuplugin.model.ids import DeviceId, GpuUuid, MigUuid, NumaId, ResourceName
from gpuplugin.plan.desired import OfferedDevice, OfferedResource
from gpuplugin.plan.mps import MpsFolders
from gpuplugin.plan.nodes import DeviceNodes, device_nodes
from gpuplugin.plan.sharing import Kind, Share
from tests.plan.machine import gpu, inventory

CRI = Delivery(frozenset({"cdi-cri"}))
ENV = Delivery(frozenset({"envvar"}))
STRATEGIES = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
LISTED = "/var/run/nvidia-container-devices"


def device(index, health=HEALTHY, numa=(0,), share=None, mig=None):
    uuid = GpuUuid(f"GPU-{index}")
    own = DeviceId(uuid) if mig is None else DeviceId(f"MIG-{index}-{mig}")
    mig_uuid = None if mig is None else MigUuid(own)
    return OfferedDevice(own, uuid, index, index, health, tuple(map(NumaId, numa)), mig_uuid, mig, share)


def offer(*devices, mps=None):
    return OfferedResource(ResourceName("nvidia.com/gpu"), devices, mps)


RESOURCE = offer(
    device(0), device(1, numa=(1,)), device(2, DeviceHealth(Level.UNHEALTHY, "XID 79")), device(10, numa=())
)


def sliced(count=4, gpus=2, kind=Kind.TIME_SLICING, mps=None, **rules):
    return offer(*(device(index, share=Share(kind, count, **rules)) for index in range(gpus)), mps=mps)


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


def test_the_list_has_every_replica():
    listed = [(d.ID, [n.ID for n in d.topology.nodes]) for d in device_list(sliced(2)).devices]
    assert listed == [("GPU-0::0", [0]), ("GPU-0::1", [0]), ("GPU-1::0", [0]), ("GPU-1::1", [0])]


def test_cdi_cri_names_devices_and_nothing_else():
    response = container_response(RESOURCE, ["GPU-1", "GPU-0"], CRI)
    assert [d.name for d in response.cdi_devices] == ["gpuplugin.io/gpu=GPU-0", "gpuplugin.io/gpu=GPU-1"]
    assert not response.envs
    assert not response.mounts
    assert not response.devices
    assert not response.annotations


def test_cdi_annotations_name_devices_under_a_key_of_their_own():
    annotations = Delivery(frozenset({"cdi-annotations"}))
    first = dict(container_response(RESOURCE, ["GPU-1", "GPU-0"], annotations).annotations)
    assert list(first.values()) == ["gpuplugin.io/gpu=GPU-0,gpuplugin.io/gpu=GPU-1"]
    [key] = first
    prefix, _, name = key.partition("/")
    assert (prefix, name.partition("_")[0]) == ("cdi.k8s.io", "gpuplugin")
    assert len(name) <= 63
    assert first == dict(container_response(RESOURCE, ["GPU-0", "GPU-1"], annotations).annotations)
    assert not first.keys() & container_response(RESOURCE, ["GPU-0"], annotations).annotations.keys()


def test_the_annotations_prefix_can_be_set():
    delivery = Delivery(frozenset({"cdi-annotations"}), annotation_prefix="example.com/")
    [key] = container_response(RESOURCE, ["GPU-0"], delivery).annotations
    assert key.startswith("example.com/gpuplugin_")


def test_envvar_lists_uuids_in_the_order_of_gpu_indices():
    response = container_response(RESOURCE, ["GPU-10", "GPU-1"], ENV)
    assert dict(response.envs) == {"NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-10"}
    assert not response.cdi_devices


def test_volume_mounts_list_devices_by_mounts():
    response = container_response(RESOURCE, ["GPU-0", "GPU-1"], Delivery(frozenset({"volume-mounts"})))
    assert dict(response.envs) == {"NVIDIA_VISIBLE_DEVICES": LISTED}
    assert [(m.host_path, m.container_path) for m in response.mounts] == [
        ("/dev/null", f"{LISTED}/GPU-0"),
        ("/dev/null", f"{LISTED}/GPU-1"),
    ]


COMBINATIONS = [set(some) for count in range(1, 5) for some in combinations(STRATEGIES, count)]


@pytest.mark.parametrize("strategies", COMBINATIONS, ids=lambda some: "+".join(sorted(some)))
def test_each_combination_names_the_devices_once_for_each_reader(strategies):
    response = container_response(RESOURCE, ["GPU-0"], Delivery(frozenset(strategies)))
    by_mounts = "volume-mounts" in strategies
    assert bool(response.cdi_devices) == ("cdi-cri" in strategies)
    assert bool(response.annotations) == ("cdi-annotations" in strategies)
    assert bool(response.mounts) == by_mounts
    listed = LISTED if by_mounts else "GPU-0" if "envvar" in strategies else None
    assert response.envs.get("NVIDIA_VISIBLE_DEVICES") == listed


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_devices_may_be_called_by_index(strategy):
    resource = offer(device(3, mig=1), device(4))
    response = container_response(resource, ["GPU-4", "MIG-3-1"], Delivery(frozenset({strategy}), by_index=True))
    said = [
        *(d.name.partition("=")[2] for d in response.cdi_devices),
        *(m.container_path.rpartition("/")[2] for m in response.mounts),
        *(name.partition("=")[2] for value in response.annotations.values() for name in value.split(",")),
        *(response.envs["NVIDIA_VISIBLE_DEVICES"].split(",") if strategy == "envvar" else ()),
    ]
    assert said == ["3:1", "4"]


def test_imex_channels_are_named_as_the_devices_are():
    env = container_response(RESOURCE, ["GPU-0"], Delivery(frozenset({"envvar"}), imex_channels=(0,)))
    assert env.envs["NVIDIA_IMEX_CHANNELS"] == "0"
    mounts = container_response(RESOURCE, ["GPU-0"], Delivery(frozenset({"volume-mounts"}), imex_channels=(0,)))
    assert [m.container_path for m in mounts.mounts] == [f"{LISTED}/GPU-0", f"{LISTED}/imex/0"]
    assert "NVIDIA_IMEX_CHANNELS" not in mounts.envs


def test_what_else_is_wanted_is_asked_of_nvidias_runtime():
    config = Config(
        flags=Flags(
            gdrcopy_enabled=True,
            gds_enabled=True,
            mofed_enabled=True,
            plugin=PluginFlags(device_list_strategy=("envvar",)),
        ),
        imex=Imex(channel_ids=(0,)),
    )
    assert dict(container_response(RESOURCE, ["GPU-0"], Delivery.of(config)).envs) == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-0",
        "NVIDIA_IMEX_CHANNELS": "0",
        "NVIDIA_GDRCOPY": "enabled",
        "NVIDIA_GDS": "enabled",
        "NVIDIA_MOFED": "enabled",
    }


def node(path, major=195):
    return Node(path, f"/driver{path}", (major, 0))


MACHINE = inventory(gpu(0), gpu(1, "3g.40gb"))
ROOT = DriverRoot(
    root="/driver",
    dev_root="/driver",
    version="580",
    machine="x86_64",
    nodes=tuple(
        map(node, ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-uvm", "/dev/nvidia-caps/nvidia-cap2"])
    ),
    dri=(),
    libraries=(),
    loader_files=(),
    files=(),
    caps={MigUuid("MIG-1-0"): (Capability("gpu1/gi1/access", 2), Capability("gpu1/gi1/ci0/access", 3))},
    extras=(Extra("imex-channel0", (node("/dev/nvidia-caps-imex-channels/channel0"),)),),
)


def test_kubelet_may_be_given_the_nodes_that_are_there_each_once():
    nodes = device_nodes(MACHINE, ROOT)
    given_ = Delivery(frozenset({"envvar"}), nodes=nodes)
    response = container_response(sliced(), ["GPU-0::0", "GPU-0::3"], given_)
    assert [(d.container_path, d.host_path, d.permissions) for d in response.devices] == [
        (path, f"/driver{path}", "rw")
        for path in (
            "/dev/nvidiactl",
            "/dev/nvidia-uvm",
            "/dev/nvidia-caps-imex-channels/channel0",
            "/dev/nvidia0",
        )
    ]


def test_a_mig_device_has_its_capabilities_and_its_parents_node():
    assert [one.path for one in device_nodes(MACHINE, ROOT).own[MigUuid("MIG-1-0")]] == [
        "/dev/nvidia1",
        "/dev/nvidia-caps/nvidia-cap2",
    ]


def test_nodes_are_not_given_twice_where_cdi_alone_gives_them():
    nodes = device_nodes(MACHINE, ROOT)
    assert not container_response(RESOURCE, ["GPU-0"], Delivery(frozenset({"cdi-cri"}), nodes=nodes)).devices


@pytest.mark.parametrize("wanted", [True, False])
def test_nodes_are_given_only_where_they_are_wanted(wanted):
    config = Config(flags=Flags(plugin=PluginFlags(pass_device_specs=wanted)))
    assert (Delivery.of(config, DeviceNodes((), {})).nodes is not None) == wanted


def test_a_device_named_twice_is_given_once():
    assert len(container_response(RESOURCE, ["GPU-0", "GPU-0"], CRI).cdi_devices) == 1


def test_replicas_of_one_gpu_are_that_gpu_once():
    response = container_response(sliced(), ["GPU-1::2", "GPU-0::0", "GPU-1::0"], CRI)
    assert [d.name for d in response.cdi_devices] == ["gpuplugin.io/gpu=GPU-0", "gpuplugin.io/gpu=GPU-1"]


def test_an_unknown_id_is_named():
    with pytest.raises(UnknownDevice, match=r"nvidia.com/gpu has no device 'GPU-7'"):
        container_response(RESOURCE, ["GPU-0", "GPU-7"], CRI)


@pytest.mark.parametrize(
    "unknown", ["GPU-0", "GPU-0::4", "GPU-0::", "GPU-0::-1", "GPU-0::x", "GPU-0::0::0", "GPU-9::0"]
)
def test_an_id_that_is_no_replica_is_unknown(unknown):
    with pytest.raises(UnknownDevice):
        container_response(sliced(), [unknown], CRI)


def test_a_replica_of_what_is_not_shared_is_unknown():
    with pytest.raises(UnknownDevice):
        container_response(RESOURCE, ["GPU-0::0"], CRI)


def test_an_unhealthy_device_is_refused_with_its_reason():
    with pytest.raises(DeviceUnavailable, match="GPU-2 cannot be used: XID 79"):
        container_response(RESOURCE, ["GPU-2"], CRI)


def test_more_than_one_slice_may_be_refused():
    resource = sliced(one_each=True)
    assert container_response(resource, ["GPU-0::0"], CRI).cdi_devices
    with pytest.raises(UnsatisfiableRequest) as caught:
        container_response(resource, ["GPU-0::0", "GPU-1::0"], CRI)
    assert str(caught.value) == (
        "nvidia.com/gpu: 2 asked for, but a container may have only 1 of a shared device "
        "(sharing.timeSlicing.failRequestsGreaterThanOne): more slices give no more of a GPU"
    )


def test_slices_that_must_be_apart_are_never_given_on_one_gpu():
    resource = sliced(spread=True)
    assert len(container_response(resource, ["GPU-0::0", "GPU-1::3"], CRI).cdi_devices) == 2
    with pytest.raises(UnsatisfiableRequest, match=r"each on a GPU of its own .* not enough GPUs have one to give"):
        container_response(resource, ["GPU-0::0", "GPU-0::1"], CRI)


FOLDERS = MpsFolders("/run/nvidia/mps/nvidia.com/gpu/pipe", "/run/nvidia/mps/shm")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_client_of_mps_gets_pipes_and_shared_memory(strategy):
    resource = sliced(kind=Kind.MPS, mps=FOLDERS)
    response = container_response(resource, ["GPU-0::0"], Delivery(frozenset({strategy})))
    assert response.envs["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/nvidia.com/gpu/pipe"
    mounts = [(m.host_path, m.container_path) for m in response.mounts if m.host_path != "/dev/null"]
    assert mounts == [(FOLDERS.pipe, "/mps/nvidia.com/gpu/pipe"), (FOLDERS.shm, "/dev/shm")]


def test_who_does_not_share_gets_nothing_of_mps():
    resource = offer(device(0), device(1, share=Share(Kind.MPS, 2)), mps=FOLDERS)
    assert not container_response(resource, ["GPU-0"], CRI).envs


@given(st.lists(st.sampled_from([f"GPU-{index}::{n}" for index in range(2) for n in range(4)]), min_size=1))
def test_whatever_is_asked_for_each_gpu_is_given_once_and_in_order(ids):
    given_ = [d.name.partition("=")[2] for d in container_response(sliced(), ids, CRI).cdi_devices]
    assert given_ == sorted({one.partition("::")[0] for one in ids})
