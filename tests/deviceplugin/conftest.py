"""A resource of eight devices, and one that is served and registered with a stand-in kubelet."""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuplugin.deviceplugin.registration import Registered
from gpuplugin.deviceplugin.response import Delivery
from gpuplugin.deviceplugin.server import DevicePlugin, Offer
from gpuplugin.model.health import HEALTHY, DeviceHealth, Level
from gpuplugin.model.ids import DeviceId, GpuUuid, NumaId, PciAddress, ResourceName
from gpuplugin.model.inventory import Driver, Gpu, Inventory, PciePath
from gpuplugin.model.links import NvLinks
from gpuplugin.plan.desired import OfferedDevice, OfferedResource
from gpuplugin.topology.allocate import Tables

GPU = ResourceName("nvidia.com/gpu")
DELIVERY = Delivery(frozenset({"cdi-cri", "envvar"}))
LOST = DeviceHealth(Level.UNHEALTHY, "XID 79")


def inventory(count=8):
    def gpu(index):
        return Gpu(
            index=index,
            uuid=GpuUuid(f"GPU-{index}"),
            pci=PciAddress(f"0000:{index:02x}:00.0"),
            minor=index,
            model="NVIDIA H100",
            architecture="hopper",
            memory_bytes=None,
            compute_capability=(9, 0),
            mig=None,
            mig_devices=(),
            fabric=None,
            numa=NumaId(index // 4),
            pcie=PciePath(f"pci0000:{index:02x}"),
        )

    links = NvLinks(tuple((0,) * count for _ in range(count)), (18,) * count)
    return Inventory(1, Driver("580", "13", (13, 0)), tuple(map(gpu, range(count))), (), links, (), ())


def resource(unhealthy=(), count=8):
    return OfferedResource(
        GPU,
        tuple(
            OfferedDevice(
                DeviceId(f"GPU-{i}"), GpuUuid(f"GPU-{i}"), i, i, LOST if i in unhealthy else HEALTHY, (NumaId(i // 4),)
            )
            for i in range(count)
        ),
    )


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, since a socket's path is."""
    made = Path(tempfile.mkdtemp(prefix="gpu"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
async def tables():
    future = asyncio.get_running_loop().create_future()
    future.set_result(Tables.build(inventory()))
    return future


@pytest.fixture
def plugin(tables):
    return DevicePlugin(Offer.of(resource(), tables, DELIVERY))


@asynccontextmanager
async def serving(folder, plugin):
    """Run a Registered beside the test, and end it."""
    served = Registered(folder / "kubelet.sock", GPU, plugin)
    task = asyncio.create_task(served.run())
    try:
        yield served
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def changed(plugin, **changes):
    """Offer the resource with other health."""
    plugin.offers.set(Offer.of(resource(**changes), plugin.offers.value.tables, DELIVERY))
