"""One snapshot of a node as families of series: pure, from facts that were gathered before.

Each device has one series of each kind, also where several pods share it, so that its power is not counted twice; who
has it is told by an allocation-info series to join on. What all who have a device have in common also stands in the
labels of its own series, as dashboards for dcgm-exporter expect it: with one pod on it, that pod.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpuplugin.metrics import registry
from gpuplugin.metrics.exposition import labels
from gpuplugin.metrics.series import Family, Sample, Series
from gpuplugin.model.telemetry import NOTHING
from gpuplugin.plan.faults import Surface, cells

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpuplugin.model.health import DeviceHealth
    from gpuplugin.model.ids import GpuUuid, PciAddress
    from gpuplugin.model.inventory import Gpu, Inventory
    from gpuplugin.model.telemetry import Quantity, Telemetry, Values
    from gpuplugin.plan.faults import Told
    from gpuplugin.topology.numa import Alignment

LONGEST_REASON = 160
"""Characters of a reason that fit into a label."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A device that a container has. instance: of the GPU, None for all of it · claim, …: empty without one."""

    gpu: GpuUuid
    instance: int | None
    resource: str
    namespace: str
    pod: str
    container: str
    claim_namespace: str = ""
    claim: str = ""
    device: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """In the order of `registry.HOLDER_LABELS`."""
        return (self.namespace, self.pod, self.container, self.claim_namespace, self.claim, self.device)


@dataclass(frozen=True, slots=True)
class Observed:
    """All that a snapshot is made of.

    telemetry: of the GPUs that could be measured · holdings: what kubelet said last; pods_known: whether it does now ·
    health: of each device that is handed out, by GPU and instance ·
    faults: of all GPUs · resources: name, usable and withdrawn devices ·
    free: by who hands them out · last_xids: by GPU and instance · at: seconds since the epoch · took: seconds.
    """

    inventory: Inventory
    hostname: str = ""
    telemetry: Mapping[GpuUuid, Telemetry] = field(default_factory=lambda: MappingProxyType({}))
    holdings: tuple[Holding, ...] = ()
    pods_known: bool = True
    health: Mapping[tuple[GpuUuid, int | None], DeviceHealth] = field(default_factory=lambda: MappingProxyType({}))
    faults: tuple[Told, ...] = ()
    resources: tuple[tuple[str, int, int], ...] = ()
    free: Mapping[str, Alignment] = field(default_factory=lambda: MappingProxyType({}))
    last_xids: Mapping[tuple[GpuUuid, int | None], int] = field(default_factory=lambda: MappingProxyType({}))
    at: float = 0.0
    took: float = 0.0


@dataclass(frozen=True, slots=True)
class _Device:
    """A GPU or a GPU instance, with its labels rendered. key: those that tell devices apart."""

    gpu: GpuUuid
    instance: int | None
    key: Mapping[str, str]
    labels: str
    key_labels: str
    values: Values


def families(observed: Observed, device_series: Sequence[Series] = registry.DEVICE_SERIES) -> Iterator[Family]:
    """Give all families but those of `instruments`. device_series: those of dcgm-exporter's that are wanted."""
    holders = _by_device(observed.holdings)
    devices = [
        device
        for gpu in observed.inventory.gpus
        for device in _devices(observed, gpu, observed.telemetry.get(gpu.uuid), holders)
    ]
    for series in device_series:
        if series.quantity is None:
            last = observed.last_xids
            yield Family(series, [Sample(one.labels, last.get((one.gpu, one.instance), 0)) for one in devices])
    measured = _by_quantity(devices)
    for series in (*device_series, *registry.NVLINK_SERIES):
        if series.quantity is not None:
            yield _measured(series, measured.get(series.quantity, ()))
    keys = {(device.gpu, device.instance): device.key for device in devices}
    yield _allocations(observed.holdings, keys)
    yield from _health(observed, keys)
    yield from _node(observed)


def _devices(
    observed: Observed, gpu: Gpu, telemetry: Telemetry | None, holders: Mapping[object, Sequence[Holding]]
) -> Iterator[_Device]:
    common = {
        "gpu": f"{gpu.index}",
        "UUID": gpu.uuid,
        "pci_bus_id": _bus_id(gpu.pci),
        "device": "" if gpu.minor is None else f"nvidia{gpu.minor}",
        "modelName": gpu.model,
    }
    rest = {"Hostname": observed.hostname, "DCGM_FI_DRIVER_VERSION": observed.inventory.driver.version}
    for instance, profile in _instances(gpu):
        its = {} if instance is None else {"GPU_I_PROFILE": profile, "GPU_I_ID": f"{instance}"}
        key = {"gpu": common["gpu"], "UUID": gpu.uuid, **its}
        held = _in_common(holders.get((gpu.uuid, instance), ()))
        values: Values = NOTHING
        if telemetry is not None:
            values = telemetry.whole if instance is None else telemetry.instances.get(instance, NOTHING)
        yield _Device(gpu.uuid, instance, key, labels({**common, **its, **rest, **held}), labels(key), values)


