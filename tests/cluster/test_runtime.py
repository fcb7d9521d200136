"""`gpuplugin runtime` and the containerd of the cluster: the one that kubelet uses, and one by itself to be changed."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from onenode import Cluster

from gpuplugin.__main__ import main
from gpuplugin.runtime import containerd as decisions
from gpuplugin.runtime.document import Source
from tests.runtime.lone_containerd import LoneContainerd

pytestmark = pytest.mark.cluster
CRI = "io.containerd.cri.v1.runtime"


@pytest.fixture
def lone(cluster: Cluster) -> Iterator[LoneContainerd]:
    with tempfile.TemporaryDirectory(prefix="gpuplugin-") as folder:  # a socket's path must be short
        yield LoneContainerd(cluster.binaries / "containerd", Path(folder), 3, CRI)


def runtime(verb: str, containerd: LoneContainerd) -> int:
    return main(["runtime", verb, f"--socket={containerd.socket}", f"--config={containerd.config}"])


def test_kubelets_containerd_says_that_it_takes_our_devices(cluster: Cluster, capsys):
    socket, config = cluster.layout.containerd_socket, cluster.layout.containerd_config
    assert main(["runtime", "check", f"--socket={socket}", f"--config={config}", "--json"]) == 0
    (verdict,) = json.loads(capsys.readouterr().out)["runtimes"]
    assert (verdict["name"], verdict["asked"], verdict["cdi"]) == ("containerd", True, True)
    assert "/var/run/cdi" in verdict["folders"]


def test_a_folder_that_is_not_looked_in_is_added(lone: LoneContainerd):
    lone.append("enable_selinux = false # keep\ncdi_spec_dirs = ['/etc/cdi']\n")
    before = lone.config.read_text()
    with lone.running() as status:
        assert status.folders == ("/etc/cdi",)
        assert runtime("check", lone) == 1
        assert runtime("configure", lone) == 0
    assert lone.config.read_text() == before.replace("['/etc/cdi']", "['/etc/cdi', \"/var/run/cdi\"]")
    assert "cdi_spec_dirs = ['/etc/cdi', '/var/run/cdi']" in lone.dump()
    with lone.running() as status:
        assert status.folders == ("/etc/cdi", "/var/run/cdi")
        assert runtime("check", lone) == 0
        assert runtime("configure", lone) == 0


def test_its_own_default_configuration_is_edited_and_accepted(lone: LoneContainerd):
    command = [lone.binary, "config", "default"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    decision = decisions.decide([Source(lone.config, text)], None, ("/srv/cdi",))
    (edit,) = decision.edits
    assert len(edit.after.splitlines()) == len(text.splitlines())
    lone.config.write_text(edit.after)
    assert "cdi_spec_dirs = ['/etc/cdi', '/var/run/cdi', '/srv/cdi']" in lone.dump()
