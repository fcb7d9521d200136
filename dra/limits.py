"""The API's rules for ResourceSlices, held before anything is sent.

The server would refuse a wrong slice too, but only after others of its pool were written, and a pool that is half
written is not used at all. So the whole pool is looked at first, and rules that no single slice shows (a name twice, a
counter that nobody has) with it. Numbers are those of Kubernetes 1.37; 1.34 to 1.36 allow no more.
"""

from __future__ import annotations

import re
from collections import Counter as Tally
from typing import TYPE_CHECKING, Any, Final

from gpuplugin.errors import Problem, SlicesInvalid

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpuplugin.kube.objects import Attribute, Counter, Device, ResourceSlice, Taint

DEVICES: Final = 128
DEVICES_WITH_MORE: Final = 64
ATTRIBUTES_AND_CAPACITIES: Final = 32
ATTRIBUTE_VALUES: Final = 48
DOMAIN: Final = 63
IDENTIFIER: Final = 32
STRING: Final = 64
COUNTER_SETS: Final = 8
COUNTERS: Final = 32
COUNTER_SETS_A_DEVICE: Final = 2
TAINTS: Final = 16
LABEL: Final = 63
SUBDOMAIN: Final = 253

_LABEL_TEXT: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DNS_LABEL: Final = re.compile(_LABEL_TEXT)
_DNS_SUBDOMAIN: Final = re.compile(rf"{_LABEL_TEXT}(?:\.{_LABEL_TEXT})*")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_LABEL_VALUE: Final = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_QUANTITY: Final = re.compile(r"\d+(?:[KMGTPE]i)?", re.ASCII)
_NUMBER: Final = r"(?:0|[1-9]\d*)"
_PRE: Final = r"(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_SEMVER: Final = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-{_PRE}(?:\.{_PRE})*)?(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?", re.ASCII
)
_EFFECTS: Final = ("None", "NoSchedule", "NoExecute")


def check(slices: Sequence[ResourceSlice]) -> None:
    """Refuse a pool that the API server or the scheduler would not take: SlicesInvalid, with all that is wrong."""
    if found := tuple(problems(slices)):
        raise SlicesInvalid(found)


def problems(slices: Sequence[ResourceSlice]) -> Iterator[Problem]:
    """All that is wrong with the slices of one pool and generation."""
    for one in slices:
        for key, value, allowed in _slice(one):
            yield Problem(f"ResourceSlice {one.metadata.name}", key, value, allowed)
    for key, value, allowed in _pool(slices):
        yield Problem("ResourceSlices of the pool", key, value, allowed)


Found = tuple[str, object, str]


def _slice(one: ResourceSlice) -> Iterator[Found]:
    spec = one.spec
    yield from _dns("metadata.name", one.metadata.name, _DNS_SUBDOMAIN, SUBDOMAIN)
    yield from _dns("spec.driver", spec.driver, _DNS_SUBDOMAIN, DOMAIN)
    yield from _dns("spec.nodeName", spec.node_name or "", _DNS_SUBDOMAIN, SUBDOMAIN)
    if len(spec.pool.name) > SUBDOMAIN or not all(map(_DNS_SUBDOMAIN.fullmatch, spec.pool.name.split("/"))):
        yield "spec.pool.name", spec.pool.name, f"DNS subdomains with / between, up to {SUBDOMAIN} characters"
    if spec.devices and spec.shared_counters:
        yield "spec", "devices and sharedCounters", "one of the two in a slice"
    more = any(map(_needs_more, spec.devices))
    limit = DEVICES_WITH_MORE if more else DEVICES
    why = " where one of them has taints, counters or lists" if more else ""
    yield from _at_most("spec.devices", len(spec.devices), limit, f"devices{why}")
    for i, device in enumerate(spec.devices):
        yield from _device(f"spec.devices[{i}]", device)
    yield from _at_most("spec.sharedCounters", len(spec.shared_counters), COUNTER_SETS, "sets")
    for i, counters in enumerate(spec.shared_counters):
        yield from _counters(f"spec.sharedCounters[{i}]", counters.name, counters.counters)


def _pool(slices: Sequence[ResourceSlice]) -> Iterator[Found]:
    pools = {(one.spec.driver, one.spec.node_name, one.spec.pool) for one in slices}
    if len(pools) > 1:
        yield "spec.pool", sorted(str(pool) for pool in pools), "one driver, node, generation and count in all of them"
    for one in slices:
        if one.spec.pool.resource_slice_count != len(slices):
            yield (
                "spec.pool.resourceSliceCount",
                one.spec.pool.resource_slice_count,
                f"{len(slices)}, as many as there are",
            )
            break
    devices = [device for one in slices for device in one.spec.devices]
    yield from _once("spec.devices[].name", [device.name for device in devices])
    sets = [counters for one in slices for counters in one.spec.shared_counters]
    yield from _once("spec.sharedCounters[].name", [counters.name for counters in sets])
    have = {(counters.name, name) for counters in sets for name in counters.counters}
    uses = {(use.counter_set, name) for device in devices for use in device.consumes_counters for name in use.counters}
    if lacking := sorted(uses - have):
        yield "spec.devices[].consumesCounters", lacking, "counters that some slice of the pool has in sharedCounters"


