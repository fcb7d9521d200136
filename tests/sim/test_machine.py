from pathlib import Path

import pytest
import yaml

from gpuplugin.errors import MachineFileError
from gpuplugin.model.links import NvLinks, PcieLevel, pcie_level
from gpuplugin.sim import machine, mig
from gpuplugin.sim.machine import Machine, SimGpu
from gpuplugin.sim.pcie import Leaf

ALL = (
    "a100-pcie-4",
    "a30-4",
    "dgx-1v",
    "dgx-a100",
    "gb200-tray",
    "hgx-16",
    "hgx-b200",
    "hgx-h100",
    "l40s-8",
    "mixed",
    "t4-4",
    "vm-flat",
)


def level(a: SimGpu | Leaf, b: SimGpu | Leaf) -> str:
    return pcie_level(a.pcie, b.pcie, a.numa, b.numa).name


def nvlinks(shown: Machine) -> NvLinks:
    bus_ids = [gpu.bus_id for gpu in shown.snapshot.gpus]
    active = [link for link in shown.snapshot.links if link.active]

    def count(i: int, remote: str | None) -> int:
        return sum(link.gpu == i and link.remote_bus_id == remote for link in active)

    everyone = range(len(bus_ids))
    return NvLinks(
        tuple(tuple(count(i, bus_id) for bus_id in bus_ids) for i in everyone), tuple(count(i, None) for i in everyone)
    )


def matrix(shown: Machine) -> list[str]:
    """As `nvidia-smi topo -m` shows it."""
    links = nvlinks(shown)

    def cell(i: int, j: int) -> str:
        if i == j:
            return "X"
        return f"NV{links.between(i, j)}" if links.between(i, j) else level(shown.gpus[i], shown.gpus[j])

    return [" ".join(cell(i, j) for j in range(len(shown.gpus))) for i in range(len(shown.gpus))]


def test_these_machines_come_with_the_package() -> None:
    assert machine.names() == ALL


@pytest.mark.parametrize("name", ALL)
def test_every_machine_is_consistent(name: str) -> None:
    shown = machine.load(name)
    gpus = shown.snapshot.gpus
    assert [gpu.index for gpu in gpus] == list(range(len(shown.gpus)))
    assert len({gpu.uuid for gpu in gpus}) == len({gpu.minor for gpu in gpus}) == len(gpus)
    places = [place.pci for place in (*shown.tree.bridges, *shown.tree.leaves)]
    assert len(set(places)) == len(places)
    assert [gpu.bus_id for gpu in gpus] == sorted(gpu.bus_id for gpu in gpus)
    assert all(len(node.distances) == len(shown.numa_nodes) for node in shown.numa_nodes)
    direct = nvlinks(shown).direct
    assert all(direct[i][j] == direct[j][i] for i in range(len(gpus)) for j in range(len(gpus)))
    assert shown.about


@pytest.mark.parametrize("name", ALL)
def test_a_machine_is_the_same_each_time_and_differs_by_seed(name: str) -> None:
    assert machine.load(name) == machine.load(name)
    uuids = [gpu.uuid for load in (machine.load(name, "a"), machine.load(name, "b")) for gpu in load.snapshot.gpus]
    assert len(set(uuids)) == len(uuids)


def test_no_two_machines_share_a_uuid() -> None:
    uuids = [gpu.uuid for name in ALL for gpu in machine.load(name).snapshot.gpus]
    assert len(set(uuids)) == len(uuids) == 81


def test_dgx_1v_is_the_hybrid_cube_mesh() -> None:
    assert matrix(machine.load("dgx-1v")) == [
        "X NV1 NV1 NV2 NV2 SYS SYS SYS",
        "NV1 X NV2 NV1 SYS NV2 SYS SYS",
        "NV1 NV2 X NV2 SYS SYS NV1 SYS",
        "NV2 NV1 NV2 X SYS SYS SYS NV1",
        "NV2 SYS SYS SYS X NV1 NV1 NV2",
        "SYS NV2 SYS SYS NV1 X NV2 NV1",
        "SYS SYS NV1 SYS NV1 NV2 X NV2",
        "SYS SYS SYS NV1 NV2 NV1 NV2 X",
    ]


