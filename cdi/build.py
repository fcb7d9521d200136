"""From facts to the document: what a container is given of each GPU, without any program run on the host.

No hook means that nothing of ours or of NVIDIA's toolkit has to be installed where containers start. The loader of a
glibc image finds the libraries because they are bound, under every name that programs use, in its default folders. Such
a container sees the driver's own libraries only: musl images and CUDA forward compatibility need the toolkit's hooks.

What must be there, or no GPU is offered: ``/dev/nvidiactl``, ``/dev/nvidia-uvm`` and ``libcuda.so.<version>``; without
them every CUDA program fails. What a GPU itself needs: its ``/dev/nvidia<minor>``. All else is left out where the host
does not have it. Device numbers are never written down: they change with a reboot, and runtimes take them from the
host's node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdi.names import KIND
from cdi.spec import ContainerEdits, Device, DeviceNode, Mount, Spec, with_minimum_version
from cdi.validate import refusals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gpuplugin.model.driver_root import DriverRoot, Library, Node
    from gpuplugin.model.ids import GpuUuid
    from gpuplugin.model.inventory import Gpu

BIND: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")
STAND_IN: Final = ("rw", "nosuid", "rbind", "rprivate")
ENV: Final = ("NVIDIA_VISIBLE_DEVICES=void",)
"""Keeps an NVIDIA runtime hook, if one is installed, from injecting GPUs a second time and in its own way."""

MANDATORY: Final = {"/dev/nvidiactl": "nvidia-modprobe", "/dev/nvidia-uvm": "nvidia-modprobe -u -c 0"}
"""Common nodes without which no GPU works, each with the command that makes it on the host."""

OPTIONAL: Final = ("/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


@dataclass(frozen=True, slots=True)
class Options:
    """dri: whether a GPU brings its nodes under ``/dev/dri``, which graphics and video need and CUDA does not.

    stand_ins: whether files or links may stand for device nodes, as on a simulated host; they are bound as they are.
    """

    dri: bool = True
    stand_ins: bool = False


@dataclass(frozen=True, slots=True)
class Built:
    """spec: None where no device is left, since a document without devices is refused by runtimes.

    refused: GPUs that have no device in it, and why, for a person.
    """

    spec: Spec | None
    refused: Mapping[GpuUuid, str]


def build(gpus: Iterable[Gpu], root: DriverRoot, kind: str = KIND, options: Options = Options()) -> Built:
    """Build the document of whole GPUs, each a device named by its UUID, in the order of their indices."""
    gpus = sorted(gpus, key=lambda gpu: gpu.index)
    common = _common_fault(root, options)
    refused: dict[GpuUuid, str] = {}
    devices: list[Device] = []
    for gpu in gpus:
        fault = common or _gpu_fault(gpu, root, options)
        if fault is None:
            device = Device(name=gpu.uuid, container_edits=_edits(_gpu_nodes(gpu, root, options)))
            fault = next(map(str, refusals(with_minimum_version(_document(kind, (device,))))), None)
            if fault is None:
                devices.append(device)
        if fault is not None:
            refused[gpu.uuid] = fault
    if not devices:
        return Built(None, refused)
    return Built(with_minimum_version(_document(kind, tuple(devices), _common_edits(root))), refused)


def verify(spec: Spec, exists: Callable[[str], bool]) -> tuple[str, ...]:
    """Give the host paths that the document needs and that are not there, sorted: each would fail a container's start.

    exists: whether there is something at a path of the host.
    """
    needed: set[str] = set()
    for edits in spec.all_edits:
        needed.update(node.host_path or node.path for node in edits.device_nodes)
        needed.update(mount.host_path for mount in edits.mounts if "bind" in mount.options or "rbind" in mount.options)
        needed.update(hook.path for hook in edits.hooks)
    return tuple(sorted(path for path in needed if not exists(path)))


def _document(kind: str, devices: tuple[Device, ...], common: ContainerEdits | None = None) -> Spec:
    return Spec(version="", kind=kind, devices=devices, container_edits=common or ContainerEdits())


def _common_fault(root: DriverRoot, options: Options) -> str | None:
    for path, command in MANDATORY.items():
        fault = _node_fault(path, command, root, options)
        if fault is not None:
            return fault
    wanted = f"libcuda.so.{root.version}"
    if not any(library.name == wanted for library in root.libraries):
        return (
            f"no {wanted} for {root.machine} under the driver root {root.root}; "
            f"install the driver's libraries of version {root.version} there, or set the driver root to where they are"
        )
    return None


def _gpu_fault(gpu: Gpu, root: DriverRoot, options: Options) -> str | None:
    if gpu.minor is None:
        return "the driver does not tell its minor number, so its device node is not known; see dmesg on the host"
    return _node_fault(f"/dev/nvidia{gpu.minor}", f"nvidia-modprobe -c {gpu.minor}", root, options)


def _node_fault(path: str, command: str, root: DriverRoot, options: Options) -> str | None:
    node = root.node(path)
    if node is None:
        return f"{root.dev_root.rstrip('/')}{path} is missing on the host; make it there with: {command}"
    if node.number is None and not options.stand_ins:
        return f"{node.host} on the host is no device node of its own; remove it, then make it with: {command}"
    return None


def _gpu_nodes(gpu: Gpu, root: DriverRoot, options: Options) -> tuple[Node, ...]:
    own = root.node(f"/dev/nvidia{gpu.minor}")
    dri = root.dri_of(gpu.pci) if options.dri else ()
    return (*((own,) if own else ()), *(node for node in dri if node.number is not None))


def _common_edits(root: DriverRoot) -> ContainerEdits:
    mandatory = [node for path in MANDATORY if (node := root.node(path)) is not None]
    optional = [node for path in OPTIONAL if (node := root.node(path)) is not None and node.number is not None]
    return _edits((*mandatory, *optional), ENV, _mounts(root))


def _edits(nodes: Iterable[Node], env: tuple[str, ...] = (), mounts: tuple[Mount, ...] = ()) -> ContainerEdits:
    """Make device nodes of nodes, and binds of what only stands for one."""
    nodes = tuple(nodes)
    stand_ins = tuple(
        Mount(host_path=node.host, container_path=node.path, options=STAND_IN) for node in nodes if node.number is None
    )
    return ContainerEdits(
        env=env,
        device_nodes=tuple(
            DeviceNode(path=node.path, host_path=node.host if node.host != node.path else "", permissions="rw")
            for node in nodes
            if node.number is not None
        ),
        mounts=(*stand_ins, *mounts),
    )


def _mounts(root: DriverRoot) -> tuple[Mount, ...]:
    """Bind libraries and files; where two want the same place in the container, the first has it."""
    sources: dict[str, str] = {}
    for folder in loader_folders(root.machine):
        for library in root.libraries:
            for name in _names(library):
                sources.setdefault("/".join(filter(None, (folder, library.folder, name))), library.host)
        for loader_file in root.loader_files:
            sources.setdefault(f"{folder}/{loader_file.path}", loader_file.host)
    for file in root.files:
        sources.setdefault(file.path, file.host)
    return tuple(Mount(host_path=host, container_path=path, options=BIND) for path, host in sources.items())


def loader_folders(machine: str) -> tuple[str, str]:
    """Give where the loaders of glibc images look by default: Debian's and its kin's folder, and everybody else's."""
    return f"/usr/lib/{machine}-linux-gnu", "/usr/lib64"


def _names(library: Library) -> Iterator[str]:
    """Give every name by which programs ask for a library; those that only others load have just one."""
    yield library.name
    if library.soname is not None and library.soname != library.name:
        yield library.soname
        yield library.stem
