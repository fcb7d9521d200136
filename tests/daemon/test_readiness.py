"""What kubelet's probes are told, and that they are told it by a daemon that is alive."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import sys

from gpuplugin.daemon.features import access, capabilities, has_gpus_on_bus
from tests.daemon.conftest import SOON


async def probe(bench, verb: str) -> tuple[int, str]:
    """Run a probe as kubelet does, in a process of its own; its status and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpuplugin", verb),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "GPUPLUGIN_PATHS_STATUS": str(bench.folder / "own" / "status.sock")},
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode().strip()


async def until_probe(bench, status: int, text: str) -> None:
    said = None
    async with asyncio.timeout(SOON):
        while said is None or said[0] != status or text not in said[1]:
            said = await probe(bench, "ready")


async def test_ready_says_what_is_offered_and_the_folder_is_ours_alone(bench):
    own = bench.folder / "own"
    async with bench.daemon(paths_status=str(own / "status.sock")):
        await bench.usable(8)
        await until_probe(bench, 0, "nvidia.com/gpu: 8 of 8 usable")
        assert await probe(bench, "alive") == (0, "")
        assert stat.S_IMODE(own.stat().st_mode) == 0o700
        assert stat.S_IMODE((own / "status.sock").stat().st_mode) == 0o600
        bench.state.xid(3, 79)
        await until_probe(bench, 0, "nvidia.com/gpu: 7 of 8 usable")
    status, said = await probe(bench, "alive")
    assert status == 1
    assert "does not answer" in said
    assert list(own.iterdir()) == []


async def test_a_driver_that_is_not_there_is_the_reason_for_not_being_ready(bench):
    bench.state.driver(False)
    async with bench.daemon(paths_status=str(bench.folder / "own" / "status.sock")):
        await until_probe(bench, 1, "the GPUs cannot be looked at: ")
        assert (await probe(bench, "alive"))[0] == 0
        bench.state.driver(True)
        await until_probe(bench, 0, "8 of 8 usable")


async def test_a_machine_without_a_gpu_is_ready_to_offer_nothing(bench):
    bench.state.driver(False)
    for device in (bench.machine.root / "sys/bus/pci/devices").iterdir():
        device.unlink()
    async with bench.daemon(paths_status=str(bench.folder / "own" / "status.sock")):
        await until_probe(bench, 0, "no NVIDIA GPU on this machine's PCI bus")


async def test_a_kubelet_that_is_not_there_is_the_reason_for_not_being_ready(bench):
    await bench.kubelet.stop()
    async with bench.daemon(paths_status=str(bench.folder / "own" / "status.sock")):
        await until_probe(bench, 1, "nvidia.com/gpu is not registered with kubelet: ")


async def test_a_socket_that_a_killed_daemon_left_is_no_hindrance(bench):
    own = bench.folder / "own"
    own.mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(own / "status.sock"))
    async with bench.daemon(paths_status=str(own / "status.sock")):
        await until_probe(bench, 0, "8 of 8 usable")


async def test_a_document_goes_with_the_daemon_only_where_it_shall(bench):
    async with bench.daemon():
        await bench.usable(8)
    assert bench.cdi.exists()
    async with bench.daemon(cdi_remove_on_stop="true"):
        await bench.usable(8)
    assert not bench.cdi.exists()


async def test_the_bus_tells_of_gpus_without_a_driver(bench, tmp_path):
    assert has_gpus_on_bus(bench.machine.root / "sys")
    assert not has_gpus_on_bus(tmp_path)


def test_access_tells_a_refusal_from_a_device_that_is_not_there(tmp_path):
    assert access(tmp_path / "none") == "missing"
    assert capabilities()
