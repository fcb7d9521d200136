"""What a container is given, part by part: facts of the host turned into edits of a container.

Device numbers are never written down: they change with a reboot, and runtimes take them from the host's node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdi.spec import ContainerEdits, DeviceNode, Hook, Mount

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuplugin.model.driver_root import DriverRoot, Extra, Library, Node

BIND: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")
STAND_IN: Final = ("rw", "nosuid", "rbind", "rprivate")
SHARED: Final = ("rw", "nosuid", "nodev", "rbind", "rprivate")
MPS_PIPES: Final = "/tmp/nvidia-mps"  # noqa: S108 - where CUDA looks when nothing else is said


def edits(
    nodes: Iterable[Node],
    env: tuple[str, ...] = (),
    mounts: tuple[Mount, ...] = (),
    hooks: tuple[Hook, ...] = (),
) -> ContainerEdits:
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
        hooks=hooks,
    )


def of_extra(found: Extra) -> ContainerEdits:
    """Give what is there of something beside the GPUs, such as a NIC's nodes or an IMEX channel."""
    mounts = tuple(Mount(host_path=file.host, container_path=file.path, options=BIND) for file in found.files)
    return edits(found.nodes, mounts=mounts)


def mps(pipes: str, shared_memory: str) -> ContainerEdits:
    """Let a container be a client of an MPS control daemon: its folder of pipes, and the shared memory it must share.

    Both are the host's paths of folders; in the container they are where CUDA looks.
    """
    return ContainerEdits(
        env=(f"CUDA_MPS_PIPE_DIRECTORY={MPS_PIPES}",),
        mounts=(
            Mount(host_path=pipes, container_path=MPS_PIPES, options=SHARED),
            Mount(host_path=shared_memory, container_path="/dev/shm", options=SHARED),  # noqa: S108 - as above
        ),
    )


def merged(parts: Iterable[ContainerEdits]) -> ContainerEdits:
    """Put edits together. What two of them bring to the same place in the container is brought once, by the first."""
    env: dict[str, str] = {}
    nodes: dict[str, DeviceNode] = {}
    mounts: dict[str, Mount] = {}
    hooks: list[Hook] = []
    for part in parts:
        for variable in part.env:
            env.setdefault(variable.partition("=")[0], variable)
        for node in part.device_nodes:
            nodes.setdefault(node.path, node)
        for mount in part.mounts:
            mounts.setdefault(mount.container_path, mount)
        hooks += part.hooks
    return ContainerEdits(
        env=tuple(env.values()),
        device_nodes=tuple(nodes.values()),
        mounts=tuple(mounts.values()),
        hooks=tuple(hooks),
    )


def driver_files(root: DriverRoot) -> tuple[Mount, ...]:
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
