"""What a CDI runtime would refuse, found before a file is there to be refused.

The rules are those that the CDI project's own library applies when it reads a file, and tests hold ours against it.
Three go beyond it: annotation keys, which the specification limits and the library forgets to check; types, which must
be what the specification says where a YAML reader would take a number for a text; and `hostPath` and mount types, for
which the library (1.1.2) asks the higher version only when the last device has them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

import msgspec

from cdi.spec import VERSIONS, DeviceNode, Spec, minimum_version
from gpuplugin.errors import CdiInvalid, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cdi.spec import ContainerEdits, Device, Hook, IntelRdt, Mount, NetDevice

SHAPE = "a document of the shape that the CDI specification gives"
HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")

_VENDOR_OR_CLASS = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_ANNOTATION_NAME = re.compile(r"[a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?")
_ANNOTATION_PREFIX = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_ANNOTATION_PREFIX_LIMIT = 253
_ANNOTATIONS_LIMIT = 256 * 1024
_CLOS_LIMIT = 4096
_INT64 = 2**63
_UINT32 = 2**32

_T = TypeVar("_T")
_Found = tuple[str, object, str]
"""Place below the part that is looked at, value, what is allowed."""


def decode(document: bytes, source: str = "CDI document") -> Spec:
    """Read a JSON document strictly and check all rules.

    source: how errors call it. Raises CdiInvalid: with one Problem where the text does not have the shape of a
    document, else with all that are found.
    """
    try:
        spec = msgspec.json.decode(document, type=Spec)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = str(error)
        place = why.rpartition(" - at `$")[2].strip("`.") if " - at `$" in why else ""
        raise CdiInvalid([Problem(source, place, shorten(document), SHAPE, why)]) from error
    validate(spec, source)
    return spec


def validate(spec: Spec, source: str = "CDI document") -> None:
    """Raise CdiInvalid with every broken rule and its place, if any is."""
    problems = [*refusals(spec, source), *annotation_problems(spec, source)]
    if problems:
        raise CdiInvalid(problems)


def refusals(spec: Spec, source: str = "CDI document") -> list[Problem]:
    """Everything for which runtimes refuse the document."""
    return [Problem(source, place, value, allowed) for place, value, allowed in _spec(spec)]


def annotation_problems(spec: Spec, source: str = "CDI document") -> list[Problem]:
    """Give what the specification forbids in annotations although runtimes let it pass."""
    found = list(_annotations("", spec.annotations))
    for place, device in _numbered("devices", spec.devices):
        found += _annotations(f"{place}.", device.annotations)
    return [Problem(source, place, value, allowed) for place, value, allowed in found]


def shorten(document: bytes) -> str:
    """Give the start of a document, for an error's text."""
    text = document[:60].decode(errors="replace")
    return f"{text}…" if len(document) > len(text) else text


def _spec(spec: Spec) -> Iterator[_Found]:
    yield from _texts(spec)
    version = spec.version.removeprefix("v")
    minimum = minimum_version(spec)
    if version not in VERSIONS:
        yield "cdiVersion", spec.version, f"one of {', '.join(VERSIONS)}"
    elif VERSIONS.index(version) < VERSIONS.index(minimum):
        yield "cdiVersion", spec.version, f"{minimum} or higher, because of what the document uses"
    vendor, _, class_ = spec.kind.partition("/")
    if not (_VENDOR_OR_CLASS.fullmatch(vendor) and _VENDOR_OR_CLASS.fullmatch(class_)):
        yield (
            "kind",
            spec.kind,
            "vendor/class, each starting with a letter, ending with a letter or digit, and of letters, digits, _ - .",
        )
    yield from _below("containerEdits", _edits(spec.container_edits))
    if not spec.devices:
        yield "devices", [], "at least one device"
    seen: set[str] = set()
    for place, device in _numbered("devices", spec.devices):
        yield from _below(place, _device(device))
        if device.name in seen:
            yield f"{place}.name", device.name, "a name that no other device of the document has"
        seen.add(device.name)


def _device(device: Device) -> Iterator[_Found]:
    if not _DEVICE.fullmatch(device.name):
        yield "name", device.name, "letters, digits, _ - . : with a letter or digit at both ends"
    if device.container_edits.empty:
        yield "containerEdits", {}, "at least one edit"
    yield from _below("containerEdits", _edits(device.container_edits))


def _edits(edits: ContainerEdits) -> Iterator[_Found]:
    yield from _environment(edits.env)
    for place, node in _numbered("deviceNodes", edits.device_nodes):
        yield from _below(place, _node(node))
    for place, hook in _numbered("hooks", edits.hooks):
        yield from _below(place, _hook(hook))
    for place, mount in _numbered("mounts", edits.mounts):
        yield from _below(place, _mount(mount))
    if edits.intel_rdt is not None:
        yield from _below("intelRdt", _rdt(edits.intel_rdt))
    yield from _net_devices(edits.net_devices)
    for place, gid in _numbered("additionalGids", edits.additional_gids):
        yield from _number(place, gid, _UINT32)


