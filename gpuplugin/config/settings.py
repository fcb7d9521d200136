"""The configuration as the program reads it: one frozen struct, with the reference device plugin's keys and defaults.

Keys in the file are camelCase as the reference spells them. What a key means is written in `table`, what a value must
look like in `rules`; here stand types, bounds and defaults. Not everything that can be said can be done yet:
`unsupported` refuses the rest.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct, field

from gpuplugin.config import rules
from gpuplugin.config.health import HealthChecks
from gpuplugin.model.ids import ResourceName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuplugin.model.inventory import Gpu

AbsolutePath = Annotated[str, rules.ABSOLUTE_PATH, Meta(pattern=r"^/")]
OptionalPath = Annotated[str, rules.OPTIONAL_PATH] | None
Text = Annotated[str, rules.TEXT, Meta(min_length=1)]
Name = Annotated[str, rules.RESOURCE_NAME, Meta(min_length=1)]
Xid = Annotated[int | str, rules.XID]
ForClaims = Annotated[str, rules.FOR_CLAIMS]
Excluded = Annotated[int | str, rules.EXCLUDED]

DeviceListStrategy = Literal["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]

GPU_RESOURCE = ResourceName("nvidia.com/gpu")
"""What a whole GPU is called unless `resources.gpus` says otherwise."""

MPS_ROOT = "/run/nvidia/mps"
"""The host's folder for MPS unless `flags.mpsRoot` says otherwise."""

_REPLICAS_MAX = 4096
"""More than any message to kubelet has room for on 16 GPUs; what has room exactly is for `crosschecks` to say."""


