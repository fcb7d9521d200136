"""What is wrong only in view of other settings: two ways of sharing at once, names that cannot be, lists too long.

The reference takes all of these without a word, and then does something else than people meant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuplugin.config.given import clip
from gpuplugin.config.settings import GPU_RESOURCE
from gpuplugin.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gpuplugin.config.settings import Config, Mps, ReplicatedResource, TimeSlicing

    _Check = Callable[[Config, Mapping[str, str]], Iterator[Problem]]

MESSAGE_BYTES = 4 << 20
"""What kubelet takes in one message of a device plugin."""

MOST_GPUS, MOST_MIG_DEVICES = 16, 16 * 7
"""In the largest machine that is built; the list of one resource must have room for all of them."""

MPS_CLIENTS = 48
_MIG_PREFIX = "nvidia.com/mig-"
_LONGEST_GPU = "GPU-" + 36 * "0"
_LONGEST_MIG = f"MIG-{_LONGEST_GPU}/00/00"
_NUMA_NODE = 255


def problems(config: Config, sources: Mapping[str, str], refused: Iterable[str] = ()) -> Iterator[Problem]:
    """Give all that is wrong. sources: where each key was set.

    refused: keys that could not be read, and keys with one below that is unknown: what rests on those is not judged.
    """
    wrong = tuple(refused)
    for needed, check in _CHECKS:
        if not any(_touches(key, needs) for key in wrong for needs in needed):
            yield from check(config, sources)


def _touches(key: str, needs: str) -> bool:
    """Whether one is the other or has it below; the file as a whole (``""``) has all."""
    key, needs = f"{key.replace('[', '.')}.", f"{needs}."
    return key == "." or key.startswith(needs) or needs.startswith(key)


def _one_way(config: Config, sources: Mapping[str, str]) -> Iterator[Problem]:
    """Find sharing in two ways, and in one that MIG devices cannot have."""
    sharing = config.sharing
    if sharing.time_slicing and sharing.mps:
        yield Problem(
            sources.get("sharing.mps.resources", ""),
            "sharing.mps",
            "MPS beside sharing.timeSlicing",
            "one of the two",
            "A device is shared in one way: remove either",
        )
    if sharing.mps and config.flags.mig_strategy == "mixed":
        yield Problem(
            sources.get("flags.migStrategy", ""),
            "flags.migStrategy",
            "mixed",
            "none, single",
            "MPS is for whole GPUs: share MIG devices by sharing.timeSlicing",
        )


def _claims(config: Config, sources: Mapping[str, str]) -> Iterator[Problem]:
    """Find what claims need and do not have."""
    if config.dra.gpus and not config.node.name:
        yield Problem(
            sources.get("dra.gpus", ""),
            "node.name",
            "",
            "this node's name in the Kubernetes API",
            "Claims with dra.gpus need it: set NODE_NAME from spec.nodeName",
        )


def _tls(config: Config, sources: Mapping[str, str]) -> Iterator[Problem]:
    """Find half of what TLS takes."""
    if (config.metrics.certificate is None) is not (config.metrics.key is None):
        lacking = "metrics.certificate" if config.metrics.certificate is None else "metrics.key"
        there = "metrics.key" if config.metrics.certificate is None else "metrics.certificate"
        yield Problem(
            sources.get(there, ""), lacking, "", "the path of a PEM file", f"TLS takes both: {there} is set alone"
        )


def _startup_taint(config: Config, sources: Mapping[str, str]) -> Iterator[Problem]:
    """Find a taint to be taken off a node without a name."""
    if config.node.startup_taint and not config.node.name:
        yield Problem(
            sources.get("node.startupTaint", ""),
            "node.name",
            "",
            "this node's name in Kubernetes",
            "The taint is taken off that node: set NODE_NAME from the pod's spec.nodeName",
        )


def _profiles(config: Config, sources: Mapping[str, str]) -> Iterator[Problem]:
    """Find files to be chosen by the label of a node without a name."""
    if config.profiles.folder and not config.node.name:
        yield Problem(
            sources.get("profiles.folder", ""),
            "node.name",
            "",
            "this node's name in Kubernetes",
            "Its label chooses the file: set NODE_NAME from the pod's spec.nodeName",
        )


def _shared(config: Config, sources: Mapping[str, str]) -> Iterator[Problem]:
    """Find in what is shared what cannot be."""
    sharing = config.sharing
    if sharing.time_slicing:
        yield from _section("sharing.timeSlicing", sharing.time_slicing, config, sources)
    if sharing.mps:
        yield from _section("sharing.mps", sharing.mps, config, sources)


def _told(config: Config, sources: Mapping[str, str]) -> Iterator[Problem]:
    """Find what telling of faults needs and does not have."""
    asked = {"node.healthCondition": config.node.health_condition, "events.enabled": config.events.enabled}
    for key, wanted in asked.items():
        if wanted and not config.node.name:
            yield Problem(
                sources.get(key, ""),
                "node.name",
                "",
                "this node's name in Kubernetes",
                f"{key} is about that node: set NODE_NAME from the pod's spec.nodeName",
            )


def _labels(config: Config, sources: Mapping[str, str]) -> Iterator[Problem]:
    """Find what labels need and do not have."""
    labels, flags = config.labels, config.flags
    owner = sources.get("labels.owner", "")
    if labels.needs_api and not config.node.name:
        yield Problem(
            owner or sources.get("labels.topologyObject", ""),
            "node.name",
            "",
            "this node's name in Kubernetes",
            "Its labels and its topology are written there: set NODE_NAME from the pod's spec.nodeName",
        )
    if labels.owner == "nfd-object":
        if not labels.namespace:
            advice = "The NodeFeature object needs one: set NAMESPACE from the pod's metadata.namespace"
            yield Problem(owner, "labels.namespace", "", "a namespace's name", advice)
        if not flags.use_node_feature_api:
            yield Problem(
                sources.get("flags.useNodeFeatureAPI", ""),
                "flags.useNodeFeatureAPI",
                "false",
                "true with labels.owner nfd-object",
                "For a feature file set labels.owner to nfd-file",
            )
    if labels.owner == "nfd-file" and not flags.gfd.output_file.startswith("/"):
        yield Problem(
            sources.get("flags.gfd.outputFile", ""),
            "flags.gfd.outputFile",
            clip(flags.gfd.output_file),
            "an absolute path",
            "Labels are not printed: `gpuplugin labels show` does that",
        )


def list_bytes(devices: int, replicas: int, uuid: str) -> int:
    """How long the message is that offers so many devices so often, at its longest: all unhealthy, with NUMA node."""
    from gpuplugin.pb import deviceplugin_v1beta1_pb2 as api  # noqa: PLC0415 - only where something is shared

    topology = api.TopologyInfo(nodes=[api.NUMANode(ID=_NUMA_NODE)])
    total, first = 0, 0
    for digits in range(1, len(f"{replicas}") + 1):
        numbers = min(replicas, 10**digits) - first
        one = api.Device(ID=f"{uuid}::{'9' * digits}", health="Unhealthy", topology=topology)
        total += numbers * api.ListAndWatchResponse(devices=[one]).ByteSize()
        first += numbers
    return devices * total


def _unreachable(config: Config, sources: Mapping[str, str]) -> Iterator[Problem]:
    """Find renamings that can never apply, because an earlier one takes everything that they could match."""
    for key, entries in (("resources.gpus", config.resources.gpus), ("resources.mig", config.resources.mig)):
        patterns = [entry.pattern for entry in entries]
        for index, pattern in enumerate(patterns):
            if pattern in patterns[:index] or "*" in patterns[:index]:
                yield Problem(
                    sources.get(key, ""),
                    f"{key}[{index}].pattern",
                    clip(pattern),
                    "a pattern that no earlier entry covers",
                    "The first match counts: remove this entry or move it up",
                )


def _section(key: str, section: TimeSlicing | Mps, config: Config, sources: Mapping[str, str]) -> Iterator[Problem]:
    source = sources.get(f"{key}.resources", "")
    names: dict[str, int] = {}
    published: dict[str, int] = {}
    for index, entry in enumerate(section.resources):
        here = f"{key}.resources[{index}]"
        first = names.setdefault(entry.name, index)
        if first != index:
            advice = f"{key}.resources[{first}] has it already; put both into one entry"
            yield Problem(source, f"{here}.name", entry.name, "each resource once", advice)
            continue
        yield from _name(source, here, entry, config)
        yield from _published(source, here, entry, section, config, published, index)
        if entry.spread == "required" and section.fail_requests_greater_than_one:
            advice = f"{key}.failRequestsGreaterThanOne lets no container have two, so there is nothing to spread"
            yield Problem(source, f"{here}.spread", "required", "preferred", advice)
        yield from _replicas(source, key, here, entry, config)


def _name(source: str, here: str, entry: ReplicatedResource, config: Config) -> Iterator[Problem]:
    """Find names that no device can have."""
    known = _known(config)
    mixed = config.flags.mig_strategy == "mixed"
    if entry.name in known or (mixed and entry.name.startswith(_MIG_PREFIX)):
        return
    allowed = ", ".join((*known, *([f"{_MIG_PREFIX}<profile>"] if mixed else [])))
    advice = "This node offers nothing of that name"
    if entry.name.startswith(_MIG_PREFIX):
        advice = f"With flags.migStrategy {config.flags.mig_strategy} no resource is called by MIG profile"
    yield Problem(source, f"{here}.name", entry.name, allowed, advice)


def _known(config: Config) -> tuple[str, ...]:
    resources, strategy = config.resources, config.flags.mig_strategy
    names = [entry.name for entry in resources.gpus]
    if not any(entry.pattern == "*" for entry in resources.gpus):
        names.append(GPU_RESOURCE)
    if strategy != "none":
        names += [entry.name for entry in resources.mig]
        if strategy == "single" and not any(entry.pattern == "*" for entry in resources.mig):
            names.append(GPU_RESOURCE)
    return tuple(dict.fromkeys(names))


def _published(
    source: str,
    here: str,
    entry: ReplicatedResource,
    section: TimeSlicing | Mps,
    config: Config,
    published: dict[str, int],
    index: int,
) -> Iterator[Problem]:
    """Find two resources that would be offered under one name."""
    name = entry.rename or (f"{entry.name}.shared" if section.rename_by_default else entry.name)
    first = published.setdefault(name, index)
    others = {other for other in _known(config) if other != entry.name}
    if first != index or name in others:
        advice = "Another resource is called so: kubelet would count the devices of both as one kind"
        yield Problem(source, f"{here}.rename", name, "a name that is free", advice)
    elif len(name) > 63:  # noqa: PLR2004 - Kubernetes' limit, as in rules
        advice = f"renameByDefault makes it {name}, which is too long: set rename"
        yield Problem(source, f"{here}.name", entry.name, "a name of at most 63 characters with .shared", advice)


def _replicas(source: str, key: str, here: str, entry: ReplicatedResource, config: Config) -> Iterator[Problem]:
    if key == "sharing.mps" and entry.replicas > MPS_CLIENTS:
        advice = "MPS takes no more clients on any GPU (16 before Volta)"
        yield Problem(source, f"{here}.replicas", entry.replicas, f"at most {MPS_CLIENTS}", advice)
        return
    mig = config.flags.mig_strategy == "single" or entry.name.startswith(_MIG_PREFIX)
    mig = mig or entry.name in (other.name for other in config.resources.mig)
    devices, uuid = (MOST_MIG_DEVICES, _LONGEST_MIG) if mig else (MOST_GPUS, _LONGEST_GPU)
    needed = list_bytes(devices, entry.replicas, uuid)
    if needed > MESSAGE_BYTES:
        most = max(count for count in range(1, entry.replicas) if list_bytes(devices, count, uuid) <= MESSAGE_BYTES)
        what = f"{devices} {'MIG devices' if mig else 'GPUs'}"
        advice = f"With {what} the list would have {needed} bytes, and kubelet takes {MESSAGE_BYTES}"
        yield Problem(source, f"{here}.replicas", entry.replicas, f"at most {most}", advice)


_CHECKS: tuple[tuple[tuple[str, ...], _Check], ...] = (
    (("sharing", "flags.migStrategy"), _one_way),
    (("dra.gpus", "node.name"), _claims),
    (("metrics.certificate", "metrics.key"), _tls),
    (("node.startupTaint", "node.name"), _startup_taint),
    (("profiles.folder", "node.name"), _profiles),
    (("node.healthCondition", "events.enabled", "node.name"), _told),
    (("labels", "flags.useNodeFeatureAPI", "flags.gfd.outputFile", "node.name"), _labels),
    (("resources",), _unreachable),
    (("sharing", "resources", "flags.migStrategy"), _shared),
)
"""Each check with the keys that it rests on."""
