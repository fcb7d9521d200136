"""ResourceSlices on a real API server, with the node's own credentials, and what the real scheduler makes of them."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from onenode import Cluster, ClusterSettings, Component
from onenode.layout import NODE
from onenode.pods import busybox_pod

from dra.changes import bare
from dra.gated import COUNTERS, USES
from dra.names import Names, name_all
from dra.publisher import Published, Publisher
from dra.slices import DRIVER, Contents, Owner, cut, whole_gpus
from gpuplugin.errors import KubeInvalid
from gpuplugin.kube.client import Kube
from gpuplugin.kube.kinds import SLICES
from gpuplugin.kube.objects import Counter, CounterSet, CounterUse, Device, ResourceSlice
from gpuplugin.model.health import HEALTHY, DeviceHealth, Level
from gpuplugin.model.inventory import Inventory
from gpuplugin.topology.allocate import Tables
from tests.dra.test_limits import RULES, Rule
from tests.topology import machines

pytestmark = pytest.mark.cluster

SLICE = f"{NODE}-{DRIVER}-00"
CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": DRIVER},
    "spec": {
        "selectors": [
            {"cel": {"expression": f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"}}
        ]
    },
}
SICK = DeviceHealth(Level.UNHEALTHY, "XID 79: GPU has fallen off the bus; restart the machine")


def crossed() -> Inventory:
    """Eight GPUs of one island, numbered in turn on two NUMA nodes: the first four of them would be two of each."""
    slots = [machines.Slot(i % 2, f"pci0000:{0x10 + i % 2 * 0x80 + i // 4:02x}", 0) for i in range(8)]
    return machines.inventory(slots, to_switch=[18] * 8, nics=slots, distances=machines.TWO_SOCKETS)


def offered(inventory: Inventory, *sick: int) -> Contents:
    health = {gpu.uuid: SICK if gpu.index in sick else HEALTHY for gpu in inventory.gpus}
    return whole_gpus(inventory, Tables.build(inventory), name_all(Names(), inventory, None), health)


class Daemon:
    """A publisher on an event loop in a thread, as the node."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.kubeconfig = cluster.layout.kubeconfig("node")
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._thread.start()
        assert self._started.wait(30)

    async def _run(self) -> None:
        self._stop = asyncio.Event()
        async with Kube(self.kubeconfig) as self.kube:
            node = await self.kube.node(NODE)
            self.publisher = Publisher(self.kube, Owner(NODE, node.metadata.uid))
            task = asyncio.create_task(self.publisher.run())
            self._started.set()
            await self._stop.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def want(self, contents: Contents) -> None:
        self._loop.call_soon_threadsafe(self.publisher.want, contents)

    @property
    def state(self) -> Published:
        return self.publisher.state.value

    @property
    def writes(self) -> int:
        return sum(number for method, number in self.kube.calls.items() if method != "GET")

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()


@contextmanager
def running(cluster: Cluster) -> Iterator[Daemon]:
    made = Daemon(cluster)
    try:
        yield made
    finally:
        made.close()
        for one in slices(cluster):
            cluster.api.delete("ResourceSlice", one["metadata"]["name"])


@pytest.fixture
def daemon(cluster: Cluster) -> Iterator[Daemon]:
    with running(cluster) as made:
        yield made


def slices(cluster: Cluster) -> list[dict[str, Any]]:
    return [one for one in cluster.api.list("ResourceSlice") if one["spec"]["driver"] == DRIVER]


def names(cluster: Cluster) -> list[str]:
    return [device["name"] for one in slices(cluster) for device in one["spec"].get("devices", ())]


def published(daemon: Daemon, contents: Contents) -> dict[str, Any]:
    """Want it, and wait until the server has it; the first slice."""
    daemon.want(contents)
    wanted = [device.name for device in contents.devices]
    daemon.cluster.wait_for(lambda: names(daemon.cluster) == wanted and daemon.state.outcome, 20, "the slices")
    return daemon.cluster.api.get("ResourceSlice", SLICE)


def test_the_server_has_what_was_written_and_an_idle_node_asks_for_nothing(daemon: Daemon, cluster: Cluster):
    contents = offered(crossed())
    one = msgspec.convert(published(daemon, contents), ResourceSlice)
    wanted = cut(Owner(NODE, cluster.node()["metadata"]["uid"]), contents)[0]
    assert bare(one.spec) == bare(wanted.spec)
    assert one.metadata.owner_references == wanted.metadata.owner_references
    assert daemon.state.outcome is not None
    assert daemon.state.outcome.dropped == frozenset()
    cluster.wait_for(lambda: daemon.kube.calls.get("GET", 0) >= 4, 10, "node, list, the watch and the pass's list")
    before = dict(daemon.kube.calls)
    daemon.want(offered(crossed()))
    time.sleep(5)  # that nothing happens has no end to wait for
    assert daemon.kube.calls == before
    assert daemon.writes == 1
    with running_again(cluster, contents) as again:
        assert again.writes == 0


