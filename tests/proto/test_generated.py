"""The generated code is what the definitions say, and the definitions are what kubelets and runtimes speak."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import grpc.aio
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from packaging.requirements import Requirement
from packaging.version import Version

from gpuplugin.pb import deviceplugin_v1beta1_pb2 as deviceplugin
from gpuplugin.pb import deviceplugin_v1beta1_pb2_grpc as deviceplugin_grpc
from tests.gocheck.build import GoMissingError, build

ROOT = Path(__file__).parents[2]
PB = ROOT / "gpuplugin" / "pb"
UPSTREAM = Path(__file__).with_name("upstream.json")
MODULES = {
    "k8s.io/cri-api/pkg/apis/runtime/v1": "cri_v1",
    "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1": "deviceplugin_v1beta1",
    "k8s.io/kubelet/pkg/apis/dra-health/v1": "drahealth_v1",
    "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1": "drahealth_v1alpha1",
    "k8s.io/kubelet/pkg/apis/dra/v1": "dra_v1",
    "k8s.io/kubelet/pkg/apis/dra/v1beta1": "dra_v1beta1",
    "k8s.io/kubelet/pkg/apis/pluginregistration/v1": "pluginregistration_v1",
    "k8s.io/kubelet/pkg/apis/podresources/v1": "podresources_v1",
}


def generated_files(package: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in package.glob("*_pb2*.py*")}


def generator_versions() -> dict[str, set[str]]:
    """Versions that the committed modules were made with, and so the oldest that they load with."""
    text = "\n".join(generated_files(PB).values())
    return {
        "grpcio": set(re.findall(r"^GRPC_GENERATED_VERSION = '(.+)'$", text, re.MULTILINE)),
        "protobuf": set(re.findall(r"^# Protobuf Python Version: (.+)$", text, re.MULTILINE)),
    }


def test_regenerating_changes_nothing(tmp_path):
    installed = importlib.metadata.version("grpcio-tools")
    assert generator_versions()["grpcio"] == {installed}, (
        "run `python proto/generate.py` after a change of grpcio-tools"
    )

    subprocess.run([sys.executable, ROOT / "proto" / "generate.py", "--out", tmp_path], check=True)

    fresh, committed = generated_files(tmp_path / "gpuplugin" / "pb"), generated_files(PB)
    differing = sorted(name for name in fresh | committed if fresh.get(name) != committed.get(name))
    assert differing == [], "run `python proto/generate.py` and commit what it writes"


def test_generating_removes_what_has_no_definition_any_more(tmp_path):
    package = tmp_path / "gpuplugin" / "pb"
    package.mkdir(parents=True)
    for name in ("gone_v1_pb2.py", "gone_v1_pb2_grpc.pyi", "__init__.py"):
        (package / name).touch()

    subprocess.run([sys.executable, ROOT / "proto" / "generate.py", "--out", tmp_path], check=True)

    assert {path.name for path in package.iterdir()} == generated_files(PB).keys() | {"__init__.py"}


@pytest.mark.parametrize("library", ["grpcio", "protobuf"])
def test_declared_minimum_loads_the_generated_code(library):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirement = next(r for r in map(Requirement, project["dependencies"]) if r.name == library)
    (minimum,) = (Version(spec.version) for spec in requirement.specifier if spec.operator == ">=")
    (needed,) = generator_versions()[library]
    assert minimum >= Version(needed), f"the generated code refuses to load with {library} below {needed}"


def test_every_definition_has_an_upstream_package():
    assert {f"{module}.proto" for module in MODULES.values()} == {
        path.name for path in (ROOT / "proto" / "gpuplugin" / "pb").iterdir()
    }


def test_all_modules_load_in_one_process_without_a_warning():
    names = [f"gpuplugin.pb.{module}_{suffix}" for module in MODULES.values() for suffix in ("pb2", "pb2_grpc")]
    program = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *names], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("go_package", MODULES)
def test_definition_is_wire_compatible(go_package):
    upstream = json.loads(UPSTREAM.read_text())["apis"]
    assert upstream.keys() == MODULES.keys()
    module = importlib.import_module(f"gpuplugin.pb.{MODULES[go_package]}_pb2")
    assert surface(module.DESCRIPTOR) == upstream[go_package]


@pytest.mark.go
def test_recorded_upstream_is_what_the_go_types_say():
    try:
        wire = build(ROOT / "tests" / "gocheck" / "wire")
    except GoMissingError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"upstream.json was not compared with the kubelet's own Go types: {error}")
    says = subprocess.run([wire], check=True, capture_output=True, text=True).stdout
    assert json.loads(says) == json.loads(UPSTREAM.read_text()), (
        f'record anew: "$(python tests/gocheck/build.py tests/gocheck/wire)" > {UPSTREAM.relative_to(ROOT)}'
    )


class OneDevice(deviceplugin_grpc.DevicePluginServicer):
    async def GetDevicePluginOptions(self, request, context):  # noqa: N802
        return deviceplugin.DevicePluginOptions(get_preferred_allocation_available=True)

    async def ListAndWatch(self, request, context):  # noqa: N802
        yield deviceplugin.ListAndWatchResponse(devices=[deviceplugin.Device(ID="GPU-0", health="Healthy")])


async def test_servicer_and_stub_meet_on_a_unix_socket(tmp_path):
    server = grpc.aio.server()
    deviceplugin_grpc.add_DevicePluginServicer_to_server(OneDevice(), server)
    server.add_insecure_port(f"unix:{tmp_path}/plugin.sock")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/plugin.sock") as channel:
        stub = deviceplugin_grpc.DevicePluginStub(channel)
        options = await stub.GetDevicePluginOptions(deviceplugin.Empty(), timeout=10)
        lists = [[device.ID for device in answer.devices] async for answer in stub.ListAndWatch(deviceplugin.Empty())]
    await server.stop(grace=None)
    assert options.get_preferred_allocation_available
    assert not options.pre_start_required
    assert lists == [["GPU-0"]]


def surface(file: FileDescriptor) -> dict[str, object]:
    """What a file looks like on the wire, in the shape that tests/gocheck/wire prints."""
    return {
        "services": {
            service.full_name: {
                method.name: {
                    "request": method.input_type.full_name,
                    "response": method.output_type.full_name,
                    "client_streaming": method.client_streaming,
                    "server_streaming": method.server_streaming,
                }
                for method in service.methods
            }
            for service in file.services_by_name.values()
        },
        "messages": {
            message.full_name: {field.name: described(field) for field in message.fields}
            for message in with_nested(file.message_types_by_name.values())
        },
        "enums": {
            enum.full_name: {value.name: value.number for value in enum.values}
            for enum in file.enum_types_by_name.values()
        },
    }


def with_nested(messages: list[Descriptor]) -> list[Descriptor]:
    own = [message for message in messages if not message.GetOptions().map_entry]
    return own + [nested for message in own for nested in with_nested(message.nested_types)]


def described(field: FieldDescriptor) -> dict[str, object]:
    result = {
        "number": field.number,
        "type": type_name(field),
        "label": "repeated" if field.is_repeated else "optional",
        "packed": field.is_packed,
        "presence": field.has_presence,
    }
    oneof = field.containing_oneof
    made_for_optional = oneof is not None and oneof.name == f"_{field.name}"
    if oneof is not None and not made_for_optional:
        result["oneof"] = oneof.name
    return result


def type_name(field: FieldDescriptor) -> str:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return f"map<{type_name(key)}, {type_name(value)}>"
    named = field.message_type or field.enum_type
    if named is not None:
        return named.full_name
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