class _Section(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A mapping of the file."""


class PluginFlags(_Section, frozen=True):
    """`flags.plugin`: how devices reach containers."""

    pass_device_specs: bool = False
    device_list_strategy: Annotated[
        tuple[DeviceListStrategy, ...],
        Meta(min_length=1, extra={"single": True}),
    ] = ("cdi-cri",)
    device_id_strategy: Literal["uuid", "index"] = field(default="uuid", name="deviceIDStrategy")
    cdi_annotation_prefix: Text = "cdi.k8s.io/"
    nvidia_ctk_path: OptionalPath = field(default=None, name="nvidiaCTKPath")
    container_driver_root: AbsolutePath = "/driver-root"
    shared_devices_allocation_policy: Literal["distributed", "packed"] = "distributed"


class GfdFlags(_Section, frozen=True):
    """`flags.gfd`: node labels."""

    oneshot: bool = False
    no_timestamp: bool = False
    sleep_interval: Annotated[str | int, rules.DURATION] = "60s"
    output_file: str = "/etc/kubernetes/node-feature-discovery/features.d/gfd"
    machine_type_file: str = "/sys/class/dmi/id/product_name"


class Flags(_Section, frozen=True):
    """`flags`: what the reference also takes as command-line flags."""

    mig_strategy: Literal["none", "single", "mixed"] = "none"
    fail_on_init_error: bool = True
    mps_root: OptionalPath = None
    nvidia_driver_root: AbsolutePath = "/"
    nvidia_dev_root: OptionalPath = None
    gdrcopy_enabled: bool = False
    gds_enabled: bool = False
    mofed_enabled: bool = False
    use_node_feature_api: bool = field(default=True, name="useNodeFeatureAPI")
    device_discovery_strategy: Literal["auto", "nvml", "tegra", "vfio"] = "auto"
    plugin: PluginFlags = PluginFlags()
    gfd: GfdFlags = GfdFlags()

    @property
    def dev_root(self) -> Path:
        """Where the device nodes are: `nvidiaDevRoot`, or the driver root when that is not set."""
        return Path(self.nvidia_dev_root or self.nvidia_driver_root)

    @property
    def mps_folder(self) -> str:
        """The host's folder for MPS."""
        return self.mps_root or MPS_ROOT


def _matches(pattern: str, text: str) -> bool:
    """Whether all of the text matches; ``*`` stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


class GpuResource(_Section, frozen=True):
    """One renaming of whole GPUs: those whose model matches `pattern` (``*`` stands for anything) become `name`."""

    pattern: Text
    name: Name

    def matches(self, model: str) -> bool:
        """Whether a GPU of this model (``NVIDIA H100 80GB HBM3``) is meant."""
        return _matches(self.pattern, model)


class MigResource(_Section, frozen=True):
    """One renaming of MIG devices, by profile."""

    pattern: Text
    name: Name

    def matches(self, profile: str) -> bool:
        """Whether a MIG device of this profile (``1g.10gb+me``) is meant."""
        return _matches(self.pattern, profile)


class Resources(_Section, frozen=True):
    """`resources`: what devices are called. The first pattern that matches counts."""

    gpus: tuple[GpuResource, ...] = ()
    mig: tuple[MigResource, ...] = ()

    def gpu(self, model: str) -> ResourceName:
        """Return the resource that a whole GPU of this model is offered as."""
        return next((ResourceName(entry.name) for entry in self.gpus if entry.matches(model)), GPU_RESOURCE)

    def mig_device(self, profile: str) -> ResourceName | None:
        """Return the resource that MIG devices of this profile are renamed to; None where they are not."""
        return next((ResourceName(entry.name) for entry in self.mig if entry.matches(profile)), None)


class Devices(_Section, frozen=True):
    """`devices`: which GPUs are ours to offer."""

    exclude: tuple[Excluded, ...] = ()

    def excluding(self, gpu: Gpu) -> int | str | None:
        """Return the entry that leaves this GPU out, None where none does."""
        return next((entry for entry in self.exclude if _names(str(entry), gpu)), None)


def _names(entry: str, gpu: Gpu) -> bool:
    return entry in (f"{gpu.index}", gpu.uuid, gpu.pci) or _matches(entry, gpu.model)


class ReplicatedResource(_Section, frozen=True):
    """A resource of which each device is offered several times."""

    name: Name
    replicas: Annotated[int, Meta(ge=2, le=_REPLICAS_MAX)]
    rename: Name | None = None
    devices: Annotated[str | int | tuple[int | str, ...], rules.DEVICES] = "all"
    spread: Literal["preferred", "required"] = "preferred"


class TimeSlicing(_Section, frozen=True):
    """`sharing.timeSlicing`."""

    resources: Annotated[tuple[ReplicatedResource, ...], Meta(min_length=1)]
    rename_by_default: bool = False
    fail_requests_greater_than_one: bool = False


class Mps(_Section, frozen=True):
    """`sharing.mps`."""

    resources: Annotated[tuple[ReplicatedResource, ...], Meta(min_length=1)]
    rename_by_default: bool = False
    fail_requests_greater_than_one: bool = True
    default_active_thread_percentage: Annotated[int, Meta(ge=1, le=100)] | None = None
    default_pinned_device_memory_limit: Annotated[str | int, rules.MEMORY] | None = None

    @property
    def memory_limit(self) -> int | None:
        """`defaultPinnedDeviceMemoryLimit` in bytes."""
        limit = self.default_pinned_device_memory_limit
        return None if limit is None else rules.memory_bytes(limit)


class Sharing(_Section, frozen=True):
    """`sharing`: one device for several containers."""

    time_slicing: TimeSlicing | None = None
    mps: Mps | None = None


class Imex(_Section, frozen=True):
    """`imex`: channels for memory shared between nodes."""

    channel_ids: tuple[Annotated[int, Meta(ge=0, le=0)], ...] = field(default=(), name="channelIDs")
    required: bool = False


class Cdi(_Section, frozen=True):
    """`cdi`: what the reference takes as flags only, about the CDI specifications that it writes."""

    feature_flags: tuple[Text, ...] = ()
    disable_hooks: tuple[Text, ...] = ()
    remove_on_stop: bool = False


class Dra(_Section, frozen=True):
    """`dra`: GPUs that are handed out by claims (Dynamic Resource Allocation) and not by the device plugin."""

    gpus: Annotated[tuple[ForClaims, ...], Meta(extra={"single": True})] = ()

    def includes(self, gpu: Gpu) -> bool:
        """Return whether claims hand this GPU out."""
        return not gpu.only_for_display and any(_names(entry, gpu) for entry in self.gpus)

    def unused(self, gpus: Iterable[Gpu]) -> tuple[str, ...]:
        """Return the entries that name none of these GPUs; `*`, which is "all there are", is none of them."""
        return tuple(entry for entry in self.gpus if entry != "*" and not any(_names(entry, gpu) for gpu in gpus))


Policy = Literal["ignore", "warn", "unhealthy", "reset", "reboot"]
Withdrawing = Literal["unhealthy", "reset", "reboot"]


class HealthPolicies(_Section, frozen=True):
    """`health.policies`: what is made of each kind of fault.

    ignore: nothing · warn: told of, and the GPU stays in service · unhealthy: it leaves service · reset, reboot: it
    leaves service, and that is asked for. A GPU that cannot be talked to can only be withdrawn. xid: None: as the
    catalogue advises, for XIDs that take a GPU away at all.
    """

    xid: Policy | None = None
    lost: Withdrawing = "reset"
    hung: Withdrawing = "reboot"
    silent: Withdrawing = "unhealthy"
    unreadable: Withdrawing = "unhealthy"
    reset_wanted: Policy = "reset"
    reboot_wanted: Policy = "reboot"
    action_wanted: Policy = "unhealthy"
    ecc_uncorrectable: Policy = "warn"
    row_remap_pending: Policy = "warn"
    row_remap_failed: Policy = "reset"
    nvlink: Policy = "warn"
    fabric: Policy = "unhealthy"
    thermal: Policy = "warn"
    power_brake: Policy = "warn"


class Health(_Section, frozen=True):
    """`health`: when a GPU leaves service and when it comes back."""

    probe_seconds: Annotated[float, Meta(ge=0.1, le=3600)] = 2.0
    recovery_probes: Annotated[int, Meta(ge=1, le=1000)] = 3
    quiet_seconds: Annotated[float, Meta(ge=0, le=86400)] = 60.0
    disable: tuple[Xid, ...] = ()
    enable: tuple[Xid, ...] = ()
    policies: HealthPolicies = HealthPolicies()

    @property
    def checks(self) -> HealthChecks:
        """Which XIDs take a GPU out of service."""
        return HealthChecks.of(self.disable, self.enable)


class Metrics(_Section, frozen=True):
    """`metrics`: what Prometheus may scrape; read at the start only."""

    enabled: bool = False
    address: Annotated[str, rules.ADDRESS] = ":9400"
    interval_seconds: Annotated[float, Meta(ge=0.2, le=3600)] = 5.0
    collectors: OptionalPath = None
    certificate: OptionalPath = None
    key: OptionalPath = None
    users: OptionalPath = None


class NodeObject(_Section, frozen=True):
    """`node`: what is done with this node's object in the Kubernetes API; nothing unless it is asked for."""

    name: str = ""
    startup_taint: Annotated[str, rules.TAINT_KEY] = ""
    health_condition: bool = False


class Events(_Section, frozen=True):
    """`events`: Events of the Node for faults of GPUs; none unless they are asked for."""

    enabled: bool = False


class Labels(_Section, frozen=True):
    """`labels`: what the node says of its GPUs, and by whom it is written; nothing unless an owner is named."""

    owner: Literal["off", "node", "nfd-object", "nfd-file"] = "off"
    timestamp: bool = False
    namespace: str = ""
    check_seconds: Annotated[float, Meta(ge=1, le=86400)] = 900.0
    topology_object: bool = False

    @property
    def needs_api(self) -> bool:
        """Whether something is written to the Kubernetes API."""
        return self.owner in ("node", "nfd-object") or self.topology_object


class Profiles(_Section, frozen=True):
    """`profiles`: configuration files of which each node's label chooses one; read at the start only."""

    folder: OptionalPath = None
    label: Text = "nvidia.com/device-plugin.config"
    default: str = ""
    fallbacks: tuple[Literal["named", "single", "empty"], ...] = ("named", "single")


class Paths(_Section, frozen=True):
    """`paths`: where things are on this machine, as this process sees them."""

    kubelet: AbsolutePath = "/var/lib/kubelet"
    kubelet_socket: AbsolutePath | None = None
    cdi: AbsolutePath = "/var/run/cdi"
    sysfs: AbsolutePath = "/sys"
    proc: AbsolutePath = "/proc"
    status: OptionalPath = None
    state: AbsolutePath = "/var/lib/gpuplugin"
    kubeconfig: OptionalPath = None

    @property
    def registration_socket(self) -> Path:
        """Where kubelet takes registrations; our own sockets go into the same folder."""
        return Path(self.kubelet_socket or f"{self.kubelet}/device-plugins/kubelet.sock")

    @property
    def pod_resources_socket(self) -> Path:
        """Where kubelet tells what its pods have."""
        return Path(self.kubelet, "pod-resources", "kubelet.sock")

    @property
    def kubeconfig_file(self) -> Path | None:
        """How the API server is reached; None: by the service account of our pod."""
        return Path(self.kubeconfig) if self.kubeconfig else None


class Log(_Section, frozen=True):
    """`log`: what is written, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"


class Config(_Section, frozen=True):
    """All settings. ``Config()`` is what holds when nobody sets anything."""

    version: Literal["v1"] = "v1"
    flags: Flags = Flags()
    resources: Resources = Resources()
    sharing: Sharing = Sharing()
    devices: Devices = Devices()
    imex: Imex = Imex()
    cdi: Cdi = Cdi()
    dra: Dra = Dra()
    health: Health = Health()
    metrics: Metrics = Metrics()
    node: NodeObject = NodeObject()
    events: Events = Events()
    labels: Labels = Labels()
    profiles: Profiles = Profiles()
    rescan_seconds: Annotated[float, Meta(ge=1, le=86400)] = 60.0
    paths: Paths = Paths()
    log: Log = Log()
