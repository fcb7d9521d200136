"""Documents: their versions, their bytes, and that our judgement of them is the CDI project's own."""

from __future__ import annotations

import json
import os
from typing import Any

import msgspec
import pytest
from cdi_documents import documents as raw_documents
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cdi import spec as cdi
from cdi.spec import ContainerEdits, Device, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec
from cdi.validate import annotation_problems, decode, refusals, validate
from gpuplugin.errors import CdiInvalid

COMPARED = int(os.environ.get("GPUPLUGIN_TEST_CDI_DOCUMENTS", "2000"))

EDITS = ContainerEdits(env=("A=1",))


def document(device: ContainerEdits = EDITS, name: str = "gpu0", **fields: Any) -> Spec:
    given_fields: dict[str, Any] = {
        "version": "1.1.0",
        "kind": "a.b/c",
        "devices": (Device(name=name, container_edits=device),),
    }
    return Spec(**(given_fields | fields))


@pytest.mark.parametrize(
    ("version", "spec"),
    [
        ("0.3.0", document()),
        ("0.4.0", document(ContainerEdits(mounts=(Mount(host_path="/a", container_path="/a", type="tmpfs"),)))),
        ("0.5.0", document(ContainerEdits(device_nodes=(DeviceNode(path="/a", host_path="/b"),)))),
        (
            "0.5.0",
            document(
                devices=(
                    Device(
                        name="a", container_edits=ContainerEdits(device_nodes=(DeviceNode(path="/a", host_path="/b"),))
                    ),
                    Device(name="last", container_edits=EDITS),
                )
            ),
        ),
        ("0.5.0", document(name="0")),
        ("0.6.0", document(kind="a/b.c")),
        ("0.3.0", document(kind="a.b/c")),
        ("0.6.0", document(annotations={"a": "b"})),
        ("0.6.0", document(devices=(Device(name="a", annotations={"a": "b"}, container_edits=EDITS),))),
        ("0.7.0", document(ContainerEdits(intel_rdt=IntelRdt()))),
        ("0.7.0", document(container_edits=ContainerEdits(additional_gids=(1,)))),
        ("1.1.0", document(ContainerEdits(net_devices=(NetDevice(host_interface_name="a", name="b"),)))),
        ("1.1.0", document(ContainerEdits(intel_rdt=IntelRdt(schemata=())))),
        ("1.1.0", document(container_edits=ContainerEdits(intel_rdt=IntelRdt(enable_monitoring=True)))),
    ],
)
def test_the_version_is_the_lowest_that_has_what_is_used(version: str, spec: Spec) -> None:
    minimal = cdi.with_minimum_version(spec)
    assert minimal.version == version
    validate(minimal)
    lower = cdi.VERSIONS[cdi.VERSIONS.index(version) - 1]
    with pytest.raises(CdiInvalid, match=f"cdiVersion: '{lower}' is not allowed; allowed: {version} or higher"):
        validate(msgspec.structs.replace(spec, version=lower))


def test_encoding_says_only_what_is_set_and_reads_back() -> None:
    spec = document(kind="gpuplugin.io/gpu", version="0.3.0")
    text = cdi.encode(spec)
    assert json.loads(text) == {
        "cdiVersion": "0.3.0",
        "kind": "gpuplugin.io/gpu",
        "devices": [{"name": "gpu0", "containerEdits": {"env": ["A=1"]}}],
    }
    assert text.endswith(b"}\n")
    assert decode(text) == spec


def test_equal_documents_have_equal_bytes() -> None:
    one = document(annotations={"a": "1", "b": "2"}, container_edits=ContainerEdits())
    other = document(annotations={"b": "2", "a": "1"})
    assert one == other
    assert cdi.encode(one) == cdi.encode(other)


def test_every_broken_rule_is_told_with_its_place() -> None:
    spec = Spec(
        version="0.2.0",
        kind="9/x",
        container_edits=ContainerEdits(env=("=x", "A=", "B")),
        devices=(
            Device(name="a"),
            Device(
                name="a",
                container_edits=ContainerEdits(
                    device_nodes=(DeviceNode(path="", type="x", major=-1, permissions="rx"),),
                    hooks=(Hook(hook_name="create", path="", env=("x",)),),
                    mounts=(Mount(host_path="", container_path=""),),
                    intel_rdt=IntelRdt(clos_id="a/b"),
                    net_devices=(
                        NetDevice(host_interface_name="e", name="n"),
                        NetDevice(host_interface_name="e", name=""),
                    ),
                    additional_gids=(2**32,),
                ),
            ),
            Device(name="-", annotations={"a b": ""}, container_edits=EDITS),
        ),
    )
    with pytest.raises(CdiInvalid) as caught:
        validate(spec, "here")
    assert [problem.key for problem in caught.value.problems] == [
        "cdiVersion",
        "kind",
        "containerEdits.env[0]",
        "containerEdits.env[2]",
        "devices[0].containerEdits",
        "devices[1].containerEdits.deviceNodes[0].path",
        "devices[1].containerEdits.deviceNodes[0].type",
        "devices[1].containerEdits.deviceNodes[0].major",
        "devices[1].containerEdits.deviceNodes[0].permissions",
        "devices[1].containerEdits.hooks[0].hookName",
        "devices[1].containerEdits.hooks[0].path",
        "devices[1].containerEdits.hooks[0].env[0]",
        "devices[1].containerEdits.mounts[0].hostPath",
        "devices[1].containerEdits.mounts[0].containerPath",
        "devices[1].containerEdits.intelRdt.closID",
        "devices[1].containerEdits.netDevices[1].hostInterfaceName",
        "devices[1].containerEdits.netDevices[1].name",
        "devices[1].containerEdits.additionalGids[0]",
        "devices[1].name",
        "devices[2].name",
        "devices[2].annotations",
    ]
    assert all(str(problem).startswith("here: ") for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (b"", ""),
        (b"\xff", ""),
        (b"[]", ""),
        (b"[" * 100_000, ""),
        (b'{"cdiVersion":"0.3.0","kind":"a/b","devices":[],"more":1}', ""),
        (
            b'{"cdiVersion":"0.3.0","kind":"a/b","devices":[{"name":"a","containerEdits":{"env":[1]}}]}',
            "devices[0].containerEdits.env[0]",
        ),
        (b'{"cdiVersion":"0.3.0","kind":"a/b","devices":[]}', "devices"),
    ],
)
def test_what_is_no_document_is_refused_with_its_place(text: bytes, place: str) -> None:
    with pytest.raises(CdiInvalid) as caught:
        decode(text)
    assert caught.value.problems[0].key == place


