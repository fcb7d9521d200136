"""What NVML does not tell: NUMA nodes, where a device hangs in the PCIe tree, and the RDMA NICs beside the GPUs.

Kernels, virtual machines and broken firmware leave files out or write nonsense into them. One bad file costs one fact,
which becomes None with a warning; it never hides another device.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpuplugin.errors import SysfsError
from gpuplugin.model.ids import NumaId, PciAddress, pci_address
from gpuplugin.model.inventory import Nic, NumaNode, PciePath

READ_LIMIT: Final = 64 * 1024
"""Bytes. The kernel's own limit for a text file in sysfs is a page; a list of CPUs may be longer."""

CPU_LIMIT: Final = 65536
"""Above any kernel's NR_CPUS: a list that names a higher one is garbage, and must not fill memory."""

_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_PCI_FUNCTION = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_GUID = re.compile(r"[0-9a-f]{4}(:[0-9a-f]{4}){3}")
_SHOWN = 60


def parse_cpulist(text: str) -> tuple[int, ...]:
    """CPUs in ascending order from the kernel's notation: ``0-3,8``, or nothing for none.

    Raises ValueError when it is not that, or not in ascending order.
    """
    cpus: list[int] = []
    for part in text.strip().split(",") if text.strip() else ():
        first, dash, last = part.partition("-")
        low = _decimal(first)
        high = _decimal(last) if dash else low
        least = cpus[-1] + 1 if cpus else 0
        if not least <= low <= high < CPU_LIMIT:
            raise ValueError(f"{part!r} is not a range of CPUs from {least} to {CPU_LIMIT - 1}")
        cpus.extend(range(low, high + 1))
    return tuple(cpus)


def _decimal(text: str) -> int:
    """int() without its liberties: signs, blanks, underscores, other scripts' digits."""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError(f"{text[:_SHOWN]!r} is not a number")
    return int(text)


