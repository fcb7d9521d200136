"""A simulated machine whose NVML is asked through RealNvml, over either double: `rig` runs its tests with both."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.discovery.nvml_real import RealNvml
from gpuplugin.sim import machine
from gpuplugin.sim.nvml_double import NvmlDouble
from gpuplugin.sim.snapshot import Snapshot
from gpuplugin.sim.state import State
from tests.nvml.standin.build import CompilerMissingError, build_standin


@pytest.fixture(scope="session")
def standin() -> Path:
    """The C stand-in's path."""
    try:
        return build_standin()
    except CompilerMissingError as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(missing))


@dataclass
class Rig:
    """NVML of one simulated machine. `state` is what breaks it; `nvml` is not open yet."""

    state: State
    library: object | Path
    nvml: RealNvml
    devices: Path
    pool: ThreadPoolExecutor = field(default_factory=ThreadPoolExecutor)

    def meanwhile(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Make a call that may block, in a thread of its own."""
        return self.pool.submit(call, *arguments)


RigMaker = Callable[..., Rig]


def make_nodes(folder: Path, snapshot: Snapshot) -> Path:
    """Make what the C stand-in opens in place of device nodes."""
    folder.mkdir()
    for name in ["nvidiactl", *(f"nvidia{gpu.minor}" for gpu in snapshot.gpus if gpu.minor is not None)]:
        (folder / name).touch()
    return folder


@pytest.fixture(params=["double", "standin"])
def make_rig(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RigMaker]:
    """Give a function from a machine's name or a Snapshot to a Rig, one a test."""
    made: list[Rig] = []

    def make(what: str | Snapshot = "hgx-h100") -> Rig:
        snapshot = machine.load(what).snapshot if isinstance(what, str) else what
        state = State.create(tmp_path / "nvml.state", snapshot)
        devices = make_nodes(tmp_path / "dev", snapshot)
        monkeypatch.setenv("GPUPLUGIN_NVML_STATE", str(state.path))
        monkeypatch.setenv("GPUPLUGIN_NVML_DEV", str(devices))
        if request.param == "double":
            library: object | Path = NvmlDouble(state.path)
        else:
            library = request.getfixturevalue("standin")
        made.append(Rig(state, library, RealNvml(library), devices))
        return made[-1]

    yield make
    for rig in made:
        rig.state.heal()
        rig.nvml.close()
        rig.pool.shutdown()


@pytest.fixture
def rig(make_rig: RigMaker) -> Rig:
    """Eight H100 with NVSwitches, and NVML open."""
    rig = make_rig()
    rig.nvml.open()
    return rig