def test_every_v100_of_dgx_1v_uses_its_six_links() -> None:
    assert [sum(row) for row in nvlinks(machine.load("dgx-1v")).direct] == [6] * 8


def test_hgx_h100_is_nv18_between_all() -> None:
    assert matrix(machine.load("hgx-h100")) == [" ".join("X" if i == j else "NV18" for j in range(8)) for i in range(8)]


def test_hgx_16_is_nv6_between_all() -> None:
    assert matrix(machine.load("hgx-16")) == [" ".join("X" if i == j else "NV6" for j in range(16)) for i in range(16)]


def test_a100_pcie_is_bridged_in_pairs() -> None:
    assert matrix(machine.load("a100-pcie-4")) == [
        "X NV12 SYS SYS",
        "NV12 X SYS SYS",
        "SYS SYS X NV12",
        "SYS SYS NV12 X",
    ]


def test_l40s_has_pcie_switches_below_switches() -> None:
    near = ["X PIX PXB PXB", "PIX X PXB PXB", "PXB PXB X PIX", "PXB PXB PIX X"]
    far = "SYS SYS SYS SYS"
    assert matrix(machine.load("l40s-8")) == [f"{row} {far}" for row in near] + [f"{far} {row}" for row in near]


def test_in_the_virtual_machine_everything_is_on_the_root_bus() -> None:
    shown = machine.load("vm-flat")
    assert matrix(shown) == ["X PHB PHB PHB", "PHB X PHB PHB", "PHB PHB X PHB", "PHB PHB PHB X"]
    assert {gpu.numa for gpu in shown.gpus} == {None}
    assert len(shown.numa_nodes) == 1


def test_a_tray_of_gb200_belongs_to_a_fabric_of_many_nodes() -> None:
    shown = machine.load("gb200-tray")
    assert matrix(shown) == [" ".join("X" if i == j else "NV18" for j in range(4)) for i in range(4)]
    fabrics = {(gpu.fabric_state, gpu.fabric_cluster, gpu.fabric_clique) for gpu in shown.snapshot.gpus}
    assert fabrics == {(3, "5c1f4a3e7d0b4c6a9b1e2f8d6a0c3e57", 32766)}


def test_models_are_mixed_and_one_gpu_is_cut() -> None:
    shown = machine.load("mixed")
    assert matrix(shown) == [
        "X NV12 SYS SYS SYS",
        "NV12 X SYS SYS SYS",
        "SYS SYS X PIX PHB",
        "SYS SYS PIX X PHB",
        "SYS SYS PHB PHB X",
    ]
    assert [(mig.gpu, mig.profile, mig.start, mig.size) for mig in shown.snapshot.migs] == [
        (1, "3g.20gb", 0, 4),
        (1, "2g.10gb", 4, 2),
        (1, "1g.5gb", 6, 1),
    ]


@pytest.mark.parametrize(
    ("name", "models", "profiles"),
    [
        ("a30-4", "NVIDIA A30", {"1g.6gb": 14, "1g.6gb+me": 21, "2g.12gb": 5, "2g.12gb+me": 6, "4g.24gb": 0}),
        (
            "dgx-a100",
            "A100-SXM4-40GB",
            {"1g.5gb": 19, "1g.5gb+me": 20, "1g.10gb": 15, "2g.10gb": 14, "3g.20gb": 9, "4g.20gb": 5, "7g.40gb": 0},
        ),
        (
            "hgx-b200",
            "B200",
            {"1g.23gb": 19, "1g.23gb+me": 20, "1g.45gb": 15, "2g.45gb": 14, "3g.90gb": 9, "4g.90gb": 5, "7g.180gb": 0},
        ),
        ("t4-4", "T4", {}),
    ],
)
def test_mig_profiles_have_their_real_ids(name: str, models: str, profiles: dict[str, int]) -> None:
    for gpu in machine.load(name).snapshot.gpus:
        assert models in gpu.name
        assert {each.name: each.id for each in mig.profiles(gpu.name)} == profiles


