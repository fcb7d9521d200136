"""pynvml keeps its library and its functions in module globals; each test gets them fresh."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from gpuplugin.sim import machine
from gpuplugin.sim.host import SimulatedHost
from gpuplugin.sim.snapshot import MigRecord

Start = Callable[[str], SimulatedHost]


def use(library: object) -> None:
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib = library
    pynvml._nvmlLib_refcount = 0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a machine and put pynvml on it, not yet initialised."""

    def run(name: str) -> SimulatedHost:
        host = SimulatedHost(machine.load(name), tmp_path / name)
        use(host.library())
        return host

    yield run
    use(None)


@pytest.fixture
def h100(start: Start) -> SimulatedHost:
    """An HGX H100 with pynvml initialised on it."""
    host = start("hgx-h100")
    pynvml.nvmlInit()
    return host


@pytest.fixture
def sliced(h100: SimulatedHost) -> list[MigRecord]:
    """Two MIG devices of GPU 4, in slots 0 and 2."""
    h100.mig_mode(4, enabled=True)
    made = [h100.mig_create(4, "1g.10gb", 0), h100.mig_create(4, "2g.20gb", 2), h100.mig_create(4, "3g.40gb", 4)]
    h100.mig_destroy(4, made[1].slot)
    return [made[0], made[2]]
