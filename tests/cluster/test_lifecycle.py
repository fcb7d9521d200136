"""That the cluster comes and goes without a trace, keeps off what is not its own, and says why where it cannot be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from onenode import Cluster, Component
from onenode.errors import NotInTimeError, OccupiedError
from onenode.layout import KUBELET_FOLDER, LINK
from onenode.machine import CGROUPS
from onenode.pods import busybox_pod
from onenode.processes import Processes, is_alive
from onenode.traces import note_machine

ONE_TEST = Path(__file__).parent / "test_cluster.py"


def traces(cluster: Cluster) -> dict[str, object]:
    """Whatever of a node can be seen on the machine; empty values where there is nothing."""
    state = str(cluster.layout.state)
    processes = [
        line
        for process in Path("/proc").glob("[0-9]*")
        if state in (line := _command_line(process)) and "containerd" in line
    ]
    return {
        "processes": processes,
        "cgroups": [*CGROUPS.glob("kubepods"), *CGROUPS.glob("*/kubepods")],
        "mounts": [
            line for line in Path("/proc/mounts").read_text().splitlines() if state in line or "kubelet" in line
        ],
        "link": [LINK] if Path("/sys/class/net", LINK).exists() else [],
        "kubelet's folder": [KUBELET_FOLDER] if KUBELET_FOLDER.exists() else [],
        "state": [entry for entry in cluster.layout.state.iterdir() if entry != cluster.layout.logs],
    }


def _command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:
        return ""


@pytest.mark.cluster
def test_down_after_a_crash_leaves_nothing(cluster: Cluster):
    kept = cluster.is_kept
    cluster.api.apply(busybox_pod("left"))
    cluster.wait_for_phase("left", "Running")
    before = traces(cluster)
    assert all(before[what] for what in ("processes", "cgroups", "link", "kubelet's folder", "state"))
    changed = Path("/proc/sys/kernel/panic_on_oops").read_text()
    for component in Component:
        pid = cluster.pid(component)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    cluster.down()
    assert {what: seen for what, seen in traces(cluster).items() if seen} == {}
    assert Path("/proc/sys/kernel/panic_on_oops").read_text() != changed
    cluster.up()
    if kept:
        cluster.keep()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster that was never started, on a machine that lacks nothing, with a kubelet's folder in `tmp_path`."""
    folder = tmp_path / "kubelet"
    folder.mkdir()
    monkeypatch.setattr("onenode.cluster.missing", tuple)
    monkeypatch.setattr("onenode.cluster.KUBELET_FOLDER", folder)
    monkeypatch.setattr("onenode.traces.KUBELET_FOLDER", folder)
    monkeypatch.setattr("onenode.traces.KUBELET_OWNER", folder / ".owner")
    return Cluster(state=tmp_path / "state")


def test_another_kubelets_folder_is_refused_and_left_alone(elsewhere: Cluster, tmp_path: Path):
    theirs = tmp_path / "kubelet" / "cpu_manager_state"
    theirs.write_text("{}")
    with pytest.raises(OccupiedError, match="is another kubelet's"):
        elsewhere.up()
    elsewhere.down()
    assert theirs.read_text() == "{}"
    assert not elsewhere.is_running


def test_another_clusters_folder_is_refused_with_the_way_out(elsewhere: Cluster, tmp_path: Path):
    (tmp_path / "kubelet" / ".owner").write_text("/tmp/other")
    with pytest.raises(OccupiedError, match=r"STATE=/tmp/other python tests/cluster/rig\.py down"):
        elsewhere.up()


def test_machine_is_noted_once_so_that_a_nodes_own_changes_are_never_taken_for_it(elsewhere: Cluster):
    note_machine(elsewhere.layout)
    note = elsewhere.layout.state / "machine-before.json"
    note.write_text('{"sysctls": {}, "absent": []}')
    note_machine(elsewhere.layout)
    assert note.read_text() == '{"sysctls": {}, "absent": []}'


def test_place_is_one_cluster_at_a_time(elsewhere: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("onenode.cluster.LOCK", tmp_path / "lock")
    with elsewhere.reserved(), pytest.raises(OccupiedError), elsewhere.reserved(patience=0):
        pass
    with elsewhere.reserved(patience=0):
        pass


def test_waiting_ends_with_what_was_seen_last(elsewhere: Cluster):
    nothing: dict[str, bool] = {}
    with pytest.raises(NotInTimeError, match="moon made of cheese: not within 0 s; last seen: KeyError") as caught:
        elsewhere.wait_for(lambda: nothing["cheese"], 0, "moon made of cheese")
    assert isinstance(caught.value.last, KeyError)


def test_process_is_known_again_and_a_reused_number_is_not(tmp_path: Path):
    processes = Processes(tmp_path / "run", tmp_path / "log")
    processes.start("sleeper", ["sleep", "1000"], path=os.environ["PATH"])
    pid = Processes(tmp_path / "run", tmp_path / "log").pid("sleeper")
    assert pid is not None
    (tmp_path / "run" / "other").write_text(f"{pid} 1")
    assert processes.pid("other") is None
    processes.stop("sleeper")
    assert processes.pid("sleeper") is None
    assert not is_alive(pid)


@pytest.mark.parametrize(("ci", "outcome"), [("", "skipped"), ("true", "error")])
def test_machine_that_lacks_something_says_what_and_what_was_left_out(tmp_path: Path, ci: str, outcome: str):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", ONE_TEST, "-k", "test_unknown_image"],
        env={"PATH": str(tmp_path), "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )
    summary = done.stdout.splitlines()[-1]
    assert f"1 {outcome}" in summary, done.stdout + done.stderr
    assert "left out, the tests on a real Kubernetes" in done.stdout
    assert "no Go (install Go" in done.stdout
    assert done.returncode == (1 if ci else 0)
