"""A stand-in for kubelet's device manager, in this process: registration, what it makes of a plugin, pod admission.

It does what kubelet 1.37 does (pkg/kubelet/cm/devicemanager), so that the demo, unit tests and benches see a plugin
from the other side without a cluster, and it can be made to misbehave in ways that a real kubelet cannot be asked for.
Where kubelet picks from an unordered set, the stand-in takes the lowest ids. `trace` holds every call as plain data,
to be compared with what a real kubelet was seen to call.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from gpuplugin.pb import deviceplugin_v1beta1_pb2 as api
from gpuplugin.pb import deviceplugin_v1beta1_pb2_grpc as rpc
from gpuplugin.sim.dialled_plugin import Call, DialledPlugin, Refused
from gpuplugin.sim.late_socket import LateSocket
from gpuplugin.topology.affinity import Nodes, Policy, align, decide

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path
    from typing import Self

API_VERSION = "v1beta1"
TOPOLOGY_AFFINITY_ERROR = "TopologyAffinityError"
UNEXPECTED_ADMISSION_ERROR = "UnexpectedAdmissionError"


@dataclass(frozen=True, slots=True)
class ListedDevice:
    """A device as the newest ListAndWatch message has it. nodes: empty where the message has no TopologyInfo."""

    id: str
    healthy: bool
    nodes: Nodes


@dataclass(frozen=True, slots=True)
class Admission:
    """What became of a pod with one container that asks for `count` of `resource`.

    ids: sorted, empty when refused · affinity: the NUMA nodes it was held to, None where it was left free · response:
    the plugin's answer for the container · reason, message: of the pod's status when refused, word for word.
    """

    pod: str
    resource: str
    count: int
    ids: tuple[str, ...] = ()
    affinity: tuple[int, ...] | None = None
    response: api.ContainerAllocateResponse | None = None
    reason: str = ""
    message: str = ""

    @property
    def admitted(self) -> bool:
        """Whether the container would start."""
        return not self.reason

    @property
    def refusal(self) -> str:
        """``Reason: message``, as people read it in the pod's events; empty when admitted."""
        return f"{self.reason}: {self.message}" if self.reason else ""


@dataclass(slots=True)
class _Resource:
    """What is known of a resource. endpoints: by socket; the newest one is asked."""

    devices: dict[str, ListedDevice] = field(default_factory=dict)
    endpoints: dict[Path, DialledPlugin] = field(default_factory=dict)
    primary: DialledPlugin | None = None


