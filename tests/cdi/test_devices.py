"""MIG devices, names, `all`, and what containers get beside GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cdi_facts import driver_root, gpu, mig_gpu, with_capabilities

from cdi import parts
from cdi.build import Options, build, build_extra, without_missing
from cdi.hooks import Hooks
from cdi.names import Naming
from cdi.spec import ContainerEdits, DeviceNode, Mount, Spec
from cdi.validate import validate
from gpuplugin.model.driver_root import Capability, DriverRoot, Extra, FileKind, HostFile, Node

DAEMON = Options()
CLI = Options(namings=(Naming.INDEX, Naming.UUID), everything=True, whole_of_mig=False)


def made(*gpus, root: DriverRoot, options: Options = DAEMON) -> Spec:
    built = build(gpus, root, options=options)
    assert built.refused == {}
    assert built.spec is not None
    validate(built.spec)
    return built.spec


def nodes(edits: ContainerEdits) -> list[str]:
    return [node.path for node in edits.device_nodes]


def test_a_mig_device_is_its_gpus_node_and_both_capabilities_and_no_display() -> None:
    one = mig_gpu(0, 2)
    root = with_capabilities(driver_root(dri=True), one)
    whole, first, second = made(one, root=root).devices
    assert [whole.name, first.name, second.name] == [one.uuid, *(device.uuid for device in one.mig_devices)]
    assert "/dev/dri/card0" in nodes(whole.container_edits)
    assert nodes(first.container_edits) == [
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap10",
        "/dev/nvidia-caps/nvidia-cap11",
    ]
    assert nodes(second.container_edits)[1:] == ["/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"]


@pytest.mark.parametrize(("profile", "display"), [("1g.24gb+gfx", True), ("1g.24gb", False), ("1g.24gb+me", False)])
def test_only_graphics_profiles_bring_nodes_for_graphics(profile: str, display: bool) -> None:  # noqa: FBT001
    one = mig_gpu(0, 1, profile)
    spec = made(one, root=with_capabilities(driver_root(dri=True), one))
    assert ("/dev/dri/card0" in nodes(spec.devices[1].container_edits)) is display


def test_a_mig_device_without_its_capability_is_refused_alone() -> None:
    one = mig_gpu(0, 2)
    root = with_capabilities(driver_root(), one)
    broken = replace(root, nodes=tuple(node for node in root.nodes if node.path != "/dev/nvidia-caps/nvidia-cap11"))
    built = build([one], broken)
    assert built.spec is not None
    assert [device.name for device in built.spec.devices] == [one.uuid, one.mig_devices[1].uuid]
    assert built.refused == {
        one.mig_devices[0].uuid: "/dev/nvidia-caps/nvidia-cap11 is missing on the host; make it there with: "
        "nvidia-modprobe -f /proc/driver/nvidia/capabilities/gpu0/mig/gi7/ci0/access"
    }


def test_a_mig_device_whose_capability_has_no_known_number_is_refused() -> None:
    one = mig_gpu(0, 1)
    root = replace(driver_root(), caps={one.mig_devices[0].uuid: (Capability("gpu0/gi7/access", None),)})
    assert "number of the capability gpu0/gi7/access" in build([one], root).refused[one.mig_devices[0].uuid]
    assert one.mig_devices[0].uuid in build([one], driver_root()).refused


def test_a_gpu_without_its_node_takes_its_mig_devices_with_it() -> None:
    one = mig_gpu(0, 2)
    root = with_capabilities(driver_root(0), one)
    built = build([one], root)
    assert built.spec is None
    assert set(built.refused) == {one.uuid, *(device.uuid for device in one.mig_devices)}


@pytest.mark.parametrize(
    ("namings", "expected"),
    [
        ((Naming.INDEX,), ["0", "1:0", "1:1", "all"]),
        ((Naming.TYPE_INDEX,), ["gpu0", "mig1:0", "mig1:1", "all"]),
        ((Naming.TYPE_INDEX, Naming.INDEX), ["gpu0", "0", "mig1:0", "1:0", "mig1:1", "1:1", "all"]),
        ((Naming.INDEX, Naming.INDEX), ["0", "1:0", "1:1", "all"]),
    ],
)
def test_devices_are_called_as_the_toolkit_calls_them(namings: tuple[Naming, ...], expected: list[str]) -> None:
    second = mig_gpu(1, 2)
    root = with_capabilities(driver_root(), second)
    spec = made(gpu(0), second, root=root, options=replace(CLI, namings=namings))
    assert [device.name for device in spec.devices] == expected
    assert spec.version == ("0.5.0" if Naming.INDEX in namings else "0.3.0")


def test_all_is_everything_once() -> None:
    second = mig_gpu(1, 2)
    spec = made(gpu(0), second, root=with_capabilities(driver_root(), second), options=CLI)
    everything = spec.devices[-1].container_edits
    assert nodes(everything) == [
        "/dev/nvidia0",
        "/dev/nvidia1",
        *(f"/dev/nvidia-caps/nvidia-cap{n}" for n in range(10, 14)),
    ]


def test_a_node_of_an_earlier_boot_counts_as_missing_and_says_so() -> None:
    one = mig_gpu(0, 1)
    good = with_capabilities(driver_root(), one)
    numbers = {"/dev/nvidia0": (195, 0), "/dev/nvidiactl": (195, 255), "/dev/nvidia-uvm": (510, 0)}
    good = replace(
        good,
        nodes=tuple(replace(node, number=numbers.get(node.path, node.number)) for node in good.nodes),
        majors={"nvidia": 195, "nvidia-uvm": 510, "nvidia-caps": 511},
    )
    (mig,) = one.mig_devices
    assert nodes(made(one, root=good).container_edits) == ["/dev/nvidiactl", "/dev/nvidia-uvm"]  # uvm-tools is 195:0
    stale = build([one], replace(good, majors=good.majors | {"nvidia-caps": 509}))
    assert stale.refused[mig.uuid].startswith(
        "/dev/nvidia-caps/nvidia-cap10 on the host has the number 511:10 of an earlier boot, nvidia-caps is 509:10 now"
    )
    assert one.uuid not in stale.refused
    stale = build([one], replace(good, majors=good.majors | {"nvidia-uvm": 508}))
    assert "/dev/nvidia-uvm on the host has the number 510:0 of an earlier boot" in stale.refused[one.uuid]
    moved = build(
        [replace(one, minor=1)],
        replace(
            good,
            nodes=tuple(replace(node, number=(195, 7)) if node.path == "/dev/nvidia1" else node for node in good.nodes),
        ),
    )
    assert "195:7 of an earlier boot, nvidia is 195:1 now" in moved.refused[one.uuid]


GDS = Extra(
    "gds",
    (Node("/dev/nvidia-fs0", "/alt/dev/nvidia-fs0", (240, 0)),),
    (HostFile("/run/udev", "/run/udev", FileKind.DATA),),
)


def test_what_is_wanted_beside_gpus_comes_with_every_gpu() -> None:
    common = made(gpu(0), root=replace(driver_root(), extras=(GDS,))).container_edits
    assert DeviceNode(path="/dev/nvidia-fs0", host_path="/alt/dev/nvidia-fs0", permissions="rw") in common.device_nodes
    assert Mount(host_path="/run/udev", container_path="/run/udev", options=parts.BIND) in common.mounts


@pytest.mark.parametrize("required", [True, False])
def test_only_what_is_required_keeps_gpus_back(required: bool) -> None:  # noqa: FBT001
    extra = Extra("imex-channel0", (), (), "imex-channel0: it is not there", required)
    built = build([gpu(0)], replace(driver_root(), extras=(extra,)))
    assert built.refused == ({gpu(0).uuid: "imex-channel0: it is not there"} if required else {})


def test_something_beside_gpus_can_be_a_document_of_its_own() -> None:
    spec = build_extra(GDS, "nvidia.com/gds")
    validate(spec)
    assert (spec.kind, spec.version, [device.name for device in spec.devices]) == ("nvidia.com/gds", "0.5.0", ["all"])


def test_mps_is_a_folder_of_pipes_and_shared_memory_where_cuda_looks() -> None:
    edits = parts.mps("/run/gpuplugin/mps/pipe", "/run/gpuplugin/mps/shm")
    assert edits.env == ("CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps",)
    assert {mount.container_path: (mount.host_path, mount.options[0]) for mount in edits.mounts} == {
        "/tmp/nvidia-mps": ("/run/gpuplugin/mps/pipe", "rw"),
        "/dev/shm": ("/run/gpuplugin/mps/shm", "rw"),
    }


def test_merging_keeps_the_first_of_what_goes_to_one_place() -> None:
    one = ContainerEdits(env=("A=1",), mounts=(Mount(host_path="/a", container_path="/x"),))
    other = ContainerEdits(env=("A=2", "B=1"), mounts=(Mount(host_path="/b", container_path="/x"),))
    assert parts.merged([one, other]) == ContainerEdits(env=("A=1", "B=1"), mounts=one.mounts)


@pytest.mark.parametrize(
    ("path", "verb"),
    [("/usr/bin/nvidia-cdi-hook", ("nvidia-cdi-hook",)), ("/opt/nvidia-ctk", ("nvidia-ctk", "hook"))],
)
def test_hooks_of_the_toolkit_add_to_the_binds(path: str, verb: tuple[str, ...]) -> None:
    plain = made(gpu(0), root=driver_root()).container_edits
    hooked = made(gpu(0), root=driver_root(), options=Options(hooks=Hooks(path))).container_edits
    assert hooked.mounts == plain.mounts
    assert plain.hooks == ()
    assert {hook.path for hook in hooked.hooks} == {path}
    assert {hook.hook_name for hook in hooked.hooks} == {"createContainer"}
    assert [hook.args for hook in hooked.hooks] == [
        (*verb, "enable-cuda-compat", "--host-driver-version=580.65.06"),
        (*verb, "update-ldcache", "--folder", "/usr/lib/x86_64-linux-gnu", "--folder", "/usr/lib64"),
        (*verb, "disable-device-node-modification"),
    ]


def test_single_hooks_can_be_left_out() -> None:
    hooks = Hooks("/usr/bin/nvidia-ctk", ("update-ldcache", "enable-cuda-compat"))
    assert [hook.args[-1] for hook in hooks.of("1", ["/a"])] == ["disable-device-node-modification"]
    assert Hooks("/usr/bin/nvidia-ctk", ("all",)).of("1", ["/a"]) == ()


def test_what_went_away_since_takes_only_its_own_device_out() -> None:
    spec = made(gpu(0), gpu(1), root=driver_root())
    left, refused = without_missing(spec, lambda path: path != "/dev/nvidia1")
    assert left is not None
    validate(left)
    assert [device.name for device in left.devices] == [gpu(0).uuid]
    assert refused == {gpu(1).uuid: "/dev/nvidia1 went away while looking at the driver's files"}
    assert without_missing(spec, lambda path: True) == (spec, {})
    none, refused = without_missing(spec, lambda path: path != "/dev/nvidiactl")
    assert none is None
    assert set(refused) == {gpu(0).uuid, gpu(1).uuid}
