"""From facts to the document: what a container is given of each GPU and MIG device.

No hook is needed: nothing of ours or of NVIDIA's toolkit has to be installed where containers start. The loader of a
glibc image finds the libraries because they are bound, under every name that programs use, in its default folders. Such
a container sees the driver's own libraries only; see `cdi.hooks` for what the toolkit's hooks add.

What must be there, or no GPU is offered: ``/dev/nvidiactl``, ``/dev/nvidia-uvm`` and ``libcuda.so.<version>``; without
them every CUDA program fails. What a GPU itself needs: its ``/dev/nvidia<minor>``; a MIG device that of its GPU and two
capabilities. A node that an earlier boot left behind with another number counts as missing. All else is left out where
the host does not have it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Final

from cdi import parts
from cdi.names import ALL, KIND, Naming, gpu_names, mig_names
from cdi.spec import ContainerEdits, Device, Spec, with_minimum_version
from cdi.validate import refusals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from cdi.hooks import Hooks
    from gpuplugin.model.driver_root import DriverRoot, Extra, Node
    from gpuplugin.model.ids import DeviceUuid
    from gpuplugin.model.inventory import Gpu, MigDevice

ENV: Final = ("NVIDIA_VISIBLE_DEVICES=void",)
"""Keeps an NVIDIA runtime hook, if one is installed, from injecting GPUs a second time and in its own way."""

MANDATORY: Final = {"/dev/nvidiactl": "nvidia-modprobe", "/dev/nvidia-uvm": "nvidia-modprobe -u -c 0"}
"""Common nodes without which no GPU works, each with the command that makes it on the host."""

OPTIONAL: Final = ("/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")

_GRAPHICS: Final = "gfx"
_DRIVERS: Final = {"/dev/nvidia-uvm": "nvidia-uvm", "/dev/nvidia-uvm-tools": "nvidia-uvm"}
_GPU_DRIVER, _CAPS_DRIVER = "nvidia", "nvidia-caps"


@dataclass(frozen=True, slots=True)
class Options:
    """What a document has besides one device a GPU and a MIG device.

    dri: whether a GPU brings its nodes under ``/dev/dri``, which graphics and video need and CUDA does not · stand_ins:
    whether files or links may stand for device nodes, as on a simulated host; they are bound as they are · namings:
    a device for each · everything: whether there is a device ``all`` · whole_of_mig: whether a GPU in MIG mode is a
    device too, which is of use to monitoring only · hooks: of NVIDIA's toolkit, None for none.
    """

    dri: bool = True
    stand_ins: bool = False
    namings: tuple[Naming, ...] = (Naming.UUID,)
    everything: bool = False
    whole_of_mig: bool = True
    hooks: Hooks | None = None


@dataclass(frozen=True, slots=True)
class Built:
    """spec: None where no device is left, since a document without devices is refused by runtimes.

    refused: GPUs and MIG devices that are not in it, and why, for a person.
    """

    spec: Spec | None
    refused: Mapping[DeviceUuid, str]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A device that would be in the document, were there no `fault`."""

    uuid: DeviceUuid
    names: tuple[str, ...]
    nodes: tuple[Node, ...]
    fault: str | None


def build(gpus: Iterable[Gpu], root: DriverRoot, kind: str = KIND, options: Options = Options()) -> Built:
    """Build the document of GPUs, each followed by its MIG devices, in the order of their indices."""
    nodes = _Nodes(root, options)
    common = nodes.common_fault()
    refused: dict[DeviceUuid, str] = {}
    devices: list[Device] = []
    for gpu in sorted(gpus, key=lambda gpu: gpu.index):
        for candidate in _candidates(gpu, nodes, options):
            edits = parts.edits(candidate.nodes)
            named = tuple(Device(name=name, container_edits=edits) for name in candidate.names)
            fault = common or candidate.fault or _rule_broken(kind, named)
            if fault is None:
                devices += named
            else:
                refused[candidate.uuid] = fault
    if not devices:
        return Built(None, refused)
    if options.everything:
        devices.append(Device(name=ALL, container_edits=parts.merged(device.container_edits for device in devices)))
    return Built(_document(kind, devices, nodes.common_edits()), refused)


def build_extra(extra: Extra, kind: str) -> Spec:
    """Build the document of something beside GPUs, as its one device ``all``."""
    return _document(kind, [Device(name=ALL, container_edits=parts.of_extra(extra))])


def verify(spec: Spec, exists: Callable[[str], bool]) -> tuple[str, ...]:
    """Give the host paths that the document needs and that are not there, sorted: each would fail a container's start.

    exists: whether there is something at a path of the host.
    """
    return tuple(sorted({path for edits in spec.all_edits for path in needs(edits) if not exists(path)}))


def without_missing(spec: Spec, exists: Callable[[str], bool]) -> tuple[Spec | None, Mapping[str, str]]:
    """Take those devices out whose host paths are not there; gives the rest, and the names with the reason."""
    there = cache(exists)

    def gone(edits: ContainerEdits) -> list[str]:
        return [path for path in dict.fromkeys(needs(edits)) if not there(path)]

    common = gone(spec.container_edits)
    missing = {device.name: common or gone(device.container_edits) for device in spec.devices}
    refused = {name: _went_away(paths) for name, paths in missing.items() if paths}
    left = [device for device in spec.devices if device.name not in refused]
    return (_document(spec.kind, left, spec.container_edits) if left else None), refused


def needs(edits: ContainerEdits) -> Iterator[str]:
    """Give the host paths that the edits need."""
    for node in edits.device_nodes:
        yield node.host_path or node.path
    for mount in edits.mounts:
        if "bind" in mount.options or "rbind" in mount.options:
            yield mount.host_path
    for hook in edits.hooks:
        yield hook.path


