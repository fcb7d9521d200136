"""The daemon's CDI document follows the driver's files by itself: upgrade, MIG, nodes that come and go."""

import asyncio
import json
import socket
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cdi.names import CLAIM_PREFIX
from tests.daemon.conftest import SOON

UPGRADED = "590.48.01"


async def until(condition, what):
    try:
        async with asyncio.timeout(SOON):
            while not condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise TimeoutError(what) from None


def devices(bench):
    return [device["name"] for device in json.loads(bench.cdi.read_text())["devices"]] if bench.cdi.exists() else []


def libraries(bench):
    mounts = json.loads(bench.cdi.read_text())["containerEdits"]["mounts"] if bench.cdi.exists() else []
    return {Path(mount["hostPath"]).name for mount in mounts if "libcuda" in mount["hostPath"]}


def places(bench):
    return {mount["containerPath"] for mount in json.loads(bench.cdi.read_text())["containerEdits"]["mounts"]}


def upgrade(bench):
    """Replace every file of the driver as a package does, and load the new module."""
    old = bench.state.snapshot.driver.version
    for path in list((bench.machine.root / "usr").rglob(f"*{old}*")):
        if path.is_file() and not path.is_symlink():
            path.rename(path.with_name(path.name.replace(old, UPGRADED)))
    version = bench.machine.root / "proc/driver/nvidia/version"
    version.write_text(version.read_text().replace(old, UPGRADED))
    bench.state.change(lambda now: replace(now, driver=replace(now.driver, version=UPGRADED)))


# No timer looks within these tests: what happens, happens because the driver's files have changed.
SLOW = {"health_probe_seconds": "3600", "rescan_seconds": "86400"}


async def test_a_driver_upgrade_is_followed(bench):
    async with bench.daemon(**SLOW):
        await bench.usable(8)
        assert libraries(bench) == {"libcuda.so.580.95.05", "libcudadebugger.so.580.95.05"}
        upgrade(bench)
        await until(
            lambda: libraries(bench) == {f"libcuda.so.{UPGRADED}", f"libcudadebugger.so.{UPGRADED}"}, "rewritten"
        )
        await bench.usable(8)


async def test_a_node_that_goes_takes_its_gpu_out_and_one_that_comes_brings_it_back(bench):
    node = bench.machine.root / "dev/nvidia3"
    uuid = bench.state.snapshot.gpus[3].uuid
    with capture_logs() as logs:
        async with bench.daemon(**SLOW):
            await bench.usable(8)
            node.unlink()
            await bench.usable(7)
            assert uuid not in devices(bench)
            node.touch()
            await bench.usable(8)
            assert uuid in devices(bench)
    (withdrawn,) = [line for line in logs if line["event"] == "withdrawn"]
    assert "dev/nvidia3 is missing on the host; make it there with: nvidia-modprobe -c 3" in withdrawn["reason"]


async def test_libraries_that_go_and_come_do_the_same_for_all(bench):
    library = next((bench.machine.root / "usr/lib").rglob("libcuda.so.580*"))
    content = library.read_bytes()
    async with bench.daemon(**SLOW):
        await bench.usable(8)
        library.unlink()
        await bench.usable(0)
        assert not bench.cdi.exists()
        library.write_bytes(content)
        await bench.usable(8)
        assert len(devices(bench)) == 8


async def test_mig_devices_come_and_go_with_their_instances(bench):
    bench.machine.mig_mode(2, enabled=True)
    async with bench.daemon(**SLOW):
        await until(lambda: len(devices(bench)) == 8, "the GPUs")
        made = bench.machine.mig_create(2, "3g.40gb")
        await until(lambda: made.uuid in devices(bench), "the MIG device")
        bench.machine.mig_destroy(2, made.slot)
        await until(lambda: made.uuid not in devices(bench), "no MIG device")


