"""Hot plug: the kernel says at once when a GPU or its driver comes or goes, where a timer would take a minute.

The kernel's own messages are heard, not udev's: those of udev do not reach a container. They are only a hint to look
again. Where they cannot be had the timer alone does the work, and that is worth one line in the log.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NVIDIA: Final = "10DE"
DISPLAY_CLASS: Final = range(0x030000, 0x040000)
MAX_AT_ONCE: Final = 256
"""Messages read before the loop gets its turn again."""


class Device(Protocol):
    """What is used of pyudev.Device."""

    @property
    def action(self) -> str | None:
        """``add``, ``remove``, ``bind``, ``unbind``, ``change`` …."""

    @property
    def subsystem(self) -> str | None:
        """``pci``, ``drivers`` …."""

    @property
    def device_path(self) -> str:
        """Path below /sys."""

    @property
    def properties(self) -> Mapping[str, str]:
        """What the kernel's message says."""


class Monitor(Protocol):
    """What is used of pyudev.Monitor."""

    def start(self) -> None:
        """Begin to receive."""

    def fileno(self) -> int:
        """What becomes readable when there is something."""

    def poll(self, timeout: float | None = None) -> Device | None:
        """Return the next device, or None."""


def concerns_gpus(device: Device) -> bool:
    """Whether a GPU of NVIDIA's, or NVIDIA's driver on the PCI bus, came, went or changed hands."""
    if device.subsystem == "drivers":
        return device.device_path == "/bus/pci/drivers/nvidia"
    if device.subsystem != "pci" or device.properties.get("PCI_ID", "").partition(":")[0].upper() != NVIDIA:
        return False
    try:
        return int(device.properties.get("PCI_CLASS", ""), 16) in DISPLAY_CLASS
    except ValueError:
        return False


def kernel_monitor() -> Monitor:
    """Open the kernel's netlink socket by pyudev. ImportError without pyudev or libudev, OSError when refused."""
    import pyudev  # noqa: PLC0415 - optional, and slow to load

    monitor: Any = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
    monitor.filter_by("pci")
    monitor.filter_by("drivers")
    found: Monitor = monitor
    return found


class HotPlug:
    """Calls `callback` on the event loop with words for the log, such as ``add 0000:1b:00.0``.

    It does so once for each message; whoever wants fewer looks coalesces them. on_end: called with the reason when
    nothing more will be heard · concerns: which devices count.
    """

    def __init__(
        self,
        callback: Callable[[str], object],
        on_end: Callable[[str], object],
        *,
        open_monitor: Callable[[], Monitor] = kernel_monitor,
        concerns: Callable[[Device], bool] = concerns_gpus,
    ) -> None:
        self._callback, self._on_end = callback, on_end
        self._open_monitor, self._concerns = open_monitor, concerns
        self._monitor: Monitor | None = None

    def start(self) -> str | None:
        """Begin to listen; returns None, or why that is not possible. Starting twice does nothing."""
        if self._monitor is not None:
            return None
        try:
            monitor = self._open_monitor()
            monitor.start()
            asyncio.get_running_loop().add_reader(monitor.fileno(), self._read)
        except (ImportError, OSError) as error:
            return f"hot plug is not heard, only found by looking: {str(error) or type(error).__name__}"
        self._monitor = monitor
        return None

    def stop(self) -> None:
        """Listen no more."""
        if self._monitor is not None:
            asyncio.get_running_loop().remove_reader(self._monitor.fileno())
            self._monitor = None  # which closes the socket

    def _read(self) -> None:
        for _ in range(MAX_AT_ONCE):
            if self._monitor is None:  # stopped by the callback
                return
            try:
                device = self._monitor.poll(timeout=0)
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    self._callback("messages of the kernel were lost")
                    continue
                self.stop()
                self._on_end(f"hot plug is no longer heard, only found by looking: {error}")
                return
            if device is None:
                return
            if self._concerns(device):
                name = device.properties.get("PCI_SLOT_NAME") or device.device_path
                self._callback(f"{device.action} {name}")
