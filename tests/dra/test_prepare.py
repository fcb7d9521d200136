"""What is prepared, what is refused, and with which words."""

import asyncio
import threading

import pytest
from msgspec import Raw
from msgspec.structs import replace

from dra.devices import NodeDevices
from gpuplugin.discovery.worker import Worker
from gpuplugin.errors import ClaimChanged, DeviceHeld, DeviceNotHere, KubeUnavailable, ParametersRefused
from gpuplugin.kube.objects import AllocationConfiguration, ClaimStatus, OpaqueConfiguration
from gpuplugin.model.holds import Hold, Holder, Owner, Use
from gpuplugin.plan.ledger import Ledger
from tests.dra.claims import KIND, POOL, ApiServer, Node, claim, device, gpu


async def test_prepared_claim_has_its_devices_by_their_names_and_is_recorded(node, api):
    one = claim("one", 2, 3)
    api.put(one)
    record = await node.prepare(one)
    assert [(d.request, d.pool, d.device, d.cdi) for d in record.devices] == [
        ("gpus", POOL, "gpu-2", (f"{KIND}={gpu(2)}",)),
        ("gpus", POOL, "gpu-3", (f"{KIND}={gpu(3)}",)),
    ]
    assert node.records() == {"uid-one": record}
    assert record.completed


async def test_request_of_an_alternative_is_called_by_its_own_name(node, api):
    one = claim("one", 2, request="gpus/large")
    api.put(one)
    assert (await node.prepare(one)).devices[0].request == "gpus"


async def test_preparing_again_gives_the_same_and_writes_nothing(node, api):
    one = claim("one", 2)
    api.put(one)
    first = await node.prepare(one)
    written = stamps(node.folder)
    assert await node.prepare(one) == first
    assert await node.again().prepare(one) == first
    assert stamps(node.folder) == written


def stamps(folder):
    """What differs once a file was written; reading changes the time of access."""
    found = {path: path.stat() for path in folder.iterdir()}
    return {path: (status.st_ino, status.st_mtime_ns, status.st_ctime_ns) for path, status in found.items()}


async def test_prepared_claim_needs_no_api_server_and_a_new_one_does(node, api):
    one, two = claim("one", 2), claim("two", 3)
    api.put(one, two)
    first = await node.prepare(one)
    api.away = True
    assert await node.again().prepare(one) == first
    with pytest.raises(KubeUnavailable):
        await node.prepare(two)
    assert await node.unprepare(one)
    assert node.records() == {}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (claim("one", 2, uid="another"), "another of that name, with UID another"),
        (replace(claim("one", 2), status=ClaimStatus()), "not allocated"),
        (claim("one", 2, driver="nic.example.com"), "none of its devices is of driver gpu.nvidia.com"),
        (claim("one", 2, pool="node-2"), "pool node-2; this node's is node-1"),
    ],
)
async def test_claim_that_is_not_what_kubelet_asks_for_has_no_effect(node, api, found, words):
    api.put(found)
    with pytest.raises(ClaimChanged, match=words):
        await node.prepare(claim("one", 2))
    assert node.records() == {}


async def test_claim_that_is_not_there_is_refused(node):
    with pytest.raises(ClaimChanged, match="none of that name"):
        await node.prepare(claim("one", 2))


async def test_claim_of_another_uid_does_not_get_what_the_old_one_has(node, api):
    old, new = claim("one", 2, uid="old"), claim("one", 3, uid="new")
    api.put(old)
    await node.prepare(old)
    api.put(new)
    with pytest.raises(ClaimChanged):
        await node.prepare(old)
    await node.prepare(new)
    assert set(node.records()) == {"old", "new"}


async def test_unknown_device_and_one_that_cannot_be_given_are_refused_by_name(node, api):
    one = claim("one", 2)
    api.put(one)
    node.devices = NodeDevices({"gpu-2": device(2, "/dev/nvidia2 is missing")})
    with pytest.raises(DeviceNotHere, match=r"gpu-2: GPU-00000002.*nvidia2 is missing"):
        await node.prepare(one)
    node.devices = NodeDevices({})
    with pytest.raises(DeviceNotHere, match="gpu-2: this node has none of that name"):
        await node.prepare(one)
    node.devices = NodeDevices({}, unknown="the GPUs have not been looked at yet")
    with pytest.raises(DeviceNotHere, match="not been looked at"):
        await node.prepare(one)
    assert node.records() == {}


