"""The CDI document of the machine's own driver: every path that it names is there. Reads only."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from cdi.build import build, verify
from gpuplugin.discovery.driver_root import DriverRootSearch
from gpuplugin.discovery.nvml_real import RealNvml
from gpuplugin.discovery.nvml_thread import NvmlThread
from gpuplugin.discovery.observe import observe
from gpuplugin.discovery.places import Place
from gpuplugin.discovery.sysfs import Sysfs
from gpuplugin.errors import NvmlUnavailable

pytestmark = pytest.mark.hardware


async def look():
    async with NvmlThread(RealNvml()) as thread:
        try:
            return await observe(thread, Sysfs(), None)
        finally:
            await thread.call(thread.nvml.close)


@pytest.fixture
def inventory():
    try:
        found = asyncio.run(look())
    except NvmlUnavailable as unavailable:
        pytest.skip(str(unavailable))
    if not found.gpus:
        pytest.skip("the driver counts no GPU")
    return found


def test_every_gpu_has_a_device_and_every_path_is_there(inventory):
    search = DriverRootSearch(Place(), Place(), Path("/sys"), Path("/proc"))
    built = build(inventory.gpus, search.look(inventory.driver.version, inventory.gpus))
    assert built.refused == {}
    assert {gpu.uuid for gpu in inventory.gpus} <= {device.name for device in built.spec.devices}
    assert verify(built.spec, os.path.exists) == ()