class StandInKubelet:
    """Serves ``folder/kubelet.sock``. All of it belongs to one event loop; use it as an async context.

    folder: stands for /var/lib/kubelet/device-plugins · policy: Topology Manager's, container scope · numa_nodes: the
    machine's; None takes those that the devices name · accept_after: seconds during which the socket is there and
    refuses connections. `refuse` may be set to a text at any time: every registration then fails with it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        policy: Policy = Policy.SINGLE_NUMA_NODE,
        numa_nodes: Iterable[int] | None = None,
        accept_after: float = 0.0,
    ) -> None:
        self.folder, self.policy, self.accept_after = folder, policy, accept_after
        self.refuse: str | None = None
        self.trace: list[Call] = []
        self._numa_nodes = None if numa_nodes is None else frozenset(numa_nodes)
        self._resources: dict[str, _Resource] = {}
        self._clients: dict[tuple[str, Path], DialledPlugin] = {}
        self._followers: dict[DialledPlugin, asyncio.Task[None]] = {}
        self._held: dict[str, dict[str, tuple[str, ...]]] = {}
        self._changed = asyncio.Event()
        self._admitting = asyncio.Lock()
        self._server: grpc.aio.Server | None = None
        self._gate: LateSocket | None = None

    @property
    def socket(self) -> Path:
        """Where plugins register."""
        return self.folder / "kubelet.sock"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Remove every socket in the folder, as kubelet does when it starts, and serve."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            if path.is_socket():
                path.unlink()
        server = grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(_Registration(self), server)
        if self.accept_after:
            behind = self.folder / ".kubelet.sock"
            server.add_insecure_port(f"unix:{behind}")
            self._gate = await LateSocket.open(self.socket, behind, self.accept_after)
        else:
            server.add_insecure_port(f"unix:{self.socket}")
        self._server = server
        await server.start()

    async def stop(self) -> None:
        """Let go of every plugin and stop serving. What pods hold is kept, as in kubelet's checkpoint."""
        for plugin in list(self._followers):
            await self._leave(plugin)
        if self._gate is not None:
            await self._gate.close()
            self._gate = None
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        self.socket.unlink(missing_ok=True)
        self._clients.clear()
        self._resources = {name: _Resource() for name in self._resources}
        self._notify()

    async def restart(self) -> None:
        """Stop, and start anew with nothing but what pods hold: plugins must register again."""
        await self.stop()
        await self.start()

    async def drop_streams(self, resource: str | None = None) -> None:
        """Break the ListAndWatch streams of one resource or of all: kubelet takes that for the plugin's end."""
        for plugin in [plugin for plugin in self._followers if resource in {None, plugin.resource}]:
            await self._leave(plugin)
            self._ended(plugin)

    def resources(self) -> tuple[str, ...]:
        """Give the names registered since the first start, also those whose plugin has gone."""
        return tuple(sorted(self._resources))

    def devices(self, resource: str) -> tuple[ListedDevice, ...]:
        """Give the devices as last listed, by id."""
        known = self._resources.get(resource, _Resource()).devices
        return tuple(known[device] for device in sorted(known))

    def capacity(self, resource: str) -> int:
        """Count the devices that the node's status would show as capacity."""
        return len(self.devices(resource))

    def allocatable(self, resource: str) -> int:
        """Count the healthy ones, which the node's status would show as allocatable."""
        return sum(device.healthy for device in self.devices(resource))

    def watches(self, resource: str) -> bool:
        """Whether a plugin's ListAndWatch is being followed."""
        return any(plugin.resource == resource for plugin in self._followers)

    def held(self, resource: str) -> dict[str, tuple[str, ...]]:
        """Give each pod's devices."""
        return {pod: held[resource] for pod, held in self._held.items() if resource in held}

    def free(self, resource: str) -> frozenset[str]:
        """Give the healthy devices that no pod holds."""
        used = {device for ids in self.held(resource).values() for device in ids}
        return frozenset(device.id for device in self.devices(resource) if device.healthy) - used

    def trace_lines(self) -> str:
        """Give the trace as JSON lines."""
        return "".join(json.dumps(call, sort_keys=True) + "\n" for call in self.trace)

    async def until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until a condition on this kubelet holds. Raises TimeoutError that says `what` did not come."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(f"{what}: not within {seconds:g} s") from None

    async def admit(self, pod: str, resource: str, count: int) -> Admission:
        """Admit a new pod with one container, or say why not. Pods are admitted one after another, as by kubelet.

        Raises ValueError when a pod of that name already holds some of the resource.
        """
        async with self._admitting:
            if resource in self._held.get(pod, {}):
                raise ValueError(f"pod {pod} already holds {resource}: release it first or take another name")
            if resource not in self._resources:
                message = f"Node didn't have enough resource: {resource}, requested: {count}, used: 0, capacity: 0"
                return Admission(pod, resource, count, reason=f"OutOf{resource}", message=message)
            nodes = {device.id: device.nodes for device in self.devices(resource)}
            machine = self._numa_nodes if self._numa_nodes is not None else frozenset().union(*nodes.values())
            decision = decide(self.policy, machine, nodes, self.free(resource), count)
            affinity = None if decision.affinity is None else tuple(sorted(decision.affinity))
            refused = Admission(pod, resource, count, affinity=affinity)
            if not decision.admitted:
                message = "Resources cannot be allocated with Topology locality"
                return replace(refused, reason=TOPOLOGY_AFFINITY_ERROR, message=message)
            try:
                ids = tuple(sorted(await self._pick(resource, count, decision.affinity, nodes)))
                response = await self._plugin(resource).allocate(ids)
            except Refused as error:
                message = f"Allocate failed due to {error}, which is unexpected"
                return replace(refused, reason=UNEXPECTED_ADMISSION_ERROR, message=message)
            self._held.setdefault(pod, {})[resource] = ids
            self._notify()
            return Admission(pod, resource, count, ids, affinity, response)

    def release(self, pod: str) -> None:
        """End the pod: what it holds is free again. Ending one that holds nothing is no error."""
        self._held.pop(pod, None)
        self._notify()

    async def _pick(
        self, resource: str, count: int, affinity: Nodes | None, nodes: dict[str, Nodes]
    ) -> Collection[str]:
        if self.allocatable(resource) == 0:
            raise Refused(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        free = self.free(resource)
        if len(free) < count:
            raise Refused(
                f"requested number of devices unavailable for {resource}. Requested: {count}, Available: {len(free)}"
            )
        aligned = align(affinity, nodes, free)
        taken: list[str] = []

        def take(ids: Iterable[str]) -> bool:
            wanted = [device for device in sorted(ids) if device not in taken]
            taken.extend(wanted[: count - len(taken)])
            return len(taken) == count

        if count < len(aligned.on):
            preferred = await self._plugin(resource).prefer(aligned.on, (), count)
            if not take(preferred & aligned.on):
                take(aligned.on)
        elif not take(aligned.on):
            preferred = await self._plugin(resource).prefer(free, tuple(taken), count)
            if not take(preferred & free) and not take(aligned.off):
                take(aligned.unknown)
        return taken

    def _plugin(self, resource: str) -> DialledPlugin:
        plugin = self._resources[resource].primary
        if plugin is None:
            raise Refused(f"endpoint {resource} has been stopped")
        return plugin

    async def _register(self, request: api.RegisterRequest) -> str:
        """Take a registration; returns why not, or an empty text."""
        call: Call = {"call": "Register", "resource": request.resource_name}
        self._note(call)
        error = self.refuse or ""
        if not error and request.version != API_VERSION:
            error = f"requested API version {request.version!r} is not supported by kubelet. Supported: [{API_VERSION}]"
        error = error or await self._connect(request.resource_name, self.folder / request.endpoint)
        if error:
            call["error"] = error
        self._notify()
        return error

    async def _connect(self, resource: str, socket: Path) -> str:
        plugin = DialledPlugin(resource, socket, self._note)
        error = await plugin.dial()
        known = self._resources.setdefault(resource, _Resource()) if not error else _Resource()
        if socket in known.endpoints:
            # Kubelet forgets the plugin that it has by that name, too: when that one's stream ends, nothing is
            # noticed, and the name stays taken until kubelet restarts.
            self._clients.pop((resource, socket), None)
            error = f"device plugin already connected: {socket}"
        if error:
            await plugin.close()
            return error
        known.endpoints[socket] = known.primary = plugin
        self._clients[resource, socket] = plugin
        self._followers[plugin] = asyncio.create_task(self._follow(plugin), name=f"follow {resource}")
        return ""

    async def _follow(self, plugin: DialledPlugin) -> None:
        async for message in plugin.lists():
            self._listed(plugin.resource, message)
        self._followers.pop(plugin, None)
        await plugin.close()
        self._ended(plugin)

    def _listed(self, resource: str, message: api.ListAndWatchResponse) -> None:
        listed = [
            ListedDevice(device.ID, device.health == "Healthy", frozenset(node.ID for node in device.topology.nodes))
            for device in message.devices
        ]
        self._resources[resource].devices = {device.id: device for device in listed}
        self._notify()

    def _ended(self, plugin: DialledPlugin) -> None:
        """A stream is over. With the resource's last plugin gone, all its devices are unhealthy."""
        if self._clients.get((plugin.resource, plugin.socket)) is plugin:
            del self._clients[plugin.resource, plugin.socket]
            known = self._resources[plugin.resource]
            del known.endpoints[plugin.socket]
            known.primary = next(reversed(known.endpoints.values()), None)
            if known.primary is None:
                known.devices = {
                    device.id: ListedDevice(device.id, healthy=False, nodes=device.nodes)
                    for device in known.devices.values()
                }
        self._notify()

    async def _leave(self, plugin: DialledPlugin) -> None:
        """Stop following, with no consequences yet."""
        task = self._followers.pop(plugin)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await plugin.close()

    def _note(self, call: Call) -> None:
        self.trace.append(call)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class _Registration(rpc.RegistrationServicer):
    """The service that plugins call."""

    def __init__(self, kubelet: StandInKubelet) -> None:
        self._kubelet = kubelet

    async def Register(self, request: api.RegisterRequest, context: Any) -> api.Empty:  # noqa: N802
        """Dial the plugin back before answering, as kubelet does."""
        error = await self._kubelet._register(request)  # noqa: SLF001
        if error:
            await context.abort(grpc.StatusCode.UNKNOWN, error)
        return api.Empty()
