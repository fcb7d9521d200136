"""From a simulated machine's files to a document that the CDI project's library takes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from cdi_facts import gpu as example

from cdi.build import Options, build, verify
from cdi.spec import encode
from gpuplugin.discovery.driver_root import DriverRootSearch
from gpuplugin.discovery.places import Place
from gpuplugin.model.ids import GpuUuid
from gpuplugin.model.inventory import Gpu
from gpuplugin.sim import machine
from gpuplugin.sim.host import SimulatedHost

MODES = ["files", pytest.param("mknod", marks=pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root"))]


def gpus_of(simulated: machine.Machine) -> list[Gpu]:
    return [
        replace(
            example(one.record.index),
            uuid=GpuUuid(one.record.uuid),
            pci=one.pci,
            minor=one.record.minor,
            mig_devices=(),
        )
        for one in simulated.gpus
    ]


@pytest.mark.go
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", machine.names())
def test_every_simulated_machine_gives_a_document(
    tmp_path: Path, library: Any, name: str, mode: Literal["files", "mknod"]
) -> None:
    simulated = machine.load(name)
    SimulatedHost(simulated, tmp_path, device_nodes=mode)
    place = Place(tmp_path, str(tmp_path))
    looked = DriverRootSearch(place, place, tmp_path / "sys", tmp_path / "proc", "x86_64")
    gpus = gpus_of(simulated)
    facts = looked.look(simulated.snapshot.driver.version, gpus)
    built = build(gpus, facts, options=Options(stand_ins=mode == "files"))
    assert built.refused == {}
    assert built.spec is not None
    assert [device.name for device in built.spec.devices] == [
        gpu.uuid for gpu in sorted(gpus, key=lambda gpu: gpu.index)
    ]
    assert verify(built.spec, looked.exists) == ()
    assert verify(built.spec, os.path.lexists) == ()
    (answer,) = library([msgspec.json.format(encode(built.spec), indent=-1)])
    assert answer == {"accepted": True, "error": "", "minimum": built.spec.version}
    assert "/usr/lib64/libcuda.so.1" in {mount.container_path for mount in built.spec.container_edits.mounts}

    (tmp_path / f"dev/nvidia{gpus[0].minor}").unlink()
    now = build(gpus, looked.look(facts.version, []), options=Options(stand_ins=mode == "files"))
    assert list(now.refused) == [gpus[0].uuid]
    assert verify(built.spec, looked.exists) == (f"{tmp_path}/dev/nvidia{gpus[0].minor}",)