def _instances(gpu: Gpu) -> Iterator[tuple[int | None, str]]:
    """The GPU itself, and each GPU instance once, however many compute instances it is split into."""
    yield None, ""
    seen = set()
    for mig in gpu.mig_devices:
        if mig.gpu_instance not in seen:
            seen.add(mig.gpu_instance)
            yield mig.gpu_instance, mig.profile[mig.profile.find("c.") + 2 :] if "c." in mig.profile else mig.profile


def _bus_id(pci: PciAddress) -> str:
    """As NVML writes it."""
    domain, _, rest = pci.partition(":")
    return f"{domain:0>8}:{rest}".upper()


def _by_device(holdings: Iterable[Holding]) -> dict[object, list[Holding]]:
    found: dict[object, list[Holding]] = {}
    for holding in holdings:
        found.setdefault((holding.gpu, holding.instance), []).append(holding)
    return found


def _in_common(holdings: Sequence[Holding]) -> dict[str, str]:
    """The labels of the pod where all are of one pod, of the container and the claim likewise."""
    if not holdings:
        return {}
    first = holdings[0]
    one_pod = all((one.namespace, one.pod) == (first.namespace, first.pod) for one in holdings)
    one_container = one_pod and all(one.container == first.container for one in holdings)
    one_claim = all(one.labels[3:] == first.labels[3:] for one in holdings)
    agreed = (one_pod, one_pod, one_container, one_claim, one_claim, one_claim)
    return {name: value for name, value, same in zip(registry.HOLDER_LABELS, first.labels, agreed, strict=True) if same}


def _by_quantity(devices: Iterable[_Device]) -> Mapping[Quantity, list[tuple[_Device, float]]]:
    found: dict[Quantity, list[tuple[_Device, float]]] = {}
    for device in devices:
        for quantity, value in device.values.items():
            found.setdefault(quantity, []).append((device, value))
    return found


def _measured(series: Series, found: Iterable[tuple[_Device, float]]) -> Family:
    scale = series.scale
    if series.labels == registry.GPU_LABELS:
        return Family(series, [Sample(device.key_labels, value * scale) for device, value in found])
    return Family(series, [Sample(device.labels, value * scale) for device, value in found])


def _allocations(holdings: Iterable[Holding], keys: Mapping[tuple[GpuUuid, int | None], Mapping[str, str]]) -> Family:
    """One for each container and device, though it may have several replicas of it."""
    shown = dict.fromkeys(
        labels({**key, "resource": one.resource, **dict(zip(registry.HOLDER_LABELS, one.labels, strict=True))})
        for one in holdings
        if (key := keys.get((one.gpu, one.instance))) is not None
    )
    return Family(registry.ALLOCATION_INFO, [Sample(text, 1) for text in shown])


def _health(observed: Observed, keys: Mapping[tuple[GpuUuid, int | None], Mapping[str, str]]) -> Iterator[Family]:
    known = [(keys[where], health) for where, health in observed.health.items() if where in keys]
    yield Family(registry.DEVICE_HEALTHY, [Sample(labels(key), int(health.usable)) for key, health in known])
    yield Family(
        registry.DEVICE_FAULT,
        [
            Sample(labels({**key, "state": health.level.value, "reason": health.reason[:LONGEST_REASON]}), 1)
            for key, health in known
            if not health.usable
        ],
    )
    yield Family(registry.GPU_FAULT, [Sample(text, 1) for text in sorted(_faults(observed))])


def _faults(observed: Observed) -> set[str]:
    """Give each fault's labels, once where several XIDs, or several instances of a GPU, have the same."""
    index = {gpu.uuid: f"{gpu.index}" for gpu in observed.inventory.gpus}
    return {
        labels(
            {
                "gpu": index.get(told.gpu, "") if told.gpu else "",
                "UUID": told.gpu or "",
                "fault": cells(told)[Surface.METRIC],
                "policy": told.policy.value,
            }
        )
        for told in observed.faults
        if cells(told)
    }


def _node(observed: Observed) -> Iterator[Family]:
    yield Family(
        registry.RESOURCE_DEVICES,
        [
            Sample(labels({"resource": name, "state": state}), count)
            for name, usable, withdrawn in observed.resources
            for state, count in (("usable", usable), ("withdrawn", withdrawn))
        ],
    )
    yield Family(
        registry.FREE_GPUS,
        [
            Sample(labels({"handed_out_by": by, "numa_node": f"{node}"}), count)
            for by, alignment in observed.free.items()
            for node, count in (*alignment.free, *((("unknown", alignment.unknown),) if alignment.unknown else ()))
        ],
    )
    yield Family(
        registry.LARGEST_ALIGNED,
        [Sample(labels({"handed_out_by": by}), alignment.largest) for by, alignment in observed.free.items()],
    )
    measured = len(observed.telemetry)
    yield Family(
        registry.GPUS_MEASURED,
        [
            Sample(labels({"measured": "yes"}), measured),
            Sample(labels({"measured": "no"}), len(observed.inventory.gpus) - measured),
        ],
    )
    yield Family(registry.PODS_KNOWN, [Sample("", int(observed.pods_known))])
    yield Family(registry.COLLECTED, [Sample("", observed.at)])
    yield Family(registry.COLLECTION, [Sample("", observed.took)])