def test_text_that_is_no_unicode_is_a_broken_rule_and_not_a_crash() -> None:
    spec = document(ContainerEdits(mounts=(Mount(host_path="/a\udcff", container_path="/b"),)))
    assert [problem.key for problem in refusals(spec)] == ["devices[0].containerEdits.mounts[0].hostPath"]


@given(st.binary())
def test_bytes_never_crash_the_reader(text: bytes) -> None:
    with pytest.raises(CdiInvalid):
        decode(text)


def text_of(raw: Any) -> bytes:
    """One line of JSON, with everything but ASCII escaped or plain as ours would write it."""
    return cdi._NOT_PLAIN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", msgspec.json.encode(raw).decode()).encode()


def as_the_library_reads(spec: Spec) -> Spec:
    """The same document without what the library overlooks when it computes the minimum version.

    Its module says Go 1.19, where a loop has one variable for all rounds: pointers to it all end up at the last device,
    so `hostPath` and mounts' `type` count in the last device and the common edits only. Ours counts all.
    """

    def overlooked(device: Device) -> Device:
        edits = device.container_edits
        nodes = tuple(msgspec.structs.replace(node, host_path="") for node in edits.device_nodes)
        mounts = tuple(msgspec.structs.replace(mount, type="") for mount in edits.mounts)
        seen = msgspec.structs.replace(edits, device_nodes=nodes, mounts=mounts)
        return msgspec.structs.replace(device, container_edits=seen)

    *others, last = spec.devices
    return msgspec.structs.replace(spec, devices=(*map(overlooked, others), last))


def disagreement(text: bytes, theirs: dict[str, Any]) -> str:
    """What the library and we say differently; empty when we agree."""
    try:
        ours = decode(text)
    except CdiInvalid as error:
        if not theirs["accepted"]:
            return ""
        problems = [str(problem) for problem in error.problems if problem.key != "cdiVersion"]
        if problems or refusals(as_the_library_reads(msgspec.json.decode(text, type=Spec))):
            return f"the library takes it, we say {error}"
        return ""
    if not theirs["accepted"]:
        return f"we take it, the library says {theirs['error']}"
    minimum = cdi.minimum_version(as_the_library_reads(ours))
    return "" if minimum == theirs["minimum"] else f"our minimum {minimum}, the library's {theirs['minimum']}"


@pytest.mark.go
def test_we_judge_as_the_cdi_project_does(library: Any) -> None:
    documents: list[bytes] = []

    @settings(
        max_examples=COMPARED,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(raw_documents())
    def collect(raw: Any) -> None:
        documents.append(text_of(raw))

    collect()
    answers = library(documents)
    assert len(answers) == len(documents)
    differences = [
        f"{text.decode()}\n  {why}"
        for text, answer in zip(documents, answers, strict=True)
        if (why := disagreement(text, answer))
    ]
    assert not differences, "\n".join(differences[:5])
    accepted = sum(answer["accepted"] for answer in answers)
    assert 0.1 < accepted / len(documents) < 0.9, f"{accepted} of {len(documents)} accepted: too one-sided to compare"


@pytest.mark.go
def test_what_we_write_the_library_takes(library: Any) -> None:
    odd = "".join(map(chr, [0x1, 0x9, 0xA, 0x7F, 0x85, 0xA0, 0x2028, 0xFEFF, 0xFFFE, 0x1F600])) + "\"\\'#: {"
    specs = [
        cdi.with_minimum_version(document(ContainerEdits(env=(f"A={character}",))))
        for character in [*odd, odd, "x" * 5000]
    ]
    answers = library([msgspec.json.format(cdi.encode(spec), indent=-1) for spec in specs])
    assert [answer["error"] for answer in answers] == [""] * len(specs)
    assert all(decode(cdi.encode(spec)) == spec for spec in specs)


@pytest.mark.parametrize("key", ["a", "A.b_c-d", "example.com/x", "x" * 63])
def test_annotation_keys_that_kubernetes_allows(key: str) -> None:
    assert not annotation_problems(document(annotations={key: "v"}))


@pytest.mark.parametrize(
    "key", ["", "/", "a/b/c", "-a", "a-", "example_com/x", "/x", "x" * 64, "a b", "ä", f"{'x' * 254}/a"]
)
def test_annotation_keys_that_the_specification_forbids(key: str) -> None:
    assert [problem.key for problem in annotation_problems(document(annotations={key: "v"}))] == ["annotations"]


def test_annotations_have_a_limit_together() -> None:
    fits = {f"k{n}": "x" * (64 * 1024 - 2) for n in range(4)}
    assert not annotation_problems(document(annotations=fits))
    assert annotation_problems(document(annotations=fits | {"k0": "x" * (64 * 1024 - 1)}))
