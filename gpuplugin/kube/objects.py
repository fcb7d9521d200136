"""The objects of the Kubernetes API that we read or write, as frozen values; the API's `nodeName` is `node_name` here.

Only the fields we know are here: what a newer server adds is left aside when read, so these are never written back
over an object that others have a part in. A list that is empty and one that is absent are the same.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, field


class Object(Struct, frozen=True, omit_defaults=True, kw_only=True, rename="camel"):
    """Base of all below: absent fields have their default, and defaults are not written."""


class OwnerReference(Object, frozen=True):
    """Whose end is also this object's end."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None


class Meta(Object, frozen=True):
    """ObjectMeta. `resource_version` in a write makes it fail where the object has changed since."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()


# -- ResourceSlice ----------------------------------------------------------


class Attribute(Object, frozen=True):
    """A DeviceAttribute: exactly one is set. `version` is a semantic version (2.0.0)."""

    string: str | None = None
    number: int | None = field(default=None, name="int")
    flag: bool | None = field(default=None, name="bool")
    version: str | None = None
    strings: tuple[str, ...] | None = None
    numbers: tuple[int, ...] | None = field(default=None, name="ints")


class Capacity(Object, frozen=True):
    """A DeviceCapacity; `value` is a quantity in its canonical form (``81559Mi``)."""

    value: str


Effect = Literal["None", "NoSchedule", "NoExecute"]


class Taint(Object, frozen=True):
    """A DeviceTaint. `time_added` is set by the server where it is not given."""

    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class Counter(Object, frozen=True):
    """An amount of a shared counter."""

    value: str


class CounterSet(Object, frozen=True):
    """Counters that devices of the pool draw on."""

    name: str
    counters: dict[str, Counter]


class CounterUse(Object, frozen=True):
    """A DeviceCounterConsumption: what a device draws of one counter set."""

    counter_set: str
    counters: dict[str, Counter]


class Device(Object, frozen=True):
    """A device in a slice."""

    name: str
    attributes: dict[str, Attribute] = field(default_factory=dict)
    capacity: dict[str, Capacity] = field(default_factory=dict)
    consumes_counters: tuple[CounterUse, ...] = ()
    taints: tuple[Taint, ...] = ()
    node_name: str | None = None
    all_nodes: bool | None = None
    binds_to_node: bool | None = None
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: bool | None = None


class Pool(Object, frozen=True):
    """ResourcePool: only the slices of the highest generation count, and only when all of them are there."""

    name: str
    generation: int
    resource_slice_count: int


class SliceSpec(Object, frozen=True):
    """ResourceSliceSpec, of a slice that belongs to one node."""

    driver: str
    pool: Pool
    node_name: str | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


class ResourceSlice(Object, frozen=True):
    """resource.k8s.io/v1."""

    metadata: Meta
    spec: SliceSpec


# -- ResourceClaim ----------------------------------------------------------


class OpaqueConfiguration(Object, frozen=True):
    """OpaqueDeviceConfiguration: `parameters` is JSON as it came, for the driver to decode strictly."""

    driver: str
    parameters: Raw


class AllocationConfiguration(Object, frozen=True):
    """DeviceAllocationConfiguration. requests: those it is for, empty for all · source: FromClass or FromClaim."""

    source: str
    requests: tuple[str, ...] = ()
    opaque: OpaqueConfiguration | None = None


class AllocatedDevice(Object, frozen=True):
    """DeviceRequestAllocationResult. `request` may be ``request/subrequest``."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool = False
    share_id: str | None = field(default=None, name="shareID")
    consumed_capacity: dict[str, str] = field(default_factory=dict)


class DeviceAllocation(Object, frozen=True):
    """DeviceAllocationResult."""

    results: tuple[AllocatedDevice, ...] = ()
    config: tuple[AllocationConfiguration, ...] = ()


class Allocation(Object, frozen=True):
    """AllocationResult."""

    devices: DeviceAllocation = DeviceAllocation()
    allocation_timestamp: str | None = None


class ConsumerReference(Object, frozen=True):
    """Who the claim is reserved for: a pod."""

    resource: str
    name: str
    uid: str
    api_group: str = ""


class Condition(Object, frozen=True):
    """metav1.Condition."""

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: str
    observed_generation: int | None = None


class AllocatedDeviceStatus(Object, frozen=True):
    """What a driver says of a device that it has prepared; `data` is any JSON object, up to 10 KiB.

    conditions: the server says null where there are none, and does so here alone.
    """

    driver: str
    pool: str
    device: str
    share_id: str | None = field(default=None, name="shareID")
    conditions: tuple[Condition, ...] | None = None
    data: Any = UNSET


class ClaimStatus(Object, frozen=True):
    """ResourceClaimStatus."""

    allocation: Allocation | None = None
    devices: tuple[AllocatedDeviceStatus, ...] = ()
    reserved_for: tuple[ConsumerReference, ...] = ()


class ResourceClaim(Object, frozen=True):
    """resource.k8s.io/v1, without its spec: what was asked for is the scheduler's concern."""

    metadata: Meta
    status: ClaimStatus = ClaimStatus()


# -- Node -------------------------------------------------------------------


class NodeTaint(Object, frozen=True):
    """A Taint of a node."""

    key: str
    effect: str
    value: str = ""


class NodeSpec(Object, frozen=True):
    """What we read of a NodeSpec."""

    taints: tuple[NodeTaint, ...] = ()
    unschedulable: bool = False


class NodeCondition(Object, frozen=True):
    """A NodeCondition."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class NodeStatus(Object, frozen=True):
    """What we read of a NodeStatus. allocatable: quantities by resource."""

    allocatable: dict[str, str] = field(default_factory=dict)
    conditions: tuple[NodeCondition, ...] = ()


class Node(Object, frozen=True):
    """v1."""

    metadata: Meta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


# -- Pod --------------------------------------------------------------------


class Pod(Object, frozen=True):
    """v1, as it came: read where somebody asks about a pod, and never written."""

    metadata: Meta
    spec: Any = UNSET
    status: Any = UNSET


# -- Event ------------------------------------------------------------------


class ObjectReference(Object, frozen=True):
    """What an Event is about."""

    kind: str
    name: str
    uid: str = ""
    api_version: str = ""
    namespace: str = ""


class EventSource(Object, frozen=True):
    """Who wrote an Event."""

    component: str
    host: str = ""


class Event(Object, frozen=True):
    """v1. type: Normal or Warning · times: RFC 3339."""

    metadata: Meta
    involved_object: ObjectReference
    type: str
    reason: str
    message: str
    source: EventSource
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    count: int = 0


# -- lists, errors and watches ----------------------------------------------


class ListMeta(Object, frozen=True):
    """`continue_` is the way to the next page, empty on the last."""

    resource_version: str = ""
    continue_: str = field(default="", name="continue")


class Status(Object, frozen=True):
    """What the API server says instead of an answer."""

    code: int = 0
    reason: str = ""
    message: str = ""


class WatchEvent(Object, frozen=True):
    """A line of a watch. `object` is of the kind watched, or a Status where `type` is ERROR."""

    type: str
    object: Raw
