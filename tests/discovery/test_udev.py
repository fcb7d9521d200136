from __future__ import annotations

import asyncio
import builtins
import errno
import os
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpuplugin.discovery import udev
from gpuplugin.discovery.udev import HotPlug, concerns_gpus


@dataclass
class FakeDevice:
    action: str = "add"
    subsystem: str | None = "pci"
    device_path: str = "/devices/pci0000:17/0000:1b:00.0"
    properties: dict[str, str] = field(default_factory=dict)


def gpu(action: str = "add", **properties: str) -> FakeDevice:
    return FakeDevice(
        action, properties={"PCI_ID": "10DE:2330", "PCI_CLASS": "30200", "PCI_SLOT_NAME": "0000:1b:00.0"} | properties
    )


class FakeMonitor:
    """A socket pair and a queue: one byte stands for one message."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.settimeout(0)
        self.queue: deque[FakeDevice | OSError] = deque()
        self.started = False

    def start(self) -> None:
        self.started = True

    def fileno(self) -> int:
        return self.ours.fileno()

    def tell(self, *messages: FakeDevice | OSError) -> None:
        self.queue.extend(messages)
        self.theirs.send(b"x" * len(messages))

    def poll(self, timeout: float | None = None) -> FakeDevice | None:
        assert timeout == 0
        if not self.queue:
            return None
        self.ours.recv(1)
        message = self.queue.popleft()
        if isinstance(message, OSError):
            raise message
        return message


@pytest.fixture
async def plugged():
    monitor, heard, ended = FakeMonitor(), [], []
    hotplug = HotPlug(heard.append, ended.append, open_monitor=lambda: monitor)
    assert hotplug.start() is None
    yield hotplug, monitor, heard, ended
    hotplug.stop()
    monitor.ours.close()
    monitor.theirs.close()


@pytest.mark.parametrize(
    ("device", "concerns"),
    [
        (gpu(), True),
        (gpu("remove"), True),
        (gpu("bind", DRIVER="vfio-pci"), True),
        (gpu(PCI_CLASS="30000"), True),
        (gpu(PCI_ID="10de:2330"), True),
        (gpu(PCI_CLASS="40300"), False),
        (gpu(PCI_CLASS="68000"), False),
        (gpu(PCI_CLASS="garbage"), False),
        (gpu(PCI_ID="15B3:1021"), False),
        (gpu(PCI_ID="10DE2330"), False),
        (FakeDevice(), False),
        (FakeDevice(subsystem="drivers", device_path="/bus/pci/drivers/nvidia"), True),
        (FakeDevice(subsystem="drivers", device_path="/bus/pci/drivers/nvme"), False),
        (FakeDevice(subsystem=None), False),
    ],
)
def test_what_concerns_gpus(device, concerns):
    assert concerns_gpus(device) is concerns


async def test_each_message_about_a_gpu_is_told(plugged, until):
    _, monitor, heard, ended = plugged
    monitor.tell(gpu("remove"), FakeDevice(), gpu("add"), FakeDevice("add", "drivers", "/bus/pci/drivers/nvidia"))
    await until(lambda: len(heard) == 3)
    assert heard == ["remove 0000:1b:00.0", "add 0000:1b:00.0", "add /bus/pci/drivers/nvidia"]
    assert ended == []


async def test_a_storm_leaves_the_loop_its_turn(plugged, until):
    _, monitor, heard, _ = plugged
    monitor.tell(*[gpu()] * (3 * udev.MAX_AT_ONCE))
    turns: list[int] = []
    while len(heard) < 3 * udev.MAX_AT_ONCE:
        await asyncio.sleep(0)
        if not turns or turns[-1] != len(heard):
            turns.append(len(heard))
    assert max(after - before for before, after in zip([0, *turns], turns, strict=False)) <= udev.MAX_AT_ONCE


async def test_lost_messages_are_a_reason_to_look(plugged, until):
    _, monitor, heard, ended = plugged
    monitor.tell(OSError(errno.ENOBUFS, "No buffer space available"), gpu())
    await until(lambda: len(heard) == 2)
    assert heard[0] == "messages of the kernel were lost"
    assert ended == []


async def test_a_broken_socket_ends_it_and_says_so(plugged, until):
    _, monitor, heard, ended = plugged
    monitor.tell(OSError(errno.EBADF, "Bad file descriptor"), gpu())
    await until(lambda: ended)
    assert ended == ["hot plug is no longer heard, only found by looking: [Errno 9] Bad file descriptor"]
    assert not asyncio.get_running_loop().remove_reader(monitor.fileno())
    assert heard == []


async def test_stopping_within_the_callback(until):
    monitor, heard = FakeMonitor(), []

    def callback(text: str) -> None:
        heard.append(text)
        hotplug.stop()

    hotplug = HotPlug(callback, heard.append, open_monitor=lambda: monitor)
    hotplug.start()
    monitor.tell(gpu(), gpu())
    await until(lambda: heard)
    await asyncio.sleep(0)
    assert len(heard) == 1
    hotplug.stop()
    monitor.ours.close()
    monitor.theirs.close()


@pytest.mark.parametrize(
    "error",
    [ImportError("No library named udev"), ModuleNotFoundError(), PermissionError(1, "Operation not permitted")],
)
async def test_without_udev_there_is_a_reason_and_no_error(error):
    def open_monitor() -> None:
        raise error

    reason = HotPlug(print, print, open_monitor=open_monitor).start()
    assert reason is not None
    assert reason.startswith("hot plug is not heard, only found by looking: ")
    assert not reason.endswith(" ")


async def test_without_pyudev(monkeypatch):
    real = builtins.__import__

    def refuse(name: str, *args: object, **kwargs: object) -> object:
        if name == "pyudev":
            raise ModuleNotFoundError("No module named 'pyudev'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert "No module named 'pyudev'" in (HotPlug(print, print).start() or "")


DEVICES = sorted(Path("/sys/bus/pci/devices").glob("*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to ask the kernel for a message")
@pytest.mark.skipif(not DEVICES, reason="this machine has no PCI device to ask for a message about")
async def test_the_kernels_own_message(until):
    """Writing to a device's uevent file has the kernel send a message about it, which changes nothing."""
    heard: list[str] = []
    seen = []
    hotplug = HotPlug(heard.append, heard.append, concerns=lambda device: seen.append(device) or True)
    if (reason := hotplug.start()) is not None:
        pytest.skip(reason)
    descriptor = hotplug._monitor.fileno()
    try:
        with skipping_where_read_only():
            (DEVICES[-1] / "uevent").write_text("change")
        await until(lambda: f"change {DEVICES[-1].name}" in heard)
        found = next(device for device in seen if device.properties.get("PCI_SLOT_NAME") == DEVICES[-1].name)
        assert found.subsystem == "pci"
        assert len(found.properties["PCI_ID"].split(":")) == 2
        assert int(found.properties["PCI_CLASS"], 16) > 0
    finally:
        hotplug.stop()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@contextmanager
def skipping_where_read_only() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        pytest.skip(f"/sys cannot be written here: {error}")
