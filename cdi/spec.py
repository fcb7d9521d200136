"""The CDI document as typed, frozen values, from specification 0.3.0 to 1.1.0.

Runtimes refuse a whole file for one unknown field or for a version that is too low, and older ones refuse a version
that is too high. So the fields are exactly those of the specification, and the version is computed: the lowest that
has what the document uses.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from msgspec import field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""Released versions, ascending. The first two are known to runtimes but too low for any document."""

_NOT_PLAIN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


class _Part(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True):
    """What all parts have in common: camelCase names, no unknown fields, nothing written that says nothing."""


class DeviceNode(_Part, frozen=True, kw_only=True):
    """A device node in the container.

    path: in the container · host_path: on the host, where it differs · type: ``c``, ``b``, ``u``, ``p`` or, when the
    runtime is to take type and numbers from the host's node, empty · permissions: of ``r``, ``w``, ``m``, or ``none``.
    """

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class Mount(_Part, frozen=True, kw_only=True):
    """A mount; without `options` runtimes choose their own. `type` is empty for a bind mount."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class Hook(_Part, frozen=True, kw_only=True):
    """A program on the host that the runtime starts at `hook_name`. `timeout` in seconds."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class IntelRdt(_Part, frozen=True, kw_only=True):
    """Intel Resource Director Technology settings. `schemata`: even an empty one needs 1.1.0; None is "not there"."""

    clos_id: str = field(default="", name="closID")
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] | None = None
    enable_monitoring: bool = False


class NetDevice(_Part, frozen=True, kw_only=True):
    """A network interface moved from the host into the container as `name`."""

    host_interface_name: str
    name: str


class ContainerEdits(_Part, frozen=True, kw_only=True):
    """What is done to a container. A variable in `env` (``NAME=value``) replaces the image's own."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing at all is done."""
        return self == _NOTHING


_NOTHING = ContainerEdits()


class Device(_Part, frozen=True, kw_only=True):
    """A device that a container can ask for by name."""

    name: str
    annotations: dict[str, str] = field(default_factory=dict)
    container_edits: ContainerEdits = _NOTHING


class Spec(_Part, frozen=True, kw_only=True):
    """A document: the devices of one kind, and the edits that any of them brings along.

    version: see `with_minimum_version` · kind: ``vendor/class``.
    """

    version: str = field(name="cdiVersion")
    kind: str
    annotations: dict[str, str] = field(default_factory=dict)
    devices: tuple[Device, ...]
    container_edits: ContainerEdits = _NOTHING

    @property
    def all_edits(self) -> Iterator[ContainerEdits]:
        """The common edits, then each device's."""
        yield self.container_edits
        for device in self.devices:
            yield device.container_edits


def minimum_version(spec: Spec) -> str:
    """Give the lowest version whose readers understand all that the document uses; what it says itself is ignored."""
    edits = tuple(spec.all_edits)
    rdts = [one.intel_rdt for one in edits if one.intel_rdt is not None]
    needs: Mapping[str, bool] = {
        "1.1.0": any(one.net_devices for one in edits)
        or any(rdt.schemata is not None or rdt.enable_monitoring for rdt in rdts),
        "0.7.0": bool(rdts) or any(one.additional_gids for one in edits),
        "0.6.0": bool(spec.annotations)
        or any(device.annotations for device in spec.devices)
        or "." in spec.kind.partition("/")[2],
        "0.5.0": any(node.host_path for one in edits for node in one.device_nodes)
        or any("0" <= device.name[:1] <= "9" for device in spec.devices),
        "0.4.0": any(mount.type for one in edits for mount in one.mounts),
    }
    return next((version for version, needed in needs.items() if needed), "0.3.0")


def with_minimum_version(spec: Spec) -> Spec:
    """Give the same document, saying the version that it needs."""
    return msgspec.structs.replace(spec, version=minimum_version(spec))


def encode(spec: Spec) -> bytes:
    """Give the document as JSON text ending in a newline: the same bytes for equal documents.

    Runtimes read JSON with a YAML reader. Characters that YAML refuses or folds when they stand for themselves are
    written as escapes. Raises UnicodeEncodeError for text that is no Unicode, which `validate` finds before.
    """
    if spec.container_edits.empty:
        spec = msgspec.structs.replace(spec, container_edits=_NOTHING)
    text = msgspec.json.encode(spec, order="deterministic").decode()
    escaped = _NOT_PLAIN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return msgspec.json.format(escaped, indent=2).encode() + b"\n"
