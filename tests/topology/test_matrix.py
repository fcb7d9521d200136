from __future__ import annotations

from dataclasses import replace

from gpuplugin.model.inventory import Inventory, PciePath
from gpuplugin.topology.matrix import LEGEND, matrix
from tests.topology import machines
from tests.topology.machines import Slot, inventory


def lines(machine: Inventory) -> list[str]:
    return [" ".join((row.name, *row.cells)) for row in matrix(machine).rows]


def test_dgx1_volta() -> None:
    assert lines(machines.dgx1_volta()) == [
        "GPU0 X NV1 NV1 NV2 NV2 SYS SYS SYS",
        "GPU1 NV1 X NV2 NV1 SYS NV2 SYS SYS",
        "GPU2 NV1 NV2 X NV2 SYS SYS NV1 SYS",
        "GPU3 NV2 NV1 NV2 X SYS SYS SYS NV1",
        "GPU4 NV2 SYS SYS SYS X NV1 NV1 NV2",
        "GPU5 SYS NV2 SYS SYS NV1 X NV2 NV1",
        "GPU6 SYS SYS NV1 SYS NV1 NV2 X NV2",
        "GPU7 SYS SYS SYS NV1 NV2 NV1 NV2 X",
    ]


def test_nics_have_columns_and_rows() -> None:
    machine = machines.plain_pcie()
    shown = matrix(machine)

    assert shown.columns == (*(f"GPU{i}" for i in range(8)), "mlx5_0", "mlx5_1")
    assert lines(machine)[0] == "GPU0 X PIX PHB PHB SYS SYS SYS SYS PIX SYS"
    assert lines(machine)[8] == "mlx5_0 PIX PIX PHB PHB SYS SYS SYS SYS X SYS"


def test_what_stands_beside_the_cells() -> None:
    first, *_, last, nic, _ = matrix(machines.plain_pcie()).rows

    assert (first.cpus, first.numa, first.switch, first.nics) == ("0-7", "0", "0000:10:00.1", ("mlx5_0",))
    assert (last.cpus, last.numa, last.nics) == ("8-15", "1", ())
    assert (nic.cpus, nic.numa, nic.switch, nic.nics) == ("0-7", "0", "", ())


def test_what_is_not_known_is_not_guessed() -> None:
    machine = inventory([Slot(None), Slot(None)])
    blind = replace(machine, gpus=tuple(replace(gpu, pcie=None) for gpu in machine.gpus))
    row = matrix(blind).rows[0]

    assert row.cells == ("X", "SYS")
    assert (row.cpus, row.numa, row.switch) == ("N/A", "N/A", "N/A")


def test_host_bridges_of_one_node_and_several_switches() -> None:
    near, far = Slot(0, "pci0000:10"), Slot(0, "pci0000:20")
    machine = inventory([near, far, near])
    cascade = machine.gpus[0].pcie
    assert cascade is not None
    below = PciePath(cascade.root, (*cascade.bridges, *machine.gpus[2].pcie.bridges, *cascade.bridges))  # type: ignore[union-attr]
    deeper = replace(machine, gpus=(*machine.gpus[:2], replace(machine.gpus[2], pcie=below)))

    assert lines(machine)[0] == "GPU0 X NODE PHB"
    assert lines(deeper)[0] == "GPU0 X NODE PXB"


def test_a_lost_gpu_is_marked() -> None:
    assert matrix(machines.without(machines.hgx_h100(), 2)).rows[2].fault == "fell off the bus"


def test_every_label_is_in_the_legend() -> None:
    shown = {cell for made in machines.MACHINES.values() for row in matrix(made()).rows for cell in row.cells}
    assert {"NV#" if cell.startswith("NV") else cell for cell in shown} <= set(LEGEND)