@contextmanager
def running_again(cluster: Cluster, contents: Contents) -> Iterator[Daemon]:
    again = Daemon(cluster)
    try:
        again.want(contents)
        cluster.wait_for(lambda: again.state.outcome, 20, "the second daemon's first pass")
        yield again
    finally:
        again.close()


def test_what_is_done_to_the_slices_is_mended(daemon: Daemon, cluster: Cluster):
    contents = offered(crossed())
    before = published(daemon, contents)
    cluster.api.delete("ResourceSlice", SLICE)
    cluster.wait_for(
        lambda: cluster.api.get("ResourceSlice", SLICE)["metadata"]["uid"] != before["metadata"]["uid"], 20, "put back"
    )
    cluster.api.patch("ResourceSlice", SLICE, {"spec": {"devices": [{"name": "gpu-0"}]}})
    cluster.wait_for(lambda: len(names(cluster)) == 8, 20, "the edit undone")
    assert cluster.api.get("ResourceSlice", SLICE)["spec"]["pool"] == {
        "name": NODE,
        "generation": 1,
        "resourceSliceCount": 1,
    }


def tainted(cluster: Cluster) -> dict[str, list[dict[str, str]]]:
    devices = cluster.api.get("ResourceSlice", SLICE)["spec"]["devices"]
    return {device["name"]: device["taints"] for device in devices if "taints" in device}


def test_a_taint_comes_with_its_reason_and_goes_without_a_generation(daemon: Daemon, cluster: Cluster):
    published(daemon, offered(crossed()))
    daemon.want(offered(crossed(), 3))

    cluster.wait_for(lambda: list(tainted(cluster)) == ["gpu-3"], 20, "the taint")
    (taint,) = tainted(cluster)["gpu-3"]
    assert taint.pop("timeAdded")
    assert taint == {
        "key": "gpuplugin.io/unhealthy",
        "value": "XID-79-GPU-has-fallen-off-the-bus-restart-the-machine",
        "effect": "NoSchedule",
    }
    daemon.want(offered(crossed()))
    cluster.wait_for(lambda: not tainted(cluster), 20, "the taint lifted")
    assert cluster.api.get("ResourceSlice", SLICE)["spec"]["pool"]["generation"] == 1


def test_another_number_of_slices_is_a_whole_pool_of_a_new_generation(daemon: Daemon, cluster: Cluster):
    def pool(count: int) -> Contents:
        return Contents(tuple(Device(name=f"gpu-{i}") for i in range(count)))

    for generation, count in ((1, 70), (2, 10), (2, 0), (3, 128)):
        published(daemon, pool(count))
        found = [one["spec"]["pool"] for one in slices(cluster)]
        assert {one["generation"] for one in found} == {generation}
        assert [one["resourceSliceCount"] for one in found] == [max(1, -(-count // 64))] * len(found)


def test_an_api_server_that_was_killed_is_found_again(daemon: Daemon, cluster: Cluster):
    published(daemon, offered(crossed()))
    cluster.stop(Component.API_SERVER, signal.SIGKILL)
    daemon.want(offered(crossed(), 1))
    cluster.start(Component.API_SERVER)
    cluster.wait_for(lambda: list(tainted(cluster)) == ["gpu-1"], 60, "what was wanted meanwhile")
    cluster.api.delete("ResourceSlice", SLICE)
    cluster.wait_for(lambda: len(names(cluster)) == 8, 60, "watched again: put back")


def test_what_a_kubelet_wipes_when_it_starts_is_published_again(daemon: Daemon, cluster: Cluster):
    before = published(daemon, offered(crossed()))
    cluster.restart(Component.KUBELET, signal.SIGKILL)
    cluster.wait_for(
        lambda: (
            cluster.api.get("ResourceSlice", SLICE)["metadata"]["uid"] != before["metadata"]["uid"]
            and len(names(cluster)) == 8
        ),
        90,
        "wiped, and put back",
    )


def claim(name: str, count: int, match: str = "") -> dict[str, Any]:
    request = {"name": "gpus", "exactly": {"deviceClassName": DRIVER, "count": count}}
    constraints = {"constraints": [{"matchAttribute": match}]} if match else {}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request], **constraints}},
    }