def _why(error: OSError | UnicodeDecodeError) -> str:
    """Without the path, which the caller names."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _open_without_waiting(path: str, flags: int) -> int:
    """So that a pipe in the place of a file does not hold us up."""
    return os.open(path, flags | os.O_NONBLOCK)


@dataclass
class Sysfs:
    """A look at /sys, or at the same tree elsewhere.

    All methods read at call time and keep nothing but warnings. SysfsError means that nothing of a kind could be read.
    """

    root: Path = Path("/sys")
    _warnings: dict[str, None] = field(default_factory=dict, init=False, repr=False)
    _asking_nics: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def take_warnings(self) -> tuple[str, ...]:
        """What was missing or made no sense since the last call, each thing once, in the order met."""
        warnings = tuple(self._warnings)
        self._warnings.clear()
        return warnings

    def numa_nodes(self) -> tuple[NumaNode, ...]:
        """All NUMA nodes by id; empty when the kernel has no notion of them.

        CPUs or distances that make no sense are empty, with a warning.
        """
        folder = self.root / "devices/system/node"
        ids = sorted(int(name[4:]) for name in self._listing(folder) if re.fullmatch(r"node[0-9]{1,6}", name))
        return tuple(
            NumaNode(NumaId(n), self._cpus(folder / f"node{n}/cpulist"), self._distances(folder / f"node{n}", len(ids)))
            for n in ids
        )

    def pci(self, address: PciAddress) -> tuple[NumaId | None, PciePath | None]:
        """The device's NUMA node and its place in the PCIe tree; None for what cannot be told.

        Raises SysfsError when there is no PCI bus in this tree at all.
        """
        bus = self.root / "bus/pci/devices"
        if not bus.is_dir():
            raise SysfsError(bus, "no such folder; is this the host's /sys?")
        try:
            name = pci_address(address)
        except ValueError as error:
            self._warn(str(error))
            return None, None
        place = self._resolve(bus / name)
        if place is None:
            return None, None
        return self._numa(place), self._pcie_path(place)

    def nics(self) -> tuple[Nic, ...]:
        """RDMA NICs by name: those that hang on PCI, virtual functions among them. Empty where there are none.

        link_layer, rate and state are those of the first port; state is its word alone (``ACTIVE``). Reading them may
        ask the NIC's firmware, and so may take long on a sick NIC: while one look at them has not come back, on another
        thread, a further one is refused with SysfsError.
        """
        folder = self.root / "class/infiniband"
        if not self._asking_nics.acquire(blocking=False):
            raise SysfsError(folder, "an earlier look at the NICs has not come back")
        try:
            return self._all_nics(folder)
        finally:
            self._asking_nics.release()

    def _all_nics(self, folder: Path) -> tuple[Nic, ...]:
        uverbs_by_nic, uverbs_by_device = self._uverbs()
        nics = []
        for name in self._listing(folder):
            link = folder / name / "device"
            if not os.path.lexists(link):  # a NIC made of software
                continue
            device = self._resolve(link)
            if device is None:
                continue
            address = next((part for part in reversed(device.parts) if _PCI_FUNCTION.fullmatch(part)), None)
            if address is None:
                self._warn(f"{link}: leads to {device}, which is not on a PCI bus; the NIC is left out")
                continue
            uverbs = uverbs_by_nic.get(name) or uverbs_by_device.get(device)
            nics.append(self._nic(name, PciAddress(address), device, uverbs))
        return tuple(nics)

    def _nic(self, name: str, address: PciAddress, device: Path, uverbs: str | None) -> Nic:
        folder = self.root / "class/infiniband" / name
        ports = sorted((n for n in self._names(folder / "ports") if re.fullmatch("[0-9]{1,6}", n)), key=int)
        port = folder / "ports" / ports[0] if ports else None
        if port is None:
            self._warn(f"{folder / 'ports'}: no port")
        function = next(up for up in (device, *device.parents) if up.name == address)
        state = self._line(port / "state") if port else None
        return Nic(
            name=name,
            pci=address,
            numa=self._numa(function),
            pcie=self._pcie_path(function),
            link_layer=self._line(port / "link_layer") if port else None,
            rate=self._line(port / "rate") if port else None,
            state=re.sub(r"^\d+: *", "", state) or None if state else None,
            node_guid=self._guid(folder / "node_guid"),
            netdev=self._netdev(device, port),
            uverbs=uverbs,
        )

    def _netdev(self, device: Path, port: Path | None) -> str | None:
        """The port's network interface; where the port does not say, the first by name (representors are there too)."""
        names = self._names(device / "net")
        if len(names) > 1 and port is not None:
            own = self._text(port / "gid_attrs/ndevs/0", quiet=True)
            if own is not None and own.strip() in names:
                return own.strip()
        return names[0] if names else None

    def _uverbs(self) -> tuple[dict[str, str], dict[Path, str]]:
        """The character devices under /dev/infiniband, by the NIC's name and by its device's folder."""
        folder = self.root / "class/infiniband_verbs"
        by_nic: dict[str, str] = {}
        by_device: dict[Path, str] = {}
        for name in (name for name in self._names(folder) if re.fullmatch(r"uverbs[0-9]+", name)):
            nic = self._text(folder / name / "ibdev", quiet=True)
            if nic is not None:
                by_nic.setdefault(nic.strip(), name)
            elif (device := self._resolve(folder / name / "device")) is not None:
                by_device.setdefault(device, name)
        return by_nic, by_device

    def _pcie_path(self, device: Path) -> PciePath | None:
        """From a device's real folder: ``…/pci0000:17/0000:17:01.0/0000:18:00.0``.

        The host bridge nearest to the device counts: behind VMD there are two, one in the other.
        """
        parts = device.parts
        at = next((n for n in range(len(parts) - 1, -1, -1) if _HOST_BRIDGE.fullmatch(parts[n])), None)
        if at is None:
            self._warn(f"{device}: not below a PCI host bridge")
            return None
        bridges = parts[at + 1 : -1]
        if odd := [part for part in bridges if not _PCI_FUNCTION.fullmatch(part)]:
            self._warn(f"{device}: {odd[0]!r} on the way from the host bridge is not a PCI bridge")
            return None
        return PciePath(parts[at], tuple(map(PciAddress, bridges)))

    def _numa(self, device: Path) -> NumaId | None:
        text = self._line(device / "numa_node")
        if text is None or text == "-1":
            return None
        try:
            return NumaId(_decimal(text))
        except ValueError as error:
            self._warn(f"{device / 'numa_node'}: {error}")
            return None

    def _cpus(self, file: Path) -> tuple[int, ...]:
        text = self._text(file)
        try:
            return parse_cpulist(text or "")
        except ValueError as error:
            self._warn(f"{file}: {error}")
            return ()

    def _distances(self, node: Path, nodes: int) -> tuple[int, ...]:
        file = node / "distance"
        text = self._text(file)
        if text is None:
            return ()
        try:
            distances = tuple(map(_decimal, text.split()))
        except ValueError as error:
            self._warn(f"{file}: {error}")
            return ()
        if len(distances) != nodes:
            self._warn(f"{file}: {len(distances)} distances for {nodes} NUMA nodes")
            return ()
        return distances

    def _guid(self, file: Path) -> str | None:
        text = self._line(file)
        if text is not None and not _GUID.fullmatch(text):
            self._warn(f"{file}: {text[:_SHOWN]!r} is not a GUID such as 0c42:a103:0065:0f3a")
            return None
        return text

    def _line(self, file: Path) -> str | None:
        """The file's one line without its end; None, with a warning, when it is not one line of readable text."""
        text = self._text(file)
        if text is None:
            return None
        text = text.strip()
        if not text or not text.isprintable():
            self._warn(f"{file}: {text[:_SHOWN]!r} is not a line of text")
            return None
        return text

    def _text(self, file: Path, *, quiet: bool = False) -> str | None:
        try:
            with open(file, "rb", opener=_open_without_waiting) as opened:
                content = opened.read(READ_LIMIT + 1) or b""
            text, why = content.decode(), f"longer than {READ_LIMIT} bytes" if len(content) > READ_LIMIT else None
        except (OSError, UnicodeDecodeError) as error:
            text, why = "", _why(error)
        if why is None:
            return text
        if not quiet:
            self._warn(f"{file}: {why}")
        return None

    def _listing(self, folder: Path) -> list[str]:
        """Names in `folder`, sorted; none when it does not exist. Raises SysfsError when it cannot be listed."""
        try:
            return sorted(entry.name for entry in folder.iterdir() if entry.name.isprintable())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SysfsError(folder, _why(error)) from error

    def _names(self, folder: Path) -> list[str]:
        """As `_listing`, but a folder that cannot be listed is a warning, and empty."""
        try:
            return self._listing(folder)
        except SysfsError as error:
            self._warn(str(error))
            return []

    def _resolve(self, link: Path) -> Path | None:
        """Where `link` leads, if it is a folder within this tree; else None with a warning."""
        try:
            real = Path(os.path.realpath(link, strict=True))
        except OSError as error:
            self._warn(f"{link}: {_why(error)}")
            return None
        if not real.is_relative_to(os.path.realpath(self.root)) or not real.is_dir():
            self._warn(f"{link}: leads to {real}, which is not a device's folder in {self.root}")
            return None
        return real

    def _warn(self, text: str) -> None:
        self._warnings[text] = None