def _went_away(paths: list[str]) -> str:
    return f"{', '.join(paths)} went away while looking at the driver's files"


def _document(kind: str, devices: Iterable[Device], common: ContainerEdits | None = None) -> Spec:
    spec = Spec(version="", kind=kind, devices=tuple(devices), container_edits=common or ContainerEdits())
    return with_minimum_version(spec)


def _rule_broken(kind: str, devices: tuple[Device, ...]) -> str | None:
    return next(map(str, refusals(_document(kind, devices))), None)


def _candidates(gpu: Gpu, nodes: _Nodes, options: Options) -> Iterator[_Candidate]:
    fault = nodes.gpu_fault(gpu)
    if options.whole_of_mig or not (gpu.mig and gpu.mig.current):
        yield _Candidate(gpu.uuid, gpu_names(gpu, options.namings), nodes.of_gpu(gpu), fault)
    for device in gpu.mig_devices:
        names = mig_names(gpu, device, options.namings)
        yield _Candidate(device.uuid, names, nodes.of_mig(gpu, device), fault or nodes.mig_fault(device))


class _Nodes:
    """The host's nodes by their paths, and what is wrong with those that are needed."""

    def __init__(self, root: DriverRoot, options: Options) -> None:
        self._root, self._options = root, options
        self._by_path = {node.path: node for node in root.nodes}

    def common_edits(self) -> ContainerEdits:
        root, hooks = self._root, self._options.hooks
        optional = (self._by_path.get(path) for path in OPTIONAL)
        good = (
            node for node in optional if node and node.number and not self._stale(node, _DRIVERS.get(node.path), None)
        )
        run = hooks.of(root.version, parts.loader_folders(root.machine)) if hooks else ()
        own = parts.edits((*self._present(MANDATORY), *good), ENV, parts.driver_files(root), run)
        return parts.merged((own, *map(parts.of_extra, map(self._usable, root.extras))))

    def common_fault(self) -> str | None:
        root = self._root
        for path, command in MANDATORY.items():
            fault = self._fault(path, command, _DRIVERS.get(path, _GPU_DRIVER))
            if fault is not None:
                return fault
        wanted = f"libcuda.so.{root.version}"
        if not any(library.name == wanted for library in root.libraries):
            return (
                f"no {wanted} for {root.machine} under the driver root {root.root}; install the driver's libraries "
                f"of version {root.version} there, or set the driver root to where they are"
            )
        return next((extra.missing for extra in root.extras if extra.required and extra.missing), None)

    def gpu_fault(self, gpu: Gpu) -> str | None:
        if gpu.minor is None:
            return "the driver does not tell its minor number, so its device node is not known; see dmesg on the host"
        return self._fault(f"/dev/nvidia{gpu.minor}", f"nvidia-modprobe -c {gpu.minor}", _GPU_DRIVER, gpu.minor)

    def mig_fault(self, device: MigDevice) -> str | None:
        for capability in self._root.caps.get(device.uuid, ()):
            if capability.minor is None:
                return f"the driver does not tell the number of the capability {capability.name}; see dmesg on the host"
            command = f"nvidia-modprobe -f /proc/driver/nvidia/capabilities/{_file_of(capability.name)}"
            fault = self._fault(capability.path, command, _CAPS_DRIVER, capability.minor)
            if fault is not None:
                return fault
        return None if device.uuid in self._root.caps else "its capabilities have not been looked for yet"

    def of_gpu(self, gpu: Gpu) -> tuple[Node, ...]:
        return (*self._present([f"/dev/nvidia{gpu.minor}"]), *self._dri(gpu))

    def of_mig(self, gpu: Gpu, device: MigDevice) -> tuple[Node, ...]:
        """Give its GPU's node, both capabilities, and nodes for graphics only where its profile can do graphics."""
        capabilities = (one.path for one in self._root.caps.get(device.uuid, ()))
        dri = self._dri(gpu) if _GRAPHICS in device.profile else ()
        return (*self._present([f"/dev/nvidia{gpu.minor}", *capabilities]), *dri)

    def _dri(self, gpu: Gpu) -> tuple[Node, ...]:
        dri = self._root.dri_of(gpu.pci) if self._options.dri else ()
        return tuple(node for node in dri if node.number is not None)

    def _present(self, paths: Iterable[str]) -> Iterator[Node]:
        return (node for path in paths if (node := self._by_path.get(path)) is not None)

    def _usable(self, extra: Extra) -> Extra:

        kept = tuple(node for node in extra.nodes if node.number is not None or self._options.stand_ins)
        return replace(extra, nodes=kept)

    def _fault(self, path: str, command: str, driver: str, minor: int | None = None) -> str | None:
        node = self._by_path.get(path)
        if node is None:
            return f"{self._root.dev_root.rstrip('/')}{path} is missing on the host; make it there with: {command}"
        if node.number is None:
            if self._options.stand_ins:
                return None
            return f"{node.host} on the host is no device node of its own; remove it, then make it with: {command}"
        if self._stale(node, driver, minor):
            now = f"{self._root.majors[driver]}{'' if minor is None else f':{minor}'}"
            return (
                f"{node.host} on the host has the number {node.number[0]}:{node.number[1]} of an earlier boot, "
                f"{driver} is {now} now; remove it, then make it with: {command}"
            )
        return None

    def _stale(self, node: Node, driver: str | None, minor: int | None) -> bool:
        """Whether the kernel deals out another number now; False where it does not tell."""
        major = self._root.majors.get(driver or "")
        if major is None or node.number is None:
            return False
        return node.number[0] != major or (minor is not None and node.number[1] != minor)


def _file_of(capability: str) -> str:
    gpu, _, rest = capability.partition("/")
    return f"{gpu}/mig/{rest}"
