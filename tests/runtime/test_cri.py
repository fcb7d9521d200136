"""What runtimes say of themselves, as read over the CRI."""

import json
from pathlib import Path

import grpc.aio
import pytest

from gpuplugin.errors import RuntimeUnreachable
from gpuplugin.pb import cri_v1_pb2 as api
from gpuplugin.pb import cri_v1_pb2_grpc as rpc
from gpuplugin.runtime.cri import read_status, runtime_status
from gpuplugin.runtime.support import Runtime, Version, newest_spec, same_folder, version

BOTH = ("/etc/cdi", "/var/run/cdi")


def config(**settings):
    return {"config": json.dumps({"containerd": {"runtimes": {}}, **settings}), "golang": '"go1.23"', "words": "OK {"}


SAID = [
    pytest.param(
        "containerd", "v1.7.27", config(enableCDI=False, cdiSpecDirs=list(BOTH)), False, BOTH, "0.7.0", id="1.7, off"
    ),
    pytest.param("containerd", "1.7.29", config(enableCDI=True, cdiSpecDirs=["/x"]), True, ("/x",), "0.8.0", id="1.7"),
    pytest.param("containerd", "v2.1.4", config(enableCDI=True, cdiSpecDirs=[]), True, (), "1.0.0", id="2.1"),
    pytest.param("containerd", "2.4.2", config(cdiSpecDirs=list(BOTH)), True, BOTH, "1.1.0", id="2.4 has no switch"),
    pytest.param("containerd", "1.6.20~ds1", config(), False, None, None, id="1.6 has no CDI"),
    pytest.param("containerd", "v2.1.4", {}, None, None, "1.0.0", id="says nothing"),
    pytest.param(
        "cri-o",
        "1.34.1",
        {"config": json.dumps({"sandboxImage": "pause", "crio": {"CDISpecDirs": list(BOTH)}})},
        True,
        BOTH,
        "1.0.0",
        id="CRI-O",
    ),
    pytest.param("cri-o", "1.28.0", {"config": '{"sandboxImage": "pause"}'}, True, None, None, id="an older CRI-O"),
    pytest.param("docker", "28.0.0", {}, None, None, None, id="one that is not known"),
]


@pytest.mark.parametrize(("name", "release", "info", "cdi", "folders", "spec"), SAID)
def test_what_is_said_is_understood(name, release, info, cdi, folders, spec):
    status = read_status(name, release, info)
    assert (status.cdi, status.folders, status.newest_spec) == (cdi, folders, spec)
    assert status.version == release


class Speaking(rpc.RuntimeServiceServicer):
    async def Version(self, request, context):  # noqa: N802 -- gRPC's name
        return api.VersionResponse(runtime_name="cri-o", runtime_version="1.34.1")

    async def Status(self, request, context):  # noqa: N802 -- gRPC's name
        info = {"config": '{"crio": {"CDISpecDirs": ["/etc/cdi"]}}'} if request.verbose else {}
        return api.StatusResponse(info=info)


async def test_it_is_asked_over_a_socket(tmp_path):
    server = grpc.aio.server()
    rpc.add_RuntimeServiceServicer_to_server(Speaking(), server)
    server.add_insecure_port(f"unix:{tmp_path}/s")
    await server.start()
    try:
        status = await runtime_status(tmp_path / "s")
    finally:
        await server.stop(None)
    assert (status.runtime, status.release, status.folders) == (Runtime.CRIO, Version(1, 34, 1), ("/etc/cdi",))


async def test_a_containerd_without_its_cri_is_said_to_be_dockers(tmp_path):
    server = grpc.aio.server()
    server.add_insecure_port(f"unix:{tmp_path}/s")
    await server.start()
    try:
        with pytest.raises(RuntimeUnreachable, match=r"UNIMPLEMENTED.*serves Docker, not Kubernetes") as refused:
            await runtime_status(tmp_path / "s")
    finally:
        await server.stop(None)
    assert refused.value.sockets == (tmp_path / "s",)


async def test_a_socket_that_nobody_listens_at_is_said():
    with pytest.raises(RuntimeUnreachable, match=r"^/nowhere/s: UNAVAILABLE: .*is a runtime running"):
        await runtime_status(Path("/nowhere/s"))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("v1.7.27", Version(1, 7, 27)),
        ("Docker version 28.2.2, build e6534b4", Version(28, 2, 2)),
        ("podman version 5.6", Version(5, 6, 0)),
        ("2.0.0-rc.1", Version(2, 0, 0)),
        ("devel", None),
    ],
)
def test_a_version_is_found_in_what_programs_print(text, read):
    assert version(text) == read


@pytest.mark.parametrize(
    ("runtime", "release", "spec"),
    [
        (Runtime.CONTAINERD, Version(2, 2, 0), "1.0.0"),
        (Runtime.CONTAINERD, Version(2, 2, 1), "1.1.0"),
        (Runtime.PODMAN, Version(4, 3, 1), "0.5.0"),
        (Runtime.PODMAN, Version(3, 4, 0), None),
        (Runtime.DOCKER, Version(25, 0, 0), "0.6.0"),
    ],
)
def test_the_newest_document_follows_from_the_release(runtime, release, spec):
    assert newest_spec(runtime, release) == spec


def test_run_is_var_run():
    assert same_folder("/run/cdi", "/var/run/cdi/")
    assert not same_folder("/run/cdi", "/etc/cdi")
    assert not same_folder("/var/cdi", "/cdi")