def _needs_more(device: Device) -> bool:
    lists = any(a.strings is not None or a.numbers is not None for a in device.attributes.values())
    return bool(device.taints or device.consumes_counters or lists)


def _device(key: str, device: Device) -> Iterator[Found]:
    yield from _dns(f"{key}.name", device.name, _DNS_LABEL, LABEL)
    named = len(device.attributes) + len(device.capacity)
    yield from _at_most(f"{key}.attributes", named, ATTRIBUTES_AND_CAPACITIES, "attributes and capacities together")
    values = sum(len(a.strings or a.numbers or "1") for a in device.attributes.values())
    yield from _at_most(f"{key}.attributes", values, ATTRIBUTE_VALUES, "values, lists counted by what is in them")
    for name, attribute in device.attributes.items():
        yield from _qualified(f"{key}.attributes", name)
        yield from _attribute(f"{key}.attributes[{name}]", attribute)
    for name, capacity in device.capacity.items():
        yield from _qualified(f"{key}.capacity", name)
        yield from _quantity(f"{key}.capacity[{name}]", capacity.value)
    uses = device.consumes_counters
    yield from _at_most(f"{key}.consumesCounters", len(uses), COUNTER_SETS_A_DEVICE, "sets")
    yield from _once(f"{key}.consumesCounters[].counterSet", [use.counter_set for use in uses])
    for i, use in enumerate(uses):
        yield from _counters(f"{key}.consumesCounters[{i}]", use.counter_set, use.counters)
    yield from _at_most(f"{key}.taints", len(device.taints), TAINTS, "taints")
    for i, taint in enumerate(device.taints):
        yield from _taint(f"{key}.taints[{i}]", taint)


def _attribute(key: str, attribute: Attribute) -> Iterator[Found]:
    given: tuple[Any, ...] = (
        *(attribute.string, attribute.number, attribute.flag, attribute.version),
        *(attribute.strings, attribute.numbers),
    )
    if sum(value is not None for value in given) != 1 or () in given:
        yield key, attribute, "exactly one value, and no empty list"
    for text in (attribute.string or "", *(attribute.strings or ())):
        if len(text.encode()) > STRING:
            yield key, text, f"up to {STRING} bytes"
    version = attribute.version
    if version is not None and (len(version) > STRING or not _SEMVER.fullmatch(version)):
        yield key, version, f"a semantic version (1.2.3), up to {STRING} characters"


def _counters(key: str, name: str, counters: Mapping[str, Counter]) -> Iterator[Found]:
    yield from _dns(f"{key}.name", name, _DNS_LABEL, LABEL)
    yield from _at_most(f"{key}.counters", len(counters), COUNTERS, "counters")
    if not counters:
        yield f"{key}.counters", 0, "at least one"
    for counter, amount in counters.items():
        yield from _dns(f"{key}.counters", counter, _DNS_LABEL, LABEL)
        yield from _quantity(f"{key}.counters[{counter}]", amount.value)


def _taint(key: str, taint: Taint) -> Iterator[Found]:
    domain, slash, name = taint.key.rpartition("/")
    named = name and len(name) <= LABEL and _LABEL_VALUE.fullmatch(name)
    if not named or (slash and (len(domain) > SUBDOMAIN or not _DNS_SUBDOMAIN.fullmatch(domain))):
        yield f"{key}.key", taint.key, "a label's key, such as gpuplugin.io/unhealthy"
    if len(taint.value) > LABEL or not _LABEL_VALUE.fullmatch(taint.value):
        yield f"{key}.value", taint.value, f"a label's value: up to {LABEL} letters, digits, -, _ and ."
    if taint.effect not in _EFFECTS:
        yield f"{key}.effect", taint.effect, f"one of {', '.join(_EFFECTS)}"


def _qualified(key: str, name: str) -> Iterator[Found]:
    domain, slash, identifier = name.rpartition("/")
    if len(identifier) > IDENTIFIER or not _IDENTIFIER.fullmatch(identifier):
        yield key, name, f"a C identifier of up to {IDENTIFIER} characters, with or without a domain/ before it"
    if slash and (len(domain) > DOMAIN or not _DNS_SUBDOMAIN.fullmatch(domain)):
        yield key, name, f"a domain of up to {DOMAIN} characters before the /"


def _dns(key: str, text: str, form: re.Pattern[str], longest: int) -> Iterator[Found]:
    if len(text) > longest or not form.fullmatch(text):
        what = "label" if form is _DNS_LABEL else "subdomain"
        yield key, text, f"a DNS {what}: lower case letters, digits and -, up to {longest} characters"


def _quantity(key: str, text: str) -> Iterator[Found]:
    if not _QUANTITY.fullmatch(text):
        yield key, text, "a whole number with or without a binary unit (81559Mi)"


def _at_most(key: str, number: int, limit: int, what: str) -> Iterator[Found]:
    if number > limit:
        yield key, number, f"up to {limit} {what}"


def _once(key: str, names: Sequence[str]) -> Iterator[Found]:
    if twice := sorted(name for name, times in Tally(names).items() if times > 1):
        yield key, twice, "each name once"
