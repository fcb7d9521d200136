"""What is written of a claim's devices, once, and that nobody waits for it."""

import asyncio

import msgspec
from msgspec.structs import replace

from dra.status import DeviceStatus
from gpuplugin.errors import KubeForbidden, KubeNotFound
from gpuplugin.kube.objects import AllocatedDeviceStatus, ResourceClaim
from tests.dra.claims import DRIVER, POOL, claim, device, gpu


class Api:
    def __init__(self, *outcomes):
        self.outcomes, self.written = list(outcomes), []
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def set_claim_devices(self, claim, devices, *, patience=None):
        await self.go_on.wait()
        if self.outcomes and (error := self.outcomes.pop(0)):
            raise error
        self.written.append((claim.metadata.name, tuple(devices)))


async def at_rest(status):
    await asyncio.gather(*status._writing.values(), return_exceptions=True)
    await asyncio.sleep(0)
    assert status._writing == {}


async def test_facts_of_our_devices_are_written_and_no_others():
    api = Api()
    status = DeviceStatus(DRIVER, api)
    one = claim("one", 2)
    allocation = one.status.allocation
    nic = replace(allocation.devices.results[0], driver="nic.example.com", device="nic-0")
    devices = replace(allocation.devices, results=(nic, *allocation.devices.results))
    one = replace(one, status=replace(one.status, allocation=replace(allocation, devices=devices)))
    status.tell(one, (device(2),))
    await at_rest(status)
    [(name, [written])] = api.written
    assert (name, written.driver, written.pool, written.device) == ("one", DRIVER, POOL, "gpu-2")
    assert written.data == {"uuid": gpu(2), "pciBusID": "0000:02:00.0", "nvlinkIsland": "island-0"}


async def test_what_is_said_already_is_not_written_again():
    api = Api()
    status = DeviceStatus(DRIVER, api)
    one = claim("one", 2)
    said = AllocatedDeviceStatus(driver=DRIVER, pool=POOL, device="gpu-2", data=device(2).facts)
    status.tell(replace(one, status=replace(one.status, devices=(said,))), (device(2),))
    await at_rest(status)
    assert api.written == []


async def test_newer_word_replaces_one_that_is_still_being_written():
    api = Api()
    api.go_on.clear()
    status = DeviceStatus(DRIVER, api)
    status.tell(claim("one", 2), (device(2),))
    await asyncio.sleep(0)
    status.tell(claim("one", 3), (device(3),))
    api.go_on.set()
    await at_rest(status)
    assert [[one.device for one in devices] for _, devices in api.written] == [["gpu-3"]]


async def test_nothing_more_is_written_of_a_claim_that_is_being_taken_back():
    api = Api()
    status = DeviceStatus(DRIVER, api)
    one, other = claim("one", 2), claim("other", 3)
    status.tell(one, (device(2),))
    status.tell(other, (device(3),))
    status.drop(one.metadata.uid)
    status.drop("one that was never told of")
    await at_rest(status)
    assert [name for name, _ in api.written] == ["other"]


async def test_claim_that_is_gone_and_rights_that_are_missing_trouble_nobody():
    about = ("patch", "resourceclaims/status.resource.k8s.io", "team/one")
    api = Api(KubeNotFound(*about, "gone"), KubeForbidden(*about, 403, "no"))
    status = DeviceStatus(DRIVER, api)
    for _ in range(2):
        status.tell(claim("one", 2), (device(2),))
        await at_rest(status)
    assert api.written == []


async def test_device_in_two_requests_is_written_once():
    api = Api()
    status = DeviceStatus(DRIVER, api)
    status.tell(claim("one", 2, 2, admin=True), (device(2), device(2)))
    await at_rest(status)
    [(_, written)] = api.written
    assert [one.device for one in written] == ["gpu-2"]


async def test_closing_gives_up_what_is_being_written():
    api = Api()
    api.go_on.clear()
    status = DeviceStatus(DRIVER, api)
    status.tell(claim("one", 2), (device(2),))
    await status.close()
    await at_rest(status)


async def test_answer_of_a_server_that_says_null_for_no_conditions_is_read():
    device = {"driver": DRIVER, "pool": POOL, "device": "gpu-2", "conditions": None}
    said = msgspec.json.encode({"metadata": {"name": "one"}, "status": {"devices": [device]}})
    [device_status] = msgspec.json.decode(said, type=ResourceClaim).status.devices
    assert not device_status.conditions