@pytest.mark.parametrize(
    ("name", "numa"),
    [
        ("a100-pcie-4", [0, 0, 1, 1]),
        ("a30-4", [0, 0, 1, 1]),
        ("dgx-1v", [0] * 4 + [1] * 4),
        ("dgx-a100", [3, 3, 1, 1, 7, 7, 5, 5]),
        ("gb200-tray", [0, 0, 1, 1]),
        ("hgx-16", [0] * 8 + [1] * 8),
        ("hgx-b200", [0] * 4 + [1] * 4),
        ("hgx-h100", [0] * 4 + [1] * 4),
        ("l40s-8", [0] * 4 + [1] * 4),
        ("mixed", [0, 0, 1, 1, 1]),
        ("t4-4", [0, 0, 1, 1]),
        ("vm-flat", [None] * 4),
    ],
)
def test_gpus_are_on_their_numa_nodes(name: str, numa: list[int | None]) -> None:
    assert [gpu.numa for gpu in machine.load(name).gpus] == numa


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("hgx-h100", {"mlx5_0": "PIX PIX NODE NODE SYS SYS SYS SYS", "mlx5_2": "SYS SYS SYS SYS PIX PIX NODE NODE"}),
        ("dgx-1v", {"mlx5_0": "PIX PIX PHB PHB SYS SYS SYS SYS", "mlx5_1": "PHB PHB PIX PIX SYS SYS SYS SYS"}),
        ("l40s-8", {"mlx5_0": "PIX PIX PXB PXB SYS SYS SYS SYS", "mlx5_1": "SYS SYS SYS SYS PIX PIX PXB PXB"}),
        ("a100-pcie-4", {"mlx5_0": "NODE PHB SYS SYS", "mlx5_1": "SYS SYS NODE PHB"}),
    ],
)
def test_nics_are_beside_their_gpus(name: str, rows: dict[str, str]) -> None:
    shown = machine.load(name)
    nics = {nic.facts.name: nic.place for nic in shown.nics}
    assert {nic: " ".join(level(nics[nic], gpu) for gpu in shown.gpus) for nic in rows} == rows


def test_each_pair_on_hgx_16_has_a_nic_at_its_switch() -> None:
    shown = machine.load("hgx-16")
    nearest = [
        [nic.facts.name for nic in shown.nics if level(nic.place, gpu) == PcieLevel.PIX.name] for gpu in shown.gpus
    ]
    assert nearest == [[f"mlx5_{n // 2}"] for n in range(16)]


def test_minor_numbers_are_not_the_indexes() -> None:
    assert [gpu.minor for gpu in machine.load("hgx-h100").snapshot.gpus] == [0, 1, 2, 3, 7, 6, 5, 4]
    assert [gpu.minor for gpu in machine.load("a100-pcie-4").snapshot.gpus] == [2, 3, 0, 1]


def test_module_ids_are_in_the_order_of_real_boards_and_all_one_on_cards() -> None:
    found = {name: [gpu.module_id for gpu in machine.load(name).snapshot.gpus] for name in ALL}
    assert {name: ids for name, ids in found.items() if set(ids) != {None}} == {
        "hgx-h100": [2, 4, 1, 3, 6, 8, 5, 7],
        "hgx-b200": [4, 2, 1, 3, 8, 6, 5, 7],
        "gb200-tray": [2, 1, 4, 3],
        "a100-pcie-4": [1] * 4,
        "l40s-8": [1] * 8,
        "mixed": [1] * 5,
    }


def test_addressing_modes_of_each_kind_and_drivers_that_do_not_tell() -> None:
    found = {name: {gpu.addressing for gpu in machine.load(name).snapshot.gpus} for name in ALL}
    assert {name: modes for name, modes in found.items() if modes != {None}} == {
        "hgx-h100": {0},
        "hgx-b200": {1},
        "l40s-8": {1},
        "gb200-tray": {2},
    }


def test_only_data_centre_gpus_from_ampere_on_have_mig() -> None:
    assert {name for name in ALL if any(gpu.mig_current is not None for gpu in machine.load(name).snapshot.gpus)} == {
        "a100-pcie-4",
        "a30-4",
        "dgx-a100",
        "gb200-tray",
        "hgx-b200",
        "hgx-h100",
        "mixed",
    }


