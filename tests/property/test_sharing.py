"""Pods that come and go, as kubelet would let them: no device is ever given too often, whatever the policy."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplugin.config import Config
from gpuplugin.config.settings import Flags, ReplicatedResource, Sharing, TimeSlicing
from gpuplugin.deviceplugin.response import Delivery, container_response, device_list
from gpuplugin.errors import UnsatisfiableRequest
from gpuplugin.model.ids import DeviceId
from gpuplugin.plan.desired import Facts, OfferedResource, all_units, desired
from gpuplugin.plan.health import Health
from gpuplugin.topology.allocate import Tables
from gpuplugin.topology.choice import Chooser, Place
from tests.plan.machine import gpu, inventory

LAYOUTS = st.lists(st.sampled_from([(), ("1g.10gb",) * 3, ("1g.10gb",)]), min_size=1, max_size=4)
STEPS = st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=30)


def offered(layouts: list[tuple[str, ...]], replicas: int, spread: str) -> tuple[OfferedResource, Tables]:
    machine = inventory(*(gpu(index, *profiles) for index, profiles in enumerate(layouts)))
    entry = ReplicatedResource("nvidia.com/gpu", replicas, spread=spread)  # type: ignore[arg-type]
    config = Config(flags=Flags(mig_strategy="single"), sharing=Sharing(time_slicing=TimeSlicing(resources=(entry,))))
    [resource] = desired(all_units(machine, config), Facts(Health()))
    return resource, Tables.build(machine)


@settings(deadline=None)
@given(
    LAYOUTS,
    st.integers(2, 4),
    st.sampled_from(["packed", "distributed"]),
    st.sampled_from(["preferred", "required"]),
    STEPS,
)
def test_pods_come_and_go(
    layouts: list[tuple[str, ...]], replicas: int, policy: str, spread: str, steps: list[tuple[bool, int]]
) -> None:
    resource, tables = offered(layouts, replicas, spread)
    usable = {device.id: device for device in resource.devices if device.health.usable}
    places = {
        device.id: Place(device.position, device.mig is None, replicas, spread == "required")
        for device in resource.devices
    }
    chooser = Chooser(resource.name, tables, places, pack=policy == "packed")
    free = {DeviceId(one.ID) for one in device_list(resource).devices if one.health == "Healthy"}
    pods: list[tuple[DeviceId, ...]] = []
    for comes, size in steps:
        if not comes and pods:
            free.update(pods.pop(0))
            continue
        try:
            chosen = chooser.choose(free, [], size).devices
        except UnsatisfiableRequest:
            continue
        assert len(set(chosen)) == size
        assert set(chosen) <= free
        free -= set(chosen)
        pods.append(chosen)
        given_ = [one.name.partition("=")[2] for one in container_response(resource, chosen, Delivery()).cdi_devices]
        assert set(given_) == {one.partition("::")[0] for one in chosen}
        if spread == "required":
            assert len({usable[DeviceId(one)].gpu for one in given_}) == size
    holders = Counter(one.partition("::")[0] for pod in pods for one in pod)
    assert all(holders[device] <= replicas for device in holders)
    assert set(holders) <= set(usable)
