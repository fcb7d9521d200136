"""What a container is given, and what keeps a GPU from being offered."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cdi_facts import VERSION, driver_root, gpu

from cdi.build import Options, build, verify
from cdi.names import KIND, file_name, qualified_name
from cdi.spec import ContainerEdits, Device, Hook, Mount, Spec, encode
from cdi.validate import decode, validate
from gpuplugin.model.driver_root import FileKind, HostFile, Library, LoaderFile, Node
from gpuplugin.model.ids import GpuUuid

DEBIAN, REDHAT = "/usr/lib/x86_64-linux-gnu", "/usr/lib64"


def made(*gpus, root=None, **options) -> Spec:
    built = build(gpus or (gpu(0),), root or driver_root(), options=Options(**options))
    assert built.refused == {}
    assert built.spec is not None
    validate(built.spec)
    return built.spec


def places(edits: ContainerEdits) -> dict[str, str]:
    assert len({mount.container_path for mount in edits.mounts}) == len(edits.mounts)
    return {mount.container_path: mount.host_path for mount in edits.mounts}


def test_devices_are_the_gpus_by_uuid_in_order_of_index() -> None:
    spec = made(gpu(1), gpu(0))
    assert spec.kind == KIND == "gpuplugin.io/gpu"
    assert [device.name for device in spec.devices] == [gpu(0).uuid, gpu(1).uuid]
    assert qualified_name(spec.kind, gpu(0).uuid) == f"gpuplugin.io/gpu={gpu(0).uuid}"
    assert file_name(spec.kind) == "gpuplugin.io-gpu.json"


def test_a_gpu_is_its_minor_number_and_never_its_index() -> None:
    (device,) = made(replace(gpu(0), minor=1)).devices
    assert [node.path for node in device.container_edits.device_nodes] == ["/dev/nvidia1"]


def test_common_edits_bring_the_common_nodes_and_one_variable() -> None:
    common = made().container_edits
    assert [node.path for node in common.device_nodes] == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert common.env == ("NVIDIA_VISIBLE_DEVICES=void",)
    assert common.hooks == ()


def test_libraries_are_bound_under_every_name_in_both_loader_folders() -> None:
    root = replace(
        driver_root(),
        libraries=(
            Library(f"libcuda.so.{VERSION}", "libcuda.so.1", "", f"/host/libcuda.so.{VERSION}"),
            Library(f"libnvidia-glcore.so.{VERSION}", f"libnvidia-glcore.so.{VERSION}", "", "/host/glcore"),
            Library(f"libvdpau_nvidia.so.{VERSION}", None, "vdpau", "/host/vdpau"),
        ),
        loader_files=(LoaderFile("gbm/nvidia-drm_gbm.so", "/host/allocator"),),
        files=(HostFile("/usr/bin/nvidia-smi", "/host/smi", FileKind.BINARY),),
    )
    edits = made(root=root).container_edits
    expected = {"/usr/bin/nvidia-smi": "/host/smi"}
    for folder in (DEBIAN, REDHAT):
        expected |= {
            f"{folder}/libcuda.so.{VERSION}": f"/host/libcuda.so.{VERSION}",
            f"{folder}/libcuda.so.1": f"/host/libcuda.so.{VERSION}",
            f"{folder}/libcuda.so": f"/host/libcuda.so.{VERSION}",
            f"{folder}/libnvidia-glcore.so.{VERSION}": "/host/glcore",
            f"{folder}/vdpau/libvdpau_nvidia.so.{VERSION}": "/host/vdpau",
            f"{folder}/gbm/nvidia-drm_gbm.so": "/host/allocator",
        }
    assert places(edits) == expected
    assert {mount.options for mount in edits.mounts} == {("ro", "nosuid", "nodev", "rbind", "rprivate")}


def test_arm_has_its_own_loader_folder() -> None:
    assert "/usr/lib/aarch64-linux-gnu/libcuda.so.1" in places(
        made(root=replace(driver_root(), machine="aarch64")).container_edits
    )


def test_no_device_number_is_ever_written_down() -> None:
    text = encode(made(gpu(0), gpu(1)))
    assert b'"major"' not in text
    assert b'"minor"' not in text
    assert decode(text) == made(gpu(0), gpu(1))


def test_host_path_is_said_only_where_it_differs() -> None:
    assert made().version == "0.3.0"
    assert b'"hostPath": "/dev' not in encode(made())
    elsewhere = driver_root(dev_root="/run/nvidia/driver")
    spec = made(root=elsewhere)
    assert spec.version == "0.5.0"
    (node,) = spec.devices[0].container_edits.device_nodes
    assert (node.path, node.host_path) == ("/dev/nvidia0", "/run/nvidia/driver/dev/nvidia0")


def test_dri_nodes_come_with_their_gpu_unless_left_out() -> None:
    root = driver_root(dri=True)
    first, second = made(gpu(0), gpu(1), root=root).devices
    assert [node.path for node in first.container_edits.device_nodes] == [
        "/dev/nvidia0",
        "/dev/dri/by-path/pci-0000:10:00.0-card",
        "/dev/dri/card0",
    ]
    assert [node.path for node in second.container_edits.device_nodes][-1] == "/dev/dri/card1"
    assert len(made(root=root, dri=False).devices[0].container_edits.device_nodes) == 1


def test_a_gpu_without_its_node_is_refused_alone_and_heals() -> None:
    whole = driver_root()
    broken = replace(whole, nodes=tuple(node for node in whole.nodes if node.path != "/dev/nvidia1"))
    built = build([gpu(0), gpu(1)], broken)
    assert built.spec is not None
    assert [device.name for device in built.spec.devices] == [gpu(0).uuid]
    assert built.refused == {
        gpu(1).uuid: "/dev/nvidia1 is missing on the host; make it there with: nvidia-modprobe -c 1"
    }
    assert build([gpu(0), gpu(1)], whole).refused == {}


def test_a_gpu_whose_minor_number_is_unknown_is_refused() -> None:
    built = build([replace(gpu(0), minor=None)], driver_root())
    assert built.spec is None
    assert "minor number" in built.refused[gpu(0).uuid]


def test_a_gpu_whose_name_no_runtime_takes_does_not_spoil_the_others() -> None:
    odd = replace(gpu(1), uuid=GpuUuid("GPU 1"))
    built = build([gpu(0), odd], driver_root())
    assert built.spec is not None
    assert len(built.spec.devices) == 1
    assert "devices[0].name: 'GPU 1' is not allowed" in built.refused[odd.uuid]


@pytest.mark.parametrize(
    ("path", "command"), [("/dev/nvidiactl", "nvidia-modprobe"), ("/dev/nvidia-uvm", "nvidia-modprobe -u -c 0")]
)
@pytest.mark.parametrize("dev_root", ["/", "/alt"])
def test_without_a_mandatory_node_no_gpu_is_offered(path: str, command: str, dev_root: str) -> None:
    root = driver_root(dev_root=dev_root)
    built = build([gpu(0), gpu(1)], replace(root, nodes=tuple(node for node in root.nodes if node.path != path)))
    assert built.spec is None
    reason = f"{dev_root.rstrip('/')}{path} is missing on the host; make it there with: {command}"
    assert built.refused == {gpu(0).uuid: reason, gpu(1).uuid: reason}


def test_without_libcuda_no_gpu_is_offered() -> None:
    built = build([gpu(0)], replace(driver_root(), libraries=()))
    assert built.spec is None
    assert built.refused[gpu(0).uuid].startswith(f"no libcuda.so.{VERSION} for x86_64 under the driver root /;")


def test_optional_nodes_are_left_out_where_missing() -> None:
    root = driver_root()
    few = tuple(node for node in root.nodes if node.path in {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"})
    assert len(made(root=replace(root, nodes=few)).container_edits.device_nodes) == 2


def test_a_file_in_the_place_of_a_node_is_no_node_unless_it_stands_in_for_one() -> None:
    root = driver_root()
    files = replace(root, nodes=tuple(Node(node.path, node.host, None) for node in root.nodes))
    built = build([gpu(0)], files)
    assert built.spec is None
    assert "/dev/nvidiactl on the host is no device node of its own" in built.refused[gpu(0).uuid]
    spec = made(root=files, stand_ins=True)
    assert not any(edits.device_nodes for edits in spec.all_edits)
    assert places(spec.devices[0].container_edits) == {"/dev/nvidia0": "/dev/nvidia0"}


def test_verify_lists_every_host_path_that_is_gone() -> None:
    spec = made(gpu(0), root=driver_root(dri=True))
    assert verify(spec, lambda path: True) == ()
    gone = verify(spec, lambda path: False)
    assert {"/dev/nvidia0", "/dev/dri/card0", "/dev/nvidiactl", f"{DEBIAN}/libcuda.so.{VERSION}"} <= set(gone)
    assert list(gone) == sorted(set(gone))


def test_verify_knows_hooks_and_leaves_out_what_is_no_path_of_the_host() -> None:
    edits = ContainerEdits(
        hooks=(Hook(hook_name="createContainer", path="/hook"),),
        mounts=(Mount(host_path="tmpfs", container_path="/t", type="tmpfs"),),
    )
    spec = Spec(version="0.4.0", kind="a/b", devices=(Device(name="a", container_edits=edits),))
    assert verify(spec, lambda path: False) == ("/hook",)