SMALL: dict[str, object] = {
    "about": "two GPUs",
    "driver": {"version": "580.95.05", "cuda": "13.0"},
    "numa": [{"cpus": "0-3", "memory_gib": 8, "distances": [10]}],
    "gpus": [
        {
            "count": 2,
            "model": "NVIDIA A100 80GB PCIe",
            "architecture": "ampere",
            "memory_mib": 81920,
            "compute_capability": "8.0",
            "pci_device": "0x20b5",
        }
    ],
    "pcie": [{"root": "0000:10", "numa": 0, "ports": [{"switch": ["gpu0", "gpu1", "mlx5_0"]}]}],
    "nics": [{"names": ["mlx5_0"], "link_layer": "InfiniBand", "rate": "400 Gb/sec (4X NDR)", "pci_device": "0x1021"}],
}
TWO_NODES = [
    {"cpus": "0-1", "memory_gib": 8, "distances": [10, 21]},
    {"cpus": "2-3", "memory_gib": 8, "distances": [21, 10]},
]
NIC = SMALL["nics"][0]  # type: ignore[index]
GPU = SMALL["gpus"][0]  # type: ignore[index]


def write(folder: Path, **changes: object) -> Path:
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(SMALL | changes))
    return file


def test_a_file_of_ones_own_is_loaded_by_path(tmp_path: Path) -> None:
    file = write(tmp_path)
    assert machine.load(file) == machine.load(str(file))
    assert machine.load(file).name == "mine"
    assert matrix(machine.load(file)) == ["X PIX", "PIX X"]


def test_links_can_be_one_way_and_down(tmp_path: Path) -> None:
    nvlink = {"direct": [[0, 1, 2]], "one_way": [[0, 1, 1]], "down": [[1, 0]]}
    assert nvlinks(machine.load(write(tmp_path, nvlink=nvlink))).direct == ((0, 3), (1, 0))


def test_mig_devices_can_be_there_from_the_start(tmp_path: Path) -> None:
    shown = machine.load(write(tmp_path, mig={1: ["3g.40gb@4", "1g.10gb@0"]})).snapshot
    assert [(gpu.mig_current, gpu.mig_pending) for gpu in shown.gpus] == [(False, False), (True, True)]
    assert [(mig.gpu, mig.slot, mig.gi, mig.profile, mig.start) for mig in shown.migs] == [
        (1, 0, 1, "3g.40gb", 4),
        (1, 1, 2, "1g.10gb", 0),
    ]