def allocated(cluster: Cluster, name: str, count: int, match: str = "") -> list[str]:
    """The devices that the scheduler gives a pod with such a claim. No driver prepares it: the pod waits."""
    name = f"slices-{name}"
    pod = busybox_pod(name, resourceClaims=[{"name": "gpus", "resourceClaimName": name}])
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpus"}]}
    cluster.api.apply(claim(name, count, match), pod)

    def results() -> list[str]:
        allocation = cluster.api.get("ResourceClaim", name)["status"]["allocation"]
        return [result["device"] for result in allocation["devices"]["results"]]

    return cluster.wait_for(results, 30, f"an allocation for {name}")


def test_the_scheduler_gives_four_that_belong_together_and_leaves_out_the_ill(daemon: Daemon, cluster: Cluster):
    machine = crossed()
    contents = offered(machine, 2)
    published(daemon, contents)
    cluster.api.apply(CLASS)
    numa = {device.name: device.attributes["resource.kubernetes.io/numaNode"].number for device in contents.devices}
    four = allocated(cluster, "four", 4)
    assert {numa[name] for name in four} == {1}
    one = allocated(cluster, "one", 1)
    assert set(one).isdisjoint(["gpu-2", *four])
    two = allocated(cluster, "two", 2, "resource.kubernetes.io/numaNode")
    assert {numa[name] for name in two} == {0}
    assert set(two).isdisjoint(["gpu-2", *one])


def test_a_claim_for_four_without_any_constraint_stays_on_one_numa_node(daemon: Daemon, cluster: Cluster):
    contents = offered(crossed())
    published(daemon, contents)
    cluster.api.apply(CLASS)
    numa = {device.name: device.attributes["resource.kubernetes.io/numaNode"].number for device in contents.devices}
    first, second = (allocated(cluster, name, 4) for name in ("first", "second"))
    assert len({numa[name] for name in first}) == len({numa[name] for name in second}) == 1
    assert sorted(first + second) == [f"gpu-{i}" for i in range(8)]


def test_the_server_has_the_limits_that_we_hold(cluster: Cluster):
    async def answers() -> list[tuple[str, bool, bool]]:
        async with Kube(cluster.layout.admin_kubeconfig) as kube:
            return [(rule.name, *[await accepted(kube, each) for each in (rule.good, rule.bad)]) for rule in asked()]

    async def accepted(kube: Kube, pool: tuple[ResourceSlice, ...]) -> bool:
        try:
            for one in pool:
                await kube.create(SLICES, counted(one, len(pool)), dry_run=True)
        except KubeInvalid:
            return False
        return True

    assert asyncio.run(answers()) == [(rule.name, True, False) for rule in asked()]


def asked() -> list[Rule]:
    """The rules for single slices; lists of values are behind a gate that is off."""
    return [rule for rule in RULES if rule.name not in ("devices, one list", "values")]


def counted(one: ResourceSlice, count: int) -> ResourceSlice:
    pool = msgspec.structs.replace(one.spec.pool, resource_slice_count=count)
    return msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, pool=pool))


def test_where_the_gate_is_off_what_overlaps_is_not_offered(cluster: Cluster):
    use = (CounterUse(counter_set="gpu-0", counters={"slices": Counter(value="8")}),)
    sets = (CounterSet(name="gpu-0", counters={"slices": Counter(value="8")}),)
    part = Device(name="gpu-0-mig-0", consumes_counters=use)
    contents = Contents((Device(name="gpu-0", consumes_counters=use), part), sets, frozenset({part.name}))
    with running(cluster) as with_gate:
        published(with_gate, contents)
        assert with_gate.state.outcome is not None
        assert with_gate.state.outcome.withdrawn == ()
    with other_cluster(cluster, {"DRAPartitionableDevices": False}) as old, running(old) as daemon:
        daemon.want(contents)
        old.wait_for(lambda: daemon.state.outcome, 30, "a pass")
        assert daemon.state.outcome is not None
        assert daemon.state.outcome.withdrawn == (part.name,)
        assert daemon.state.outcome.dropped & {COUNTERS, USES}
        assert names(old) == ["gpu-0"]


@contextmanager
def other_cluster(cluster: Cluster, gates: dict[str, bool]) -> Iterator[Cluster]:
    settings: ClusterSettings = replace(cluster.settings, feature_gates=gates)
    kept = cluster.is_kept
    other = Cluster(settings, state=cluster.layout.state)
    cluster.down()
    try:
        other.up()
        yield other
    finally:
        other.down()
        cluster.up()
        if kept:
            cluster.keep()