def _environment(env: tuple[str, ...]) -> Iterator[_Found]:
    for place, variable in _numbered("env", env):
        if variable.find("=") <= 0:
            yield place, variable, "NAME=value"


def _node(node: DeviceNode) -> Iterator[_Found]:
    yield from _not_empty("path", node.path)
    if node.type not in {"", "b", "c", "u", "p"}:
        yield "type", node.type, "b, c, u, p, or nothing"
    yield from _number("major", node.major, _INT64)
    yield from _number("minor", node.minor, _INT64)
    yield from _number("fileMode", node.file_mode, _UINT32)
    yield from _number("uid", node.uid, _UINT32)
    yield from _number("gid", node.gid, _UINT32)
    if node.permissions != "none" and node.permissions.strip("rwm"):
        yield "permissions", node.permissions, "letters of rwm, or none"


def _hook(hook: Hook) -> Iterator[_Found]:
    if hook.hook_name not in HOOKS:
        yield "hookName", hook.hook_name, f"one of {', '.join(HOOKS)}"
    yield from _not_empty("path", hook.path)
    yield from _environment(hook.env)
    if hook.timeout is not None and not -_INT64 <= hook.timeout < _INT64:
        yield "timeout", hook.timeout, "a 64-bit number"


def _mount(mount: Mount) -> Iterator[_Found]:
    yield from _not_empty("hostPath", mount.host_path)
    yield from _not_empty("containerPath", mount.container_path)


def _rdt(rdt: IntelRdt) -> Iterator[_Found]:
    name = rdt.clos_id
    if name != "/" and (
        len(name.encode(errors="replace")) >= _CLOS_LIMIT or name in {".", ".."} or set(name) & {*"/\n"}
    ):
        yield "closID", name, f"a file name of less than {_CLOS_LIMIT} bytes, or / alone"


def _net_devices(devices: tuple[NetDevice, ...]) -> Iterator[_Found]:
    hosts: set[str] = set()
    names: set[str] = set()
    for place, device in _numbered("netDevices", devices):
        for key, value, seen in (
            ("hostInterfaceName", device.host_interface_name, hosts),
            ("name", device.name, names),
        ):
            yield from _not_empty(f"{place}.{key}", value)
            if value in seen:
                yield f"{place}.{key}", value, "a name that comes only once"
            seen.add(value)


def _annotations(prefix: str, annotations: Mapping[str, str]) -> Iterator[_Found]:
    for key in annotations:
        domain, slash, name = key.lower().rpartition("/")
        if not _ANNOTATION_NAME.fullmatch(name) or (
            slash and (len(domain) > _ANNOTATION_PREFIX_LIMIT or not _ANNOTATION_PREFIX.fullmatch(domain))
        ):
            yield (
                f"{prefix}annotations",
                key,
                "keys as Kubernetes has them: an optional domain and /, then a name of 63",
            )
    size = sum(len(text.encode(errors="replace")) for pair in annotations.items() for text in pair)
    if size > _ANNOTATIONS_LIMIT:
        yield f"{prefix}annotations", f"{size} bytes", f"at most {_ANNOTATIONS_LIMIT} bytes in all"


def _texts(spec: Spec) -> Iterator[_Found]:
    """Find text that cannot be written as UTF-8: the name of a file on the host may be any bytes."""
    try:
        msgspec.json.encode(spec)
    except UnicodeEncodeError:
        pass
    else:
        return
    pending: list[tuple[str, object]] = [("", msgspec.to_builtins(spec))]
    while pending:
        place, value = pending.pop()
        if isinstance(value, dict):
            pending += [(f"{place}.{key}".lstrip("."), part) for key, part in value.items()]
            pending += [(place, key) for key in value]
        elif isinstance(value, list | tuple):
            pending += [(f"{place}[{index}]", part) for index, part in enumerate(value)]
        elif isinstance(value, str) and not _is_unicode(value):
            yield place, value, "text that UTF-8 can write"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _numbered(name: str, parts: tuple[_T, ...]) -> Iterator[tuple[str, _T]]:
    for index, part in enumerate(parts):
        yield f"{name}[{index}]", part


def _below(place: str, found: Iterator[_Found]) -> Iterator[_Found]:
    for key, value, allowed in found:
        yield f"{place}.{key}", value, allowed


def _not_empty(place: str, value: str) -> Iterator[_Found]:
    if not value:
        yield place, value, "something; it must not be empty"


def _number(place: str, value: int | None, limit: int) -> Iterator[_Found]:
    if value is not None and not 0 <= value < limit:
        yield place, value, f"0 to {limit - 1}"
