"""The settings under `flags`, `resources` and `sharing`, where our file is laid out as the reference's."""

from __future__ import annotations

from gpuplugin.config.setting import Setting

_SHARED_ENTRY = (
    ("name", "The resource whose devices are offered several times"),
    ("replicas", "How many times each device is offered"),
    ("rename", "What the replicas are called instead of `name`"),
    ("devices", "Which devices: all, a count, or a list of indexes and UUIDs"),
    ("spread", "Whether those of one container should, or must, be on different GPUs"),
)


def _sharing(key: str, kind: str) -> tuple[Setting, ...]:
    return (
        Setting(f"{key}.resources", f"Resources that are shared by {kind}"),
        *(Setting(f"{key}.resources[].{name}", doc) for name, doc in _SHARED_ENTRY),
        Setting(f"{key}.renameByDefault", "Whether shared resources are called <name>.shared"),
        Setting(f"{key}.failRequestsGreaterThanOne", "Whether a container that asks for more than one is refused"),
    )


REFERENCE: tuple[Setting, ...] = (
    Setting("version", "The version of this file's format"),
    Setting(
        "flags.migStrategy",
        "How MIG devices are offered: none, all as GPUs (single), or by profile (mixed)",
        ("MIG_STRATEGY", "GFD_MIG_STRATEGY"),
        ("mig-strategy",),
    ),
    Setting(
        "flags.failOnInitError",
        "Whether it is an error in the log, not news, that NVML cannot be used; the daemon keeps trying in either case",
        ("FAIL_ON_INIT_ERROR", "GFD_FAIL_ON_INIT_ERROR"),
        ("fail-on-init-error",),
    ),
    Setting(
        "flags.mpsRoot", "The host's folder for MPS files; /run/nvidia/mps unless set", ("MPS_ROOT",), ("mps-root",)
    ),
    Setting(
        "flags.nvidiaDriverRoot",
        "Where the driver is installed on the host: / or, in a driver container, /run/nvidia/driver",
        ("NVIDIA_DRIVER_ROOT",),
        ("nvidia-driver-root", "driver-root"),
    ),
    Setting(
        "flags.nvidiaDevRoot",
        "Where the device nodes are on the host; the driver's root unless set",
        ("NVIDIA_DEV_ROOT",),
        ("nvidia-dev-root", "dev-root"),
    ),
    Setting(
        "flags.gdrcopyEnabled", "Whether containers get GDRCopy's device", ("GDRCOPY_ENABLED",), ("gdrcopy-enabled",)
    ),
    Setting(
        "flags.gdsEnabled", "Whether containers get GPUDirect Storage's devices", ("GDS_ENABLED",), ("gds-enabled",)
    ),
    Setting(
        "flags.mofedEnabled", "Whether containers get InfiniBand's devices", ("MOFED_ENABLED",), ("mofed-enabled",)
    ),
    Setting(
        "flags.useNodeFeatureAPI",
        "Whether a NodeFeature object may be written; false needs another labels.owner",
        ("USE_NODE_FEATURE_API", "GFD_USE_NODE_FEATURE_API"),
        ("use-node-feature-api",),
    ),
    Setting(
        "flags.deviceDiscoveryStrategy",
        "How devices are found",
        ("DEVICE_DISCOVERY_STRATEGY",),
        ("device-discovery-strategy",),
    ),
    Setting(
        "flags.plugin.passDeviceSpecs",
        "Whether kubelet is also given the device nodes",
        ("PASS_DEVICE_SPECS",),
        ("pass-device-specs",),
    ),
    Setting(
        "flags.plugin.deviceListStrategy",
        "How the container runtime is told which devices a container gets",
        ("DEVICE_LIST_STRATEGY",),
        ("device-list-strategy",),
    ),
    Setting(
        "flags.plugin.deviceIDStrategy",
        "What devices are called towards the container runtime",
        ("DEVICE_ID_STRATEGY",),
        ("device-id-strategy",),
    ),
    Setting(
        "flags.plugin.cdiAnnotationPrefix",
        "How the annotations of the strategy cdi-annotations begin",
        ("CDI_ANNOTATION_PREFIX",),
        ("cdi-annotation-prefix",),
    ),
    Setting(
        "flags.plugin.nvidiaCTKPath",
        "The host's program of NVIDIA's toolkit whose hooks containers run; none is needed, nor run unless this is set",
        ("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"),
        ("nvidia-cdi-hook-path", "nvidia-ctk-path"),
    ),
    Setting(
        "flags.plugin.containerDriverRoot",
        "Where the driver's root is mounted in our own container",
        ("CONTAINER_DRIVER_ROOT", "DRIVER_ROOT_CTR_PATH"),
        ("container-driver-root", "driver-root-ctr-path"),
    ),
    Setting(
        "flags.plugin.sharedDevicesAllocationPolicy",
        "Whether replicas and MIG devices are spread over GPUs or packed",
        ("SHARED_DEVICES_ALLOCATION_POLICY",),
        ("shared-devices-allocation-policy",),
    ),
    Setting(
        "flags.gfd.oneshot",
        "Whether to label once after each start, and then leave the labels alone",
        ("GFD_ONESHOT",),
        ("oneshot",),
    ),
    Setting(
        "flags.gfd.noTimestamp",
        "Whether to leave out the time label, also where labels.timestamp asks for it",
        ("GFD_NO_TIMESTAMP",),
        ("no-timestamp",),
    ),
    Setting(
        "flags.gfd.sleepInterval",
        "The time between labellings; ours follow each look, see rescanSeconds",
        ("GFD_SLEEP_INTERVAL",),
        ("sleep-interval",),
    ),
    Setting(
        "flags.gfd.outputFile",
        "The feature file that labels.owner nfd-file writes",
        ("GFD_OUTPUT_FILE",),
        ("output-file",),
    ),
    Setting(
        "flags.gfd.machineTypeFile",
        "The file that names the machine's model",
        ("GFD_MACHINE_TYPE_FILE",),
        ("machine-type-file",),
    ),
    Setting("resources.gpus", "What whole GPUs are called, by model; nvidia.com/gpu where nothing matches"),
    Setting("resources.gpus[].pattern", "The GPU's model; * stands for anything"),
    Setting("resources.gpus[].name", "The resource's name"),
    Setting("resources.mig", "What MIG devices are called, by profile"),
    Setting("resources.mig[].pattern", "The MIG profile; * stands for anything"),
    Setting("resources.mig[].name", "The resource's name"),
    *_sharing("sharing.timeSlicing", "time-slicing"),
    *_sharing("sharing.mps", "MPS"),
    Setting(
        "sharing.mps.defaultActiveThreadPercentage",
        "How much of a GPU's threads each client may use; 100 divided by the replicas unless set",
    ),
    Setting(
        "sharing.mps.defaultPinnedDeviceMemoryLimit",
        "How much of a GPU's memory each client may use; all of it divided by the replicas unless set",
    ),
)
