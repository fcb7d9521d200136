"""Claims as the API server would give them, and a node to prepare them on; for the tests of dra and of crashes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

from dra.checkpoint import Checkpoint, Record
from dra.claim import ClaimName
from dra.devices import NodeDevice, NodeDevices
from dra.prepare import Preparing, Surroundings
from gpuplugin.errors import KubeNotFound, KubeUnavailable
from gpuplugin.kube.objects import (
    AllocatedDevice,
    Allocation,
    AllocationConfiguration,
    ClaimStatus,
    ConsumerReference,
    DeviceAllocation,
    Meta,
    OwnerReference,
    ResourceClaim,
)
from gpuplugin.model.ids import GpuUuid, PciAddress
from gpuplugin.plan.ledger import Ledger

DRIVER, POOL = "gpu.nvidia.com", "node-1"
KIND = "gpuplugin.io/gpu"


def gpu(index: int) -> GpuUuid:
    return GpuUuid(f"GPU-0000000{index}-0000-0000-0000-000000000000")


def device(index: int, refusal: str = "") -> NodeDevice:
    uuid = gpu(index)
    pci = PciAddress(f"0000:{index:02x}:00.0")
    return NodeDevice(f"gpu-{index}", uuid, (f"{KIND}={uuid}",), pci, None, "island-0", refusal)


def claim(
    name: str,
    *devices: int,
    uid: str = "",
    pod: str = "pod",
    admin: bool = False,
    pool: str = POOL,
    driver: str = DRIVER,
    request: str = "gpus",
    config: tuple[AllocationConfiguration, ...] = (),
    shares: tuple[str | None, ...] = (),
    owner: str = "",
) -> ResourceClaim:
    """A claim allocated those GPUs, reserved for a pod; its UID is ``uid-<name>`` unless given.

    owner: the kind of what it was made for; people have made it where there is none.
    """
    results = tuple(
        AllocatedDevice(
            request=request,
            driver=driver,
            pool=pool,
            device=f"gpu-{index}",
            admin_access=admin,
            share_id=shares[place] if shares else None,
        )
        for place, index in enumerate(devices)
    )
    status = ClaimStatus(
        allocation=Allocation(devices=DeviceAllocation(results=results, config=config)),
        reserved_for=(ConsumerReference(resource="pods", name=pod, uid=f"uid-{pod}"),),
    )
    owners = (OwnerReference("v1", owner, pod, f"uid-{pod}", controller=True),) if owner else ()
    meta = Meta(name=name, namespace="team", uid=uid or f"uid-{name}", owner_references=owners)
    return ResourceClaim(metadata=meta, status=status)


def named(of: ResourceClaim) -> ClaimName:
    return ClaimName(of.metadata.namespace, of.metadata.name, of.metadata.uid)


class ApiServer:
    """Claims by name; `away` makes it unreachable."""

    def __init__(self, *claims: ResourceClaim) -> None:
        self.objects = {(one.metadata.namespace, one.metadata.name): one for one in claims}
        self.away = False
        self.asked = 0

    def put(self, *claims: ResourceClaim) -> None:
        self.objects |= {(one.metadata.namespace, one.metadata.name): one for one in claims}

    def drop(self, one: ResourceClaim) -> None:
        self.objects.pop((one.metadata.namespace, one.metadata.name), None)

    async def claim(self, namespace: str, name: str, *, patience: float | None = None) -> ResourceClaim:
        del patience
        self._answer("get", name)
        try:
            return self.objects[namespace, name]
        except KeyError:
            raise KubeNotFound("get", "resourceclaims.resource.k8s.io", name, "not found") from None

    async def claims(self) -> tuple[ResourceClaim, ...]:
        self._answer("list", "")
        return tuple(self.objects.values())

    def _answer(self, verb: str, name: str) -> None:
        self.asked += 1
        if self.away:
            raise KubeUnavailable(verb, "resourceclaims.resource.k8s.io", name, "connection refused")


async def _at_once() -> None:
    """All records are there."""


async def inline(call: Callable[[], Any]) -> Any:
    """Blocking calls, made on the spot."""
    return call()


class Node:
    """One instance of the daemon's part; `again()` is the next one after it, on the same folder."""

    def __init__(
        self,
        folder: Path,
        api: ApiServer,
        blocking: Callable[[Callable[[], Any]], Awaitable[Any]] = inline,
        effects: Any = None,
        complete: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.folder, self.api, self.effects = folder, api, effects
        self.devices = NodeDevices({f"gpu-{index}": device(index) for index in range(8)})
        self.held = Ledger()
        self.pods_here: set[str] | None = None
        """UIDs of pods on the node; None: all that anybody asks for."""
        self.checkpoint = Checkpoint(folder)
        self.checkpoint.load()
        around = Surroundings(lambda: self.devices, lambda: self.held, self._in_use, complete or _at_once)
        self.preparing = Preparing(DRIVER, POOL, api, self.checkpoint, blocking, around, effects)

    def _in_use(self, record: Record, newcomers: Collection[str]) -> str:
        """By the record alone; what folders of other pods tell is in test_in_use."""
        del newcomers
        here = self.pods_here is None or any(pod.uid in self.pods_here for pod in record.pods)
        return "its pods are here" if here else ""

    def again(self, blocking: Callable[[Callable[[], Any]], Awaitable[Any]] = inline) -> Node:
        node = Node(self.folder, self.api, blocking, self.effects)
        node.devices, node.held, node.pods_here = self.devices, self.held, self.pods_here
        return node

    async def prepare(self, one: ResourceClaim) -> Record:
        return await self.preparing.prepare(named(one))

    async def unprepare(self, one: ResourceClaim) -> bool:
        return await self.preparing.unprepare(one.metadata.uid)

    def records(self) -> dict[str, Record]:
        self.checkpoint.load()
        return dict(self.checkpoint.records)

    def given(self) -> dict[str, set[str]]:
        """Devices by claim name, as recorded."""
        return {record.name: {one.device for one in record.devices} for record in self.records().values()}
