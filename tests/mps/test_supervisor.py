"""The supervisor with real processes: clients stay, GPUs have one daemon each, and all is given back as it was."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from gpuplugin.discovery.nvml import ComputeMode
from gpuplugin.mps import report
from gpuplugin.mps.processes import running as running_daemons
from gpuplugin.mps.supervisor import SETTLE_SECONDS
from tests.mps.conftest import GPU, PROC, SHARED, connected, until

EXCLUSIVE = ComputeMode.EXCLUSIVE_PROCESS


async def test_start_gives_limits_mode_and_report(node):
    assert await node.look(node.group(gpus=(0, 2)))
    assert node.report() == report.Report(ready=True, pid=node.pid())
    assert node.modes() == [EXCLUSIVE, 0, EXCLUSIVE, 0, 0, 0, 0, 0]
    assert sorted(node.commands()) == [
        "set_default_active_thread_percentage 25",
        *(f"set_default_device_pinned_mem_limit {gpu} 20480M" for gpu in sorted((node.uuids[0], node.uuids[2]))),
    ]
    [running] = running_daemons(PROC, str(node.root)).values()
    assert running.gpus == {node.uuids[0], node.uuids[2]}


async def test_a_supervisor_that_was_killed_takes_its_daemons_up_again(node):
    await node.look(node.group())
    pid = node.pid()
    with connected(node) as client:
        node.killed()
        assert node.report().ready  # the daemon itself stands behind it
        assert await node.look(node.group())
        assert client.lives
    assert node.pid() == pid
    assert node.violations == ""


async def test_a_daemon_that_closes_what_it_inherits_is_not_trusted_without_a_supervisor(node):
    node.environment["MPS_STANDIN_CLOSES"] = "1"
    await node.look(node.group())
    with connected(node) as client:
        node.killed()
        assert "does not run" in node.report().reason
        assert await node.look(node.group())
        assert node.report().ready
        assert client.lives


async def test_limits_change_without_a_restart(node):
    await node.look(node.group(clients=4))
    with connected(node) as client:
        await node.look(node.group(clients=8))
        assert client.lives
    assert node.commands()[-2:] == [
        f"set_default_device_pinned_mem_limit {node.uuids[0]} 10240M",
        "set_default_active_thread_percentage 12",
    ]
    node.killed()
    await node.look(node.group(clients=2))
    assert node.commands()[-1] == "set_default_active_thread_percentage 50"


async def test_other_gpus_wait_for_the_clients_to_leave(node):
    await node.look(node.group(gpus=(0,)))
    first = node.pid()
    wanted = node.group(gpus=(0, 1))
    with connected(node) as client:
        for _ in range(3):
            assert not await node.look(wanted)
            node.now += SETTLE_SECONDS
        assert f"does not serve {node.uuids[1]}; it is replaced when its 1 clients have left" in node.report().reason
        assert client.lives
        assert node.pid() == first
    await node.settle(wanted)
    assert node.pid() != first
    assert node.modes()[:2] == [EXCLUSIVE, EXCLUSIVE]


async def test_nobody_is_ended_before_the_world_was_told(node):
    await node.look(node.group())
    first = node.pid()
    assert not await node.look()
    node.now += SETTLE_SECONDS - 0.1
    await node.look()
    assert node.pid() == first
    assert "is wanted no more" in node.report().reason
    node.now += 0.1
    await node.look()
    assert node.pids() == {}
    assert node.modes() == [0] * 8
    assert node.report() is None


async def test_a_gpu_that_changes_its_resource_has_one_daemon_at_any_time(node):
    await node.look(node.group(GPU, (0, 1)))
    with connected(node) as client:
        wanted = (node.group(GPU, (0,)), node.group(SHARED, (1,)))
        await node.look(*wanted)
        assert "still served by the MPS control daemon of nvidia.com/gpu" in node.report(SHARED).reason
        assert client.lives
    await node.settle(*wanted)
    assert node.pids().keys() == {GPU, SHARED}
    assert node.violations == ""


async def test_a_daemon_that_dies_is_started_again_after_a_rest_that_grows(node):
    await node.look(node.group())
    rests = []
    for _ in range(4):
        os.kill(node.pid(), signal.SIGKILL)
        until(lambda: not node.pids(), "it has died")
        began = node.now
        assert not await node.look(node.group())
        assert node.report().reason == "the MPS control daemon has ended by itself, and its clients with it"
        while not await node.look(node.group()):
            node.now += 0.5
        rests.append(node.now - began)
    assert rests == [1, 2, 4, 8]
    assert node.report() == report.Report(ready=True, pid=node.pid())


async def test_the_end_of_a_daemon_wakes_the_supervisor(node):
    await node.look(node.group())
    os.kill(node.pid(), signal.SIGKILL)
    async with asyncio.timeout(20):
        while not node.woken:
            await asyncio.sleep(0.01)
    assert node.woken == ["an MPS control daemon has ended"]


async def test_a_program_that_refuses_is_quoted(node, folder):
    node.environment["MPS_STANDIN_FAILS"] = str(folder / "fails")
    (folder / "fails").touch()
    assert not await node.look(node.group())
    assert "nvidia-cuda-mps-control -d: Failed to start: told to" in node.report().reason
    (folder / "fails").unlink()
    await node.settle(node.group())


async def test_a_gpu_whose_mode_cannot_be_set_is_said(node):
    node.host.state.fail("nvmlDeviceSetComputeMode", 4)
    assert not await node.look(node.group())
    assert "nvmlDeviceSetComputeMode" in node.report().reason
    assert node.pids() == {}
    node.host.state.heal()
    await node.settle(node.group())


async def test_a_mode_of_before_comes_back_and_one_set_meanwhile_stays(node):
    node.host.state.set_compute_mode(0, ComputeMode.PROHIBITED)
    await node.look(node.group(gpus=(0, 1, 2)))
    node.host.state.set_compute_mode(2, ComputeMode.PROHIBITED)
    node.killed()
    await node.supervisor.stop()
    assert node.modes()[:3] == [ComputeMode.PROHIBITED, 0, ComputeMode.PROHIBITED]
    assert node.pids() == {}


async def test_a_mode_that_cannot_be_given_back_is_tried_again(node):
    await node.look(node.group())
    node.host.state.fail("nvmlDeviceSetComputeMode", 999, times=1)
    await node.supervisor.stop()
    assert node.modes()[0] == EXCLUSIVE
    node.killed()
    await node.look()
    assert node.modes()[0] == 0


async def test_stop_cuts_clients_off_after_a_time(node, monkeypatch):
    monkeypatch.setattr("gpuplugin.mps.supervisor.ENDING_SECONDS", 1)
    await node.look(node.group(GPU, (0,)), node.group(SHARED, (1,)))
    with connected(node) as client:
        await node.supervisor.stop()
        assert not client.lives
    assert node.pids() == {}
    assert node.modes() == [0] * 8
    assert node.reports() == {}


async def test_what_a_dead_daemon_left_is_no_obstacle_and_the_folder_stays(node):
    pipe = node.root / GPU / "pipe"
    await node.look(node.group())
    inode = pipe.stat().st_ino
    os.kill(node.pid(), signal.SIGKILL)
    until(lambda: not node.pids(), "it has died")
    assert (pipe / "control").exists()
    await node.settle(node.group())
    assert pipe.stat().st_ino == inode


async def test_a_control_daemon_that_is_not_seen_is_used_and_left_alone(node, folder, tmp_path):
    """As in another pod's process namespace: it answers, and is in no /proc of ours."""
    empty = tmp_path / "proc"
    empty.mkdir()
    await node.look(node.group())
    pid = node.pid()
    node.supervisor._where.proc = empty
    node.killed()
    node.supervisor._where.proc = empty
    assert await node.look(node.group())
    assert node.report().ready
    assert "another program's" in node.report().reason
    assert node.pid() == pid
    assert node.violations == ""


async def test_reports_of_an_earlier_supervisor_do_not_outlive_what_they_speak_of(node):
    await node.look(node.group())
    os.kill(node.pid(), signal.SIGKILL)
    until(lambda: not node.pids(), "it has died")
    node.killed()
    assert "does not run" in node.report().reason
    await node.look()
    assert node.reports() == {}
    assert node.modes() == [0] * 8


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "example.com/odd_name.shared"])
async def test_folders_are_passable_for_users_that_are_not_root(node, resource):
    await node.look(node.group(resource))
    for folder in (node.root, node.root / resource, node.root / resource / "pipe"):
        assert folder.stat().st_mode & 0o755 == 0o755
