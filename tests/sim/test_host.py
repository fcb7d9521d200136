import ctypes
import os
import platform
import stat
from pathlib import Path

import pytest

from gpuplugin.errors import MachineFileError, MigRefused
from gpuplugin.sim import machine
from gpuplugin.sim.driver_files import cap_minor
from gpuplugin.sim.host import STATE_FILE, SimulatedHost
from gpuplugin.sim.state import State
from gpuplugin.sim.sysfs_files import list_notation


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return SimulatedHost(machine.load("hgx-h100"), tmp_path)


def read(host: SimulatedHost, path: str) -> str:
    return (host.root / path).read_text().rstrip("\n")


def dangling(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_symlink() and not path.exists()]


def everything(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.mark.parametrize("name", machine.names())
def test_every_device_hangs_where_the_machine_says(tmp_path: Path, name: str) -> None:
    host = SimulatedHost(machine.load(name), tmp_path)
    devices = tmp_path / "sys/bus/pci/devices"
    tree = host.machine.tree
    assert {entry.name for entry in devices.iterdir()} == {place.pci for place in (*tree.bridges, *tree.leaves)}
    for place in (*tree.bridges, *tree.leaves):
        inside = (devices / place.pci).resolve().relative_to(tmp_path / "sys/devices")
        assert inside.parts == (place.pcie.root, *place.pcie.bridges, place.pci)
        assert (devices / place.pci / "numa_node").read_text() == f"{-1 if place.numa is None else place.numa}\n"
    assert dangling(tmp_path) == []


def test_a_gpus_pci_function(host: SimulatedHost) -> None:
    folder = f"sys/bus/pci/devices/{host.machine.gpus[4].pci}"
    assert {name: read(host, f"{folder}/{name}") for name in ("class", "vendor", "device", "local_cpulist")} == {
        "class": "0x030200",
        "vendor": "0x10de",
        "device": "0x2330",
        "local_cpulist": "56-111,168-223",
    }
    assert (host.root / folder / "driver").resolve() == host.root / "sys/bus/pci/drivers/nvidia"
    assert sorted(path.name for path in (host.root / folder / "drm").iterdir()) == ["card5", "renderD133"]


def test_an_unknown_numa_node_means_all_cpus(tmp_path: Path) -> None:
    host = SimulatedHost(machine.load("vm-flat"), tmp_path)
    folder = f"sys/bus/pci/devices/{host.machine.gpus[0].pci}"
    assert (read(host, f"{folder}/numa_node"), read(host, f"{folder}/local_cpulist")) == ("-1", "0-47")


def test_numa_nodes(host: SimulatedHost) -> None:
    base = "sys/devices/system/node"
    assert read(host, f"{base}/online") == "0-1"
    assert read(host, f"{base}/node1/cpulist") == "56-111,168-223"
    assert read(host, f"{base}/node1/distance") == "21 10"
    assert read(host, f"{base}/node1/meminfo").split("\n")[0].split() == ["Node", "1", "MemTotal:", "1073741824", "kB"]


def test_nics(host: SimulatedHost) -> None:
    for number, nic in enumerate(host.machine.nics):
        base = host.root / "sys/class/infiniband" / nic.facts.name
        assert (base / "device").resolve() == (host.root / "sys/bus/pci/devices" / nic.facts.pci).resolve()
        assert (base / "ports/1/rate").read_text() == "400 Gb/sec (4X NDR)\n"
        assert (base / "ports/1/state").read_text() == "4: ACTIVE\n"
        assert (base / "ports/1/link_layer").read_text() == "InfiniBand\n"
        assert (base / "device/net" / f"ib{number}").is_dir()
        assert read(host, f"sys/class/infiniband_verbs/uverbs{number}/ibdev") == nic.facts.name
        assert (host.root / f"dev/infiniband/uverbs{number}").exists()


def test_proc(host: SimulatedHost) -> None:
    assert "580.95.05" in read(host, "proc/driver/nvidia/version")
    fifth = read(host, f"proc/driver/nvidia/gpus/{host.machine.gpus[4].pci}/information").split("\n")
    fields = {key: value.strip() for key, _, value in (line.partition(":") for line in fifth)}
    assert fields["GPU UUID"] == host.machine.gpus[4].record.uuid
    assert fields["Device Minor"] == "7"
    majors = dict(reversed(line.split()) for line in read(host, "proc/devices").split("\n") if len(line.split()) == 2)
    assert (majors["nvidiactl"], majors["nvidia-uvm"], majors["nvidia-caps"]) == ("195", "510", "511")


def test_mig_minors_are_all_different_and_follow_the_minor_number(host: SimulatedHost) -> None:
    minors = dict(line.split() for line in read(host, "proc/driver/nvidia-caps/mig-minors").split("\n"))
    assert len(set(minors.values())) == len(minors) == 2 + 8 * 15 * 9
    assert (minors["config"], minors["gpu0/gi0/access"], minors["gpu0/gi0/ci0/access"]) == ("1", "3", "4")
    assert minors["gpu7/gi2/ci0/access"] == str(cap_minor(7, 2, 0))


def test_device_nodes_are_named_by_minor_number(tmp_path: Path) -> None:
    SimulatedHost(machine.load("a100-pcie-4"), tmp_path)
    assert sorted(path.name for path in (tmp_path / "dev").glob("nvidia*")) == [
        "nvidia-caps",
        "nvidia-modeset",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia0",
        "nvidia1",
        "nvidia2",
        "nvidia3",
        "nvidiactl",
    ]
    links = {path.name: path.resolve().name for path in (tmp_path / "dev/dri/by-path").iterdir()}
    assert len(links) == 8


@pytest.mark.skipif(os.geteuid() != 0, reason="making device nodes needs root")
def test_real_device_nodes(tmp_path: Path) -> None:
    try:
        host = SimulatedHost(machine.load("hgx-h100"), tmp_path, device_nodes="mknod")
    except PermissionError:
        pytest.skip("this container may not make device nodes")
    for name, number in {"nvidia7": (195, 7), "nvidiactl": (195, 255), "nvidia-uvm": (510, 0)}.items():
        status = (host.root / "dev" / name).lstat()
        assert stat.S_ISCHR(status.st_mode)
        assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == number


def test_libraries_carry_their_names(host: SimulatedHost) -> None:
    folder = host.root / "usr/lib/x86_64-linux-gnu"
    for link, name in {
        "libcuda.so": "libcuda.so.580.95.05",
        "libcuda.so.1": "libcuda.so.580.95.05",
        "libnvidia-ml.so.1": "libnvidia-ml.so.580.95.05",
        "libnvidia-nvvm.so.4": "libnvidia-nvvm.so.580.95.05",
        "vdpau/libvdpau_nvidia.so.1": "libvdpau_nvidia.so.580.95.05",
    }.items():
        assert (folder / link).resolve().name == name
    assert b"\0libcuda.so.1\0" in (folder / "libcuda.so.1").read_bytes()
    assert b"\0libnvidia-tls.so.580.95.05\0" in (folder / "libnvidia-tls.so.580.95.05").read_bytes()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the libraries are x86-64")
def test_the_loader_takes_the_libraries(host: SimulatedHost) -> None:
    for library in (host.root / "usr/lib/x86_64-linux-gnu").rglob("*.so.580.95.05"):
        ctypes.CDLL(str(library))


def test_mig_devices_have_capability_nodes_while_they_live(host: SimulatedHost) -> None:
    before = everything(host.root)
    host.mig_mode(4, enabled=True)
    record = host.mig_create(4, "3g.40gb", 4)
    for path, minor in {"gi1": cap_minor(7, 1), "gi1/ci0": cap_minor(7, 1, 0)}.items():
        access = read(host, f"proc/driver/nvidia/capabilities/gpu7/mig/{path}/access")
        assert access.startswith(f"DeviceFileMinor: {minor}\n")
        assert (host.root / f"dev/nvidia-caps/nvidia-cap{minor}").exists()
    host.mig_destroy(4, record.slot)
    left = set(everything(host.root)) - set(before)
    assert {path for path in left if path.endswith("access") or "nvidia-cap" in Path(path).name} == set()


def test_a_refused_mig_change_changes_nothing(host: SimulatedHost) -> None:
    before, text = everything(host.root), host.state.path.read_text()
    with pytest.raises(MigRefused):
        host.mig_create(0, "1g.10gb")
    assert (everything(host.root), host.state.path.read_text()) == (before, text)


def test_mig_devices_of_the_file_have_capability_nodes(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    text = (Path(machine.__file__).parent / "machines/hgx-h100.yaml").read_text()
    file.write_text(text + 'mig: {0: ["7g.80gb@0"]}\n')
    SimulatedHost(machine.load(file), tmp_path / "root")
    assert (tmp_path / f"root/dev/nvidia-caps/nvidia-cap{cap_minor(0, 1)}").exists()


def test_a_gpu_comes_and_goes(host: SimulatedHost) -> None:
    before = everything(host.root)
    gone = host.unplug(6)
    missing = set(before) - set(everything(host.root))
    assert {"dev/nvidia5", f"sys/bus/pci/devices/{gone.pci}", f"proc/driver/nvidia/gpus/{gone.pci}"} <= missing
    assert dangling(host.root) == []
    assert len(host.state.snapshot.gpus) == 7
    host.plug(gone)
    assert everything(host.root) == before
    assert host.state.snapshot == host.machine.snapshot


def test_a_gpu_that_goes_takes_its_mig_devices_along(host: SimulatedHost) -> None:
    host.mig_mode(4, enabled=True)
    host.mig_create(4, "1g.10gb")
    host.unplug(3)
    assert [record.gpu for record in host.state.snapshot.migs] == [3]
    host.unplug(3)
    assert host.state.snapshot.migs == ()
    assert not (host.root / f"dev/nvidia-caps/nvidia-cap{cap_minor(7, 1)}").exists()


def test_a_machine_starts_anew_in_its_folder(host: SimulatedHost) -> None:
    before = everything(host.root)
    host.state.lose(0)
    host.unplug(7)
    again = SimulatedHost(host.machine, host.root)
    assert everything(host.root) == before
    assert again.state.snapshot == host.machine.snapshot


def test_another_process_takes_the_state(host: SimulatedHost) -> None:
    State.open(host.root / STATE_FILE).lose(3)
    assert [gpu.lost for gpu in host.state.snapshot.gpus] == [index == 3 for index in range(8)]


def test_a_folder_with_other_things_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr/precious").touch()
    with pytest.raises(MachineFileError, match=r"has usr, and no nvml\.state"):
        SimulatedHost(machine.load("vm-flat"), tmp_path)
    assert everything(tmp_path) == ["usr", "usr/precious"]


@pytest.mark.parametrize(
    ("numbers", "text"), [((), ""), ((0,), "0"), ((0, 1, 2, 3), "0-3"), ((0, 1, 3, 8, 9), "0-1,3,8-9")]
)
def test_list_notation(numbers: tuple[int, ...], text: str) -> None:
    assert list_notation(numbers) == text