async def test_files_of_claims_and_of_others_stay(bench):
    folder = bench.cdi.parent
    folder.mkdir()
    kept = [folder / f"{CLAIM_PREFIX}0b5c.json", folder / "nvidia.json"]
    for path in kept:
        path.write_text("{}")
    stale = folder / "gpuplugin.io-old.json"
    stale.write_text("{}")
    async with bench.daemon(**SLOW):
        await bench.usable(8)
        assert not stale.exists()
        assert all(path.exists() for path in kept)


async def test_hooks_are_run_only_where_asked_for_and_only_while_they_are_there(bench):
    program = bench.machine.root / "usr/bin/nvidia-cdi-hook"
    async with bench.daemon(nvidia_cdi_hook_path=str(program), cdi_disable_hooks="update-ldcache", **SLOW):
        await bench.usable(0)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        await bench.usable(8)
        hooks = json.loads(bench.cdi.read_text())["containerEdits"]["hooks"]
        assert [(hook["path"], hook["args"][1]) for hook in hooks] == [
            (str(program), "enable-cuda-compat"),
            (str(program), "disable-device-node-modification"),
        ]
        program.unlink()  # nothing but that it is named in the document has the daemon look
        await bench.usable(0)


async def test_what_is_wanted_beside_gpus_is_in_the_document_where_the_host_has_it(bench):
    with capture_logs() as logs:
        async with bench.daemon(mofed_enabled="true", gds_enabled="true", **SLOW):
            await bench.usable(8)
            assert {"/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"} <= places(bench)
            (bench.machine.root / "dev/nvidia-fs0").touch()
            await until(lambda: "/dev/nvidia-fs0" in places(bench), "the node that came later")
    assert [line["reason"] for line in logs if line["event"] == "CDI"] == [
        f"gds: {bench.machine.root}/dev/nvidia-fs0 is not on the host; load the kernel module nvidia-fs"
    ]


async def test_imex_channels_may_be_required(bench):
    channel = bench.machine.root / "dev/nvidia-caps-imex-channels/channel0"
    async with bench.daemon(imex_channel_ids="0", imex_required="true", **SLOW):
        await bench.usable(0)
        channel.parent.mkdir()
        channel.touch()
        await bench.usable(8)


def sockets(bench):
    return sorted((bench.folder / "device-plugins").glob("gpuplugin-gpu-*.sock"))


@pytest.mark.parametrize("first_to_end", ["older", "newer"])
async def test_of_two_daemons_the_one_that_ends_leaves_the_document_to_the_other(bench, first_to_end):
    async with AsyncExitStack() as older, AsyncExitStack() as newer:
        await older.enter_async_context(bench.daemon(cdi_remove_on_stop="true", **SLOW))
        await bench.usable(8)
        await newer.enter_async_context(bench.daemon(cdi_remove_on_stop="true", **SLOW))
        await until(lambda: len(sockets(bench)) == 2, "both serve")
        last = sockets(bench)[0 if first_to_end == "newer" else 1]
        before = bench.cdi.stat()
        await {"older": older, "newer": newer}[first_to_end].aclose()
        assert sockets(bench) == [last]
        assert bench.cdi.stat() == before  # the same file: it was never away
    assert not bench.cdi.exists()


@pytest.mark.parametrize("where", ["device-plugins", "plugins_registry"])
@pytest.mark.parametrize("alive", [True, False])
async def test_an_instance_that_serves_anything_keeps_the_document_and_a_killed_one_does_not(bench, where, alive):
    path = bench.folder / where / "gpuplugin-other-1.sock"
    path.parent.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as other:
        async with bench.daemon(cdi_remove_on_stop="true", **SLOW):
            await bench.usable(8)
            other.bind(str(path))
            if alive:
                other.listen()
        assert bench.cdi.exists() is alive


async def test_a_document_that_somebody_deletes_is_there_again_at_once(bench):
    async with bench.daemon(**SLOW):
        await bench.usable(8)
        right = bench.cdi.read_bytes()
        bench.cdi.unlink()
        await until(bench.cdi.exists, "the document again")
        assert bench.cdi.read_bytes() == right
