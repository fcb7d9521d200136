"""Doubles and checks that several discovery tests share; nothing a test starts may outlive it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from queue import Empty, Queue

import pytest

from gpuplugin.discovery.nvml import GpuReading, Probe
from gpuplugin.model.health import XidEvent
from gpuplugin.model.ids import GpuUuid, PciAddress
from gpuplugin.model.inventory import Driver
from tests.discovery.sysfs_tree import GPU, Tree


async def eventually(condition: Callable[[], object], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        await asyncio.sleep(0.002)


@pytest.fixture
def until() -> Callable[..., object]:
    return eventually


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 5
    while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        for thread in left:
            thread.join(0.05)
    assert not left, f"threads left behind: {left}"


@pytest.fixture(autouse=True)
async def no_leaked_tasks_or_errors() -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    unhandled: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    before = asyncio.all_tasks()
    yield
    await asyncio.sleep(0)
    left = {task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()}
    loop.set_exception_handler(None)
    assert not left, f"tasks left behind: {left}"
    assert not unhandled, f"errors that nobody handled: {unhandled}"


class Gate:
    """A call that blocks until it is let go, and tells when it is in."""

    def __init__(self, result: object = None, error: Exception | None = None) -> None:
        self.inside = threading.Event()
        self.open = threading.Event()
        self.result, self.error = result, error

    def __call__(self, *_: object) -> object:
        self.inside.set()
        if not self.open.wait(30):
            raise TimeoutError("the test never let this call go")
        if self.error is not None:
            raise self.error
        return self.result


@pytest.fixture
def gate() -> Iterator[Callable[..., Gate]]:
    made: list[Gate] = []

    def make(result: object = None, error: Exception | None = None) -> Gate:
        made.append(Gate(result, error))
        return made[-1]

    yield make
    for each in made:
        each.open.set()


def reading(index: int, **facts: object) -> GpuReading:
    return GpuReading(
        **{
            "index": index,
            "uuid": GpuUuid(f"GPU-{index:08x}"),
            "pci": PciAddress(f"0000:{0x10 + index:02x}:00.0"),
            "minor": index,
            "model": "NVIDIA H100 80GB HBM3",
            "architecture": "hopper",
            "memory_bytes": 80 << 30,
            "compute_capability": (9, 0),
            "mig": None,
            "mig_devices": (),
            "fabric": None,
            "nvlinks": (),
        }
        | facts
    )


class FakeNvml:
    """NVML as the port has it. `faults` maps (method, argument) or method to an error, or to something to call."""

    def __init__(self, gpus: int | list[GpuReading] = 0) -> None:
        self.gpus = [reading(index) for index in range(gpus)] if isinstance(gpus, int) else gpus
        self.faults: dict[object, object] = {}
        self.calls: list[tuple[str, object]] = []
        self.versions = Driver("580.95.05", "13.580.95.05", (13, 0))
        self.events: Queue[XidEvent] = Queue()
        self.unwatchable: dict[GpuUuid, str] = {}

    def _met(self, method: str, argument: object = None) -> None:
        self.calls.append((method, argument))
        fault = self.faults.get((method, argument), self.faults.get(method))
        if isinstance(fault, Exception):
            raise fault
        if callable(fault):
            fault()

    def made(self, method: str) -> int:
        return sum(name == method for name, _ in self.calls)

    def open(self) -> None:
        self._met("open")

    def close(self) -> None:
        self._met("close")

    def driver(self) -> Driver:
        self._met("driver")
        return self.versions

    def gpu_count(self) -> int:
        self._met("gpu_count")
        return len(self.gpus)

    def gpu(self, index: int) -> GpuReading:
        self._met("gpu", index)
        return replace(self.gpus[index], index=index)

    def gpu_pci(self, index: int) -> PciAddress:
        self._met("gpu_pci", index)
        return self.gpus[index].pci

    def probe(self, uuid: GpuUuid) -> Probe:
        self._met("probe", uuid)
        return Probe(None)

    def watch(self) -> dict[GpuUuid, str]:
        self._met("watch")
        return dict(self.unwatchable)

    def wait(self, seconds: float) -> XidEvent | None:
        self._met("wait")
        try:
            return self.events.get(timeout=seconds)
        except Empty:
            return None


@pytest.fixture(scope="session")
def fake_nvml() -> type[FakeNvml]:
    return FakeNvml


@pytest.fixture(scope="session")
def read() -> Callable[..., GpuReading]:
    return reading


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A sysfs with one GPU in it."""
    made = Tree(tmp_path / "sys")
    made.device(GPU)
    return made