async def test_held_device_is_refused_with_its_holder_until_that_is_unprepared(node, api):
    first, second = claim("first", 2, 3, pod="forced"), claim("second", 3, 4)
    api.put(first, second)
    await node.prepare(first)
    api.drop(first)  # its pod was force-deleted: the claim is gone, and its containers may still run
    with pytest.raises(DeviceHeld) as refused:
        await node.prepare(second)
    assert f"{gpu(3)} is still held by claim team/first (UID uid-first, prepared for pod team/forced)" in str(
        refused.value
    )
    await node.unprepare(first)
    await node.prepare(second)
    assert node.given() == {"second": {"gpu-3", "gpu-4"}}


async def test_device_of_a_claim_that_is_gone_with_its_pods_is_reclaimed(node, api):
    first, second = claim("first", 2, 3), claim("second", 3)
    api.put(first, second)
    await node.prepare(first)
    node.pods_here = set()
    with pytest.raises(DeviceHeld):
        await node.prepare(second)  # there is still such a claim
    api.drop(first)
    await node.prepare(second)
    assert node.given() == {"second": {"gpu-3"}}


async def test_device_of_a_pod_with_device_plugin_is_refused(node, api):
    one = claim("one", 2)
    api.put(one)
    node.held = Ledger((Hold(gpu(2), Holder(Owner.DEVICE_PLUGIN, "team", "old-pod")),))
    with pytest.raises(DeviceHeld, match="pod team/old-pod, which has it from the device plugin"):
        await node.prepare(one)
    node.held = Ledger()
    await node.prepare(one)


async def test_admin_access_goes_beside_any_claim_and_bars_none(node, api):
    first, watch, second = claim("first", 2), claim("watch", *range(8), admin=True), claim("second", 3)
    api.put(first, watch, second)
    for one in (first, watch, second):
        await node.prepare(one)
    assert len(node.records()) == 3
    assert {hold.use for hold in node.checkpoint.ledger.of(gpu(2))} == {Use.EXCLUSIVE, Use.WATCHED}


async def test_shares_go_beside_one_another_and_not_beside_a_whole_device(node, api):
    a, b, whole = claim("a", 2, shares=("s1",)), claim("b", 2, shares=("s2",)), claim("whole", 2)
    api.put(a, b, whole)
    assert (await node.prepare(a)).devices[0].share == "s1"
    await node.prepare(b)
    with pytest.raises(DeviceHeld, match=r"team/a.*team/b"):
        await node.prepare(whole)


async def test_claim_that_was_allocated_anew_gets_the_new_devices(node, api):
    before, after = claim("one", 2), claim("one", 5)
    api.put(before)
    await node.prepare(before)
    api.put(after)
    assert [d.device for d in (await node.prepare(after)).devices] == ["gpu-5"]
    assert node.given() == {"one": {"gpu-5"}}


async def test_claim_that_was_allocated_anew_waits_for_the_pod_that_still_has_its_old_devices(node, api):
    before, after, other = claim("one", 2, pod="forced"), claim("one", 5, pod="next"), claim("other", 2)
    api.put(before, other)
    await node.prepare(before)
    api.put(after)
    node.pods_here = {"uid-forced", "uid-next"}
    with pytest.raises(DeviceHeld, match=f"allocated anew, and pod team/forced still has {gpu(2)}"):
        await node.prepare(after)
    with pytest.raises(DeviceHeld, match="team/one"):
        await node.prepare(other)
    node.pods_here = {"uid-next"}
    await node.prepare(after)
    await node.prepare(other)
    assert node.given() == {"one": {"gpu-5"}, "other": {"gpu-2"}}


async def test_prepared_claim_whose_gpu_was_swapped_is_refused_without_an_api_server_too(node, api):
    one = claim("one", 2)
    api.put(one)
    await node.prepare(one)
    node.devices = NodeDevices({"gpu-2": replace_gpu(device(2), 7)})
    api.away = True
    with pytest.raises(DeviceNotHere, match=f"{gpu(2)}, which the claim has, is not in this machine"):
        await node.prepare(one)


def replace_gpu(one, index):
    return type(one)(one.name, gpu(index), one.cdi, one.pci)