def test_memory_that_nvml_does_not_tell(tmp_path: Path) -> None:
    shown = machine.load(write(tmp_path, gpus=[{**GPU, "memory_mib": None}]))
    assert {gpu.memory for gpu in shown.snapshot.gpus} == {None}


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        ({"colour": "red"}, "colour", "'red' is not allowed; allowed: one of the keys about, driver, numa"),
        ({"driver": {"version": "580.1", "cuda": "13.0", "kind": "open"}}, "driver.kind", "keys version, cuda"),
        ({"driver": {"version": "580.1"}}, "driver", "missing required field `cuda`"),
        ({"numa": []}, "numa", "at least one node"),
        ({"numa": [{"cpus": "0-", "memory_gib": 1, "distances": [10]}]}, "numa[0].cpus", "'0-' is not allowed"),
        ({"numa": [{**TWO_NODES[0]}]}, "numa[0].distances", "1 distances, 10 to the node itself"),
        ({"numa": [TWO_NODES[0], {**TWO_NODES[1], "distances": [31, 10]}]}, "numa[0].distances[1]", "of this node: 31"),
        (
            {"numa": [TWO_NODES[0], {**TWO_NODES[1], "cpus": "1-2"}]},
            "numa",
            "[1] is not allowed; allowed: each CPU once",
        ),
        ({"gpus": [{**GPU, "count": 0}]}, "gpus[0].count", "0 is not allowed"),
        ({"gpus": [{**GPU, "architecture": "maxwall"}]}, "gpus[0].architecture", "'maxwall'"),
        ({"gpus": [{**GPU, "speed": 3}]}, "gpus[0].speed", "keys count, model, architecture"),
        ({"gpus": [{**GPU, "count": 3}]}, "pcie", "each of gpu0 to gpu2 (`gpus` has 3) exactly once"),
        ({"minors": [0, 0]}, "minors", "2 different numbers, one a GPU"),
        ({"module_ids": [1]}, "module_ids", "2 numbers, one a GPU"),
        ({"gpus": [{**GPU, "addressing": "HBM"}]}, "gpus[0].addressing", "'HBM'"),
        ({"nics": [{**NIC, "names": ["mlx5_7"]}]}, "nics", "a name that hangs somewhere in `pcie`"),
        ({"nics": [NIC, NIC]}, "nics", "'mlx5_0' is not allowed; allowed: each name once"),
        ({"nics": [{**NIC, "link_layer": "Token Ring"}]}, "nics[0].link_layer", "'Token Ring'"),
        ({"pcie": [{"root": "0000:10", "numa": 1, "ports": ["gpu0", "gpu1"]}]}, "pcie[0].numa", "1 is not allowed"),
        ({"pcie": [{"root": "10", "numa": 0, "ports": ["gpu0"]}]}, "pcie[0].root", "'10' is not allowed"),
        ({"pcie": [{"root": "0000:ff", "numa": 0, "ports": ["gpu0"]}]}, "pcie[0]", "leaves room for all below it"),
        ({"pcie": [{"root": "0000:10", "numa": 0, "ports": ["gpu1", "gpu0", "mlx5_0"]}]}, "pcie", "in the order of"),
        ({"pcie": [{"root": "0000:10", "numa": 0, "ports": ["gpu0", "gpu0"]}]}, "pcie", "each device once"),
        (
            {"pcie": [{"root": f"0000:1{n}", "numa": 0, "ports": [f"gpu{n}", f"x{n}"]} for n in (0, 1)]},
            "pcie",
            "an address that is free. Leave room",
        ),
        (
            {"pcie": [{"root": "0000:10", "numa": 0, "ports": [{"switch": ["gpu0"], "hub": 1}]}]},
            "pcie[0].ports[0].hub",
            "keys switch",
        ),
        ({"nvlink": {"direct": [[0, 0, 1]]}}, "nvlink.direct[0]", "two different GPUs of 0 to 1"),
        ({"nvlink": {"one_way": [[0, 2, 1]]}}, "nvlink.one_way[0]", "[0, 2, 1] is not allowed"),
        ({"nvlink": {"switched": 19}}, "nvlink", "at most 18 links a GPU"),
        ({"nvlink": {"down": [[0, 0]]}}, "nvlink.down[0]", "[0, 0] is not allowed"),
        ({"mig": {2: ["1g.10gb@0"]}}, "mig.2", "GPUs that have MIG: [0, 1]"),
        ({"mig": {0: ["1g.10gb"]}}, "mig.0", "profile@start, such as 3g.40gb@4"),
        ({"mig": {0: ["3g.40gb@2"]}}, "mig.0", "starts that are free: [0, 4]"),
        ({"mig": {0: ["9g.90gb@0"]}}, "mig.0", "one of the profiles 1g.10gb, 2g.20gb"),
    ],
)
def test_a_wrong_file_is_refused_by_file_key_value_and_what_is_allowed(
    tmp_path: Path, changes: dict[str, object], key: str, said: str
) -> None:
    file = write(tmp_path, **changes)
    with pytest.raises(MachineFileError) as caught:
        machine.load(file)
    assert str(caught.value).startswith(f"{file}: {key}: ")
    assert said in str(caught.value)


def test_what_is_no_file_or_no_yaml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MachineFileError, match="cannot be read"):
        machine.load(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(MachineFileError, match="is not YAML"):
        machine.load(tmp_path / "bad.yaml")
    with pytest.raises(MachineFileError, match="called 'dgx-2'; there are a100-pcie-4, a30-4"):
        machine.load("dgx-2")
