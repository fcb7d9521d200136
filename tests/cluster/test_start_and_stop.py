"""How the daemon begins and ends on a real node: what it says, what it leaves, what goes on without it."""

from __future__ import annotations

import json
import signal

import pytest
from gpunode import CDI_FOLDER, SOCKETS, GpuNode

pytestmark = pytest.mark.cluster

DOCUMENT = CDI_FOLDER / "gpuplugin.io-gpu.json"


def test_end_by_sigterm_takes_the_gpus_off_the_node_and_leaves_pods_alone(gpus: GpuNode):
    pod = gpus.pod("holds", 2)
    inside = gpus.in_container(pod)
    assert gpus.stop(signal.SIGTERM) == 0
    assert list(SOCKETS.glob("gpuplugin-*")) == []
    assert gpus.said("stopped")
    gpus.wait_allocatable(0)
    assert gpus.in_container(pod) == gpus.held()["holds"] == inside
    assert gpus.cluster.exec("holds", "echo", "alive") == "alive\n"
    gpus.start_ready()
    assert gpus.in_container(pod) == gpus.held()["holds"] == inside


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("MIG_STRATEGY", "sometimes", "flags.migStrategy: 'sometimes' is not allowed; allowed: one of none, single"),
        ("GPUPLUGIN_HEALTH_PROBE_SECONDS", "0", "health.probeSeconds: 0 is not allowed; allowed: a number from 0.1"),
    ],
)
def test_bad_configuration_ends_the_daemon_with_the_key_and_what_is_allowed(
    bare_node: GpuNode, variable: str, value: str, text: str
):
    bare_node.start(**{variable: value})
    assert bare_node.wait_end() == 2
    (line,) = [entry["text"] for entry in bare_node.log()]
    assert f"environment {variable}: {text}" in line
    assert not DOCUMENT.exists()


def test_full_file_system_withholds_gpus_with_the_reason_until_there_is_room(bare_node: GpuNode):
    """Otherwise a container would start without its GPU, or with what an older document says."""
    room = CDI_FOLDER / "not-ours"
    CDI_FOLDER.mkdir(exist_ok=True)
    bare_node.cluster.enter("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(CDI_FOLDER))
    try:
        bare_node.cluster.enter("sh", "-c", f"cat /dev/zero >{room} || true")
        bare_node.start(GPUPLUGIN_RESCAN_SECONDS="1")
        told = bare_node.wait_said("withdrawn")
        assert told["gpus"] == list(range(8))
        assert "No space left on device; free space" in told["reason"]
        bare_node.cluster.enter("rm", str(room))
        bare_node.wait_watched()
        assert len(json.loads(bare_node.cluster.enter("cat", str(DOCUMENT)))["devices"]) == 8
    finally:
        bare_node.cluster.enter("umount", "--lazy", str(CDI_FOLDER))


def test_document_that_somebody_deleted_is_there_again_for_the_next_pod(gpus: GpuNode):
    before = DOCUMENT.read_bytes()
    DOCUMENT.unlink()
    assert len(gpus.in_container(gpus.pod("after", 1))) == 1
    assert DOCUMENT.read_bytes() == before