@pytest.mark.parametrize(
    ("parameters", "fine"),
    [
        (b'{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig"}', True),
        (b'{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"MPS"}}', False),
        (b'{"apiVersion":"resource.nvidia.com/v9","kind":"GpuConfig"}', False),
        (b'{"kind":"GpuConfig"}', False),
        (b"[]", False),
    ],
)
async def test_parameters_that_cannot_be_followed_are_refused(node, api, parameters, fine):
    ours = AllocationConfiguration(
        source="FromClass", opaque=OpaqueConfiguration(driver="gpu.nvidia.com", parameters=Raw(parameters))
    )
    others = AllocationConfiguration(
        source="FromClaim", opaque=OpaqueConfiguration(driver="nic.example.com", parameters=Raw(b'{"x": 1}'))
    )
    one = claim("one", 2, config=(ours, others))
    api.put(one)
    if fine:
        await node.prepare(one)
    else:
        with pytest.raises(ParametersRefused, match=r"in the device class for gpu\.nvidia\.com"):
            await node.prepare(one)


async def test_unprepare_during_a_slow_prepare_leaves_nothing(tmp_path):
    slow = SlowApiServer()
    node = Node(tmp_path / "claims", slow)
    one = claim("one", 2)
    slow.put(one)
    preparing = asyncio.create_task(node.prepare(one))
    await slow.asked_for.wait()
    unpreparing = asyncio.create_task(node.unprepare(one))
    await asyncio.sleep(0)
    slow.go_on.set()
    await preparing
    await unpreparing
    assert node.records() == {}
    assert node.preparing._turns == {}


async def test_who_tells_of_claims_hears_when_one_is_over_before_its_devices_are_free(node, api):
    one = claim("one", 2)
    api.put(one)
    heard = []
    node.preparing.over = lambda uid: heard.append((uid, uid in node.records()))
    await node.prepare(one)
    assert heard == []
    await node.unprepare(one)
    assert heard == [(one.metadata.uid, True)]


async def test_unprepare_after_a_prepare_that_kubelet_gave_up_leaves_nothing(tmp_path):
    slow = SlowApiServer()
    node = Node(tmp_path / "claims", slow)
    one = claim("one", 2)
    slow.put(one)
    preparing = asyncio.create_task(node.prepare(one))
    await slow.asked_for.wait()
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    slow.go_on.set()
    await node.unprepare(one)
    assert node.records() == {}


async def test_record_of_a_prepare_that_kubelet_gave_up_is_told_of_once_it_is_there(tmp_path, api):
    worker, written, heard = Worker("claims"), threading.Event(), []
    node = Node(tmp_path / "claims", api, worker.run)
    one = claim("one", 2)
    api.put(one)
    node.preparing.changed = lambda: heard.append(set(node.checkpoint.records))
    worker.run(written.wait)
    preparing = asyncio.create_task(node.prepare(one))
    while not node.preparing.intended.holds:
        await asyncio.sleep(0.01)
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    written.set()
    async with asyncio.timeout(20):
        while {"uid-one"} not in heard:
            await asyncio.sleep(0.01)
    worker.end()
    assert heard[-1] == {"uid-one"}


class SlowApiServer(ApiServer):
    def __init__(self):
        super().__init__()
        self.asked_for, self.go_on = asyncio.Event(), asyncio.Event()

    async def claim(self, namespace, name, *, patience=None):
        self.asked_for.set()
        await self.go_on.wait()
        return await super().claim(namespace, name, patience=patience)


async def test_two_claims_that_wait_for_each_other_do_not_wait_for_ever(node, api):
    a, b = claim("a", 1), claim("b", 2)
    api.put(a, b)
    await node.prepare(a)
    await node.prepare(b)
    a2, b2 = claim("a", 2), claim("b", 1)
    api.put(a2, b2)
    async with asyncio.timeout(20):
        await asyncio.gather(node.prepare(a2), node.prepare(b2), return_exceptions=True)
        await node.prepare(a2)
        await node.prepare(b2)
    assert node.given() == {"a": {"gpu-2"}, "b": {"gpu-1"}}


async def test_what_the_other_instance_did_meanwhile_counts(node, api):
    before, after = claim("one", 2), claim("one", 5)
    other = node.again()
    api.put(before)
    await node.prepare(before)
    await other.unprepare(before)
    assert (await node.prepare(before)).completed
    assert node.given() == {"one": {"gpu-2"}}, "what it remembers of its own is not what is so"
    await node.unprepare(before)
    await other.prepare(before)
    api.put(after)
    assert [d.device for d in (await node.prepare(after)).devices] == ["gpu-5"]
    assert other.given() == node.given() == {"one": {"gpu-5"}}
