"""Every setting once: its key in the file, its environment variables, its flags and what it means.

Help, schema and loading all read this table, so they cannot disagree. Names and meanings are the reference device
plugin's where it has the setting. Types, bounds and defaults are in `settings`.
"""

from __future__ import annotations

from gpuplugin.config.setting import Setting
from gpuplugin.config.table_reference import REFERENCE

CONFIG_FILE = Setting("", "The configuration file", ("CONFIG_FILE",), ("config-file",))
"""Not itself a setting of the file, but given like one."""


def _policies(**faults: str) -> tuple[Setting, ...]:
    return tuple(Setting(f"health.policies.{name}", f"What is made of {fault}") for name, fault in faults.items())


SETTINGS: tuple[Setting, ...] = (
    *REFERENCE,
    Setting(
        "devices.exclude",
        "GPUs that are not offered: by index, UUID, PCI address or pattern of the model",
        ("GPUPLUGIN_DEVICES_EXCLUDE",),
        ("devices-exclude",),
    ),
    Setting("imex.channelIDs", "IMEX channels that containers get", ("IMEX_CHANNEL_IDS",), ("imex-channel-ids",)),
    Setting("imex.required", "Whether those channels must exist", ("IMEX_REQUIRED",), ("imex-required",)),
    Setting(
        "cdi.featureFlags", "Switches for writing CDI specifications", ("CDI_FEATURE_FLAGS",), ("cdi-feature-flags",)
    ),
    Setting(
        "cdi.disableHooks", "Hooks that CDI specifications leave out", ("CDI_DISABLE_HOOKS",), ("cdi-disable-hooks",)
    ),
    Setting(
        "cdi.removeOnStop",
        "Whether a daemon that is told to end takes its CDI document along, unless another one serves",
        ("GPUPLUGIN_CDI_REMOVE_ON_STOP",),
        ("cdi-remove-on-stop",),
    ),
    Setting(
        "health.probeSeconds",
        "The time between two looks at each GPU's health",
        ("GPUPLUGIN_HEALTH_PROBE_SECONDS",),
        ("health-probe-seconds",),
    ),
    Setting(
        "health.recoveryProbes",
        "How many good looks in a row bring a GPU back",
        ("GPUPLUGIN_HEALTH_RECOVERY_PROBES",),
        ("health-recovery-probes",),
    ),
    Setting(
        "health.quietSeconds",
        "How long a GPU must be without a new XID before it comes back",
        ("GPUPLUGIN_HEALTH_QUIET_SECONDS",),
        ("health-quiet-seconds",),
    ),
    Setting(
        "health.disable",
        "XIDs that do not take a GPU out of service, or all",
        ("DP_DISABLE_HEALTHCHECKS",),
        ("health-disable",),
    ),
    Setting(
        "health.enable",
        "XIDs that do, or all; wins over health.disable and over the catalogue",
        ("DP_ENABLE_HEALTHCHECKS",),
        ("health-enable",),
    ),
    *_policies(
        xid="XIDs that take a GPU away; as the vendor's catalogue advises unless set",
        lost="a GPU that fell off the bus",
        hung="a GPU of which a call never comes back",
        silent="a GPU that answers with errors",
        unreadable="a GPU that can be reached and not be read",
        resetWanted="a reset that the driver asks for",
        rebootWanted="a restart that the driver asks for",
        actionWanted="another action that the driver asks for",
        eccUncorrectable="uncorrectable memory errors since the last reset",
        rowRemapPending="memory rows to be replaced at the next reset",
        rowRemapFailed="memory rows that could not be replaced",
        nvlink="NVLinks that are down or fail again and again",
        fabric="an NVLink fabric that is not joined, or unhealthy",
        thermal="clocks lowered because of heat",
        powerBrake="clocks lowered by the machine's power brake",
    ),
    Setting(
        "dra.gpus",
        "GPUs that are handed out by claims: all, UUIDs, PCI addresses or patterns for the model; the rest by the"
        " device plugin",
        ("GPUPLUGIN_DRA_GPUS",),
        ("dra-gpus",),
    ),
    Setting(
        "metrics.enabled",
        "Whether metrics are collected and served",
        ("GPUPLUGIN_METRICS_ENABLED",),
        ("metrics-enabled",),
    ),
    Setting(
        "metrics.address",
        "Where metrics are served, at /metrics",
        ("GPUPLUGIN_METRICS_ADDRESS", "DCGM_EXPORTER_LISTEN"),
        ("metrics-address",),
    ),
    Setting(
        "metrics.intervalSeconds",
        "The time between two collections; a scrape gets the last one",
        ("GPUPLUGIN_METRICS_INTERVAL_SECONDS",),
        ("metrics-interval-seconds",),
    ),
    Setting(
        "metrics.collectors",
        "A list of series in dcgm-exporter's CSV form; all that can be had unless set",
        ("GPUPLUGIN_METRICS_COLLECTORS", "DCGM_EXPORTER_COLLECTORS"),
        ("metrics-collectors",),
    ),
    Setting(
        "metrics.certificate",
        "The certificate, in PEM, to serve metrics by TLS; followed when it is renewed",
        ("GPUPLUGIN_METRICS_CERTIFICATE",),
        ("metrics-certificate",),
    ),
    Setting("metrics.key", "The certificate's key, in PEM", ("GPUPLUGIN_METRICS_KEY",), ("metrics-key",)),
    Setting(
        "metrics.users",
        "A file of lines name:password; only those users get metrics",
        ("GPUPLUGIN_METRICS_USERS",),
        ("metrics-users",),
    ),
    Setting("node.name", "What the Kubernetes API calls this node", ("NODE_NAME",), ("node-name",)),
    Setting(
        "node.startupTaint",
        "The key of a taint that is taken off the node when its GPUs can be had",
        ("GPUPLUGIN_NODE_STARTUP_TAINT",),
        ("node-startup-taint",),
    ),
    Setting(
        "labels.owner",
        "Who writes the node's labels: nobody, we (node), or Node Feature Discovery from an object or a file of ours",
        ("GPUPLUGIN_LABELS_OWNER",),
        ("labels-owner",),
    ),
    Setting(
        "labels.timestamp",
        "Whether there is a label with the time of the daemon's start, which is a write at each start",
        ("GPUPLUGIN_LABELS_TIMESTAMP",),
        ("labels-timestamp",),
    ),
    Setting(
        "labels.namespace",
        "Where the NodeFeature object is kept",
        ("GPUPLUGIN_LABELS_NAMESPACE", "NAMESPACE"),
        ("labels-namespace", "namespace"),
    ),
    Setting(
        "labels.checkSeconds",
        "The time between two looks at whether our labels are still there",
        ("GPUPLUGIN_LABELS_CHECK_SECONDS",),
        ("labels-check-seconds",),
    ),
    Setting(
        "labels.topologyObject",
        "Whether a NodeResourceTopology object tells schedulers what each NUMA node has",
        ("GPUPLUGIN_LABELS_TOPOLOGY_OBJECT",),
        ("labels-topology-object",),
    ),
    Setting(
        "node.healthCondition",
        "Whether the Node gets a condition GPUsHealthy",
        ("GPUPLUGIN_NODE_HEALTH_CONDITION",),
        ("node-health-condition",),
    ),
    Setting(
        "events.enabled",
        "Whether faults of GPUs are told in Events of the Node",
        ("GPUPLUGIN_EVENTS_ENABLED",),
        ("events-enabled",),
    ),
    Setting(
        "profiles.folder",
        "The folder of configuration files of which the node's label chooses one",
        ("CONFIG_FILE_SRCDIR",),
        ("config-file-srcdir",),
    ),
    Setting("profiles.label", "The node label that chooses", ("NODE_LABEL",), ("node-label",)),
    Setting("profiles.default", "The file for nodes without that label", ("DEFAULT_CONFIG",), ("default-config",)),
    Setting(
        "profiles.fallbacks",
        "What to take without label and default: a file named default, the only file, or none",
        ("FALLBACK_STRATEGIES",),
        ("fallback-strategies",),
    ),
    Setting(
        "rescanSeconds",
        "The time between two full looks at the machine",
        ("GPUPLUGIN_RESCAN_SECONDS",),
        ("rescan-seconds",),
    ),
    Setting("paths.kubelet", "Kubelet's folder", ("GPUPLUGIN_PATHS_KUBELET",), ("paths-kubelet",)),
    Setting(
        "paths.kubeletSocket",
        "Where kubelet takes registrations; device-plugins/kubelet.sock in its folder unless set",
        ("KUBELET_SOCKET",),
        ("kubelet-socket",),
    ),
    Setting("paths.cdi", "The folder for CDI specifications", ("GPUPLUGIN_PATHS_CDI",), ("paths-cdi",)),
    Setting("paths.sysfs", "The host's /sys", ("GPUPLUGIN_PATHS_SYSFS",), ("paths-sysfs",)),
    Setting("paths.proc", "The host's /proc", ("GPUPLUGIN_PATHS_PROC",), ("paths-proc",)),
    Setting(
        "paths.status",
        "The socket that `gpuplugin ready` and `gpuplugin alive` ask; none unless set",
        ("GPUPLUGIN_PATHS_STATUS",),
        ("paths-status",),
    ),
    Setting(
        "paths.state",
        "Our own folder for what must outlive us: GPUs that were cordoned",
        ("GPUPLUGIN_PATHS_STATE",),
        ("paths-state",),
    ),
    Setting(
        "paths.kubeconfig",
        "How the Kubernetes API is reached; the pod's service account unless set",
        ("KUBECONFIG",),
        ("kubeconfig",),
    ),
    Setting("log.level", "The least severe messages that are written", ("GPUPLUGIN_LOG_LEVEL",), ("log-level",)),
    Setting(
        "log.format",
        "JSON lines or text; auto is text on a terminal",
        ("GPUPLUGIN_LOG_FORMAT",),
        ("log-format",),
    ),
)
