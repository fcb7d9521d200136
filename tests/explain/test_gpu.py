"""Why a GPU is offered or not: each cause with what to do about it."""

from dataclasses import replace

import pytest

from gpuplugin.config import Config
from gpuplugin.config.settings import Devices, Dra, Mps, ReplicatedResource, Sharing
from gpuplugin.errors import NothingToExplain
from gpuplugin.explain.gpu import Known, why
from gpuplugin.model.health import XidEvent
from gpuplugin.model.ids import GpuUuid, MigUuid
from gpuplugin.model.inventory import UnreadableGpu
from gpuplugin.plan.desired import Facts
from gpuplugin.plan.faults import Policy
from gpuplugin.plan.health import Health, after_xid, with_cordons
from tests.plan.machine import gpu, inventory, strategy

NAME = "nvidia.com/gpu"
ZERO = GpuUuid("GPU-0")


def xid(policy: Policy) -> Facts:
    return Facts(after_xid(Health(), XidEvent(ZERO, 79), "XID 79: fell off the bus", 0.0, policy))


def mps() -> Config:
    return Config(sharing=Sharing(mps=Mps((ReplicatedResource(NAME, 2),))))


WELL = Facts(Health())


@pytest.mark.parametrize(
    ("machine", "config", "facts", "because", "do"),
    [
        (gpu(0), Config(devices=Devices((0,))), WELL, "devices.exclude has 0", "take that entry out"),
        (gpu(0), Config(dra=Dra(("GPU-0",))), xid(Policy.RESET), "dra.gpus names it", "ResourceClaim"),
        (gpu(0, mig=True), strategy("mixed"), WELL, "MIG is on, and it has no instances", "make instances"),
        (gpu(0), Config(), xid(Policy.RESET), "XID 79", "nvidia-smi --gpu-reset -i GPU-0"),
        (gpu(0), Config(), xid(Policy.REBOOT), "XID 79", "drain the node and reboot it"),
        (gpu(0), Config(), xid(Policy.UNHEALTHY), "XID 79", "it comes back by itself with: good probes in a row"),
        (gpu(0), Config(), Facts(with_cordons(Health(), {ZERO: "RMA 17"}, 0.0)), "RMA 17", "gpuplugin uncordon 0"),
        (gpu(0), Config(), Facts(Health(unknown="NVML hangs")), "NVML hangs", "all GPUs are affected"),
        (gpu(0, fault="no answer"), Config(), WELL, "no answer", "dmesg"),
        (gpu(0, "1g.10gb"), Config(), WELL, "flags.migStrategy none", "no restart is needed"),
        (gpu(0), Config(), Facts(Health(), injection={ZERO: "no /dev/nvidia0"}), "no /dev/nvidia0", "cdi check"),
        (gpu(0), Config(), Facts(Health(), held={ZERO: "still held by claim a/b"}), "claim a/b", "end what holds it"),
        (gpu(0), mps(), WELL, "MPS control daemon has not been looked for", "gpuplugin mps-control"),
    ],
)
def test_every_cause_has_something_to_do(machine, config, facts, because, do):
    answer = why(Known(inventory(machine, gpu(1)), config, facts, {}), "0")
    assert not answer.offered
    [advice] = [cause.do for cause in answer.causes if because in cause.why]
    assert do in advice
    assert all(cause.why and cause.do for cause in answer.causes)
    assert sum(device.offered for device in answer.devices) == 0


def test_one_that_is_offered_says_so_and_who_has_it():
    holders = {(NAME, "GPU-0"): "pod a/b (container c)"}
    answer = why(Known(inventory(gpu(0)), Config(), WELL, holders), "0")
    assert (answer.offered, answer.by, answer.causes) == (True, "device plugin", ())
    assert [device.held_by for device in answer.devices] == [("pod a/b (container c)",)]
    assert answer.holders_known
    assert not why(Known(inventory(gpu(0)), Config(), WELL), "0").holders_known


def test_a_warning_leaves_it_in_service():
    answer = why(Known(inventory(gpu(0)), Config(), xid(Policy.WARN), {}), "0")
    assert (answer.offered, answer.causes) == (True, ())
    assert [warning.why for warning in answer.warnings] == ["XID 79: fell off the bus"]


def test_one_that_claims_hand_out_is_offered_by_them():
    answer = why(Known(inventory(gpu(0)), Config(dra=Dra(("GPU-0",))), WELL, {}), "0")
    assert (answer.offered, answer.by, answer.devices) == (True, "claims", ())


def test_kubelet_that_does_not_know_the_resource_is_a_cause():
    answer = why(Known(inventory(gpu(0)), Config(), WELL, {}, {NAME: "no socket"}), "0")
    assert not answer.offered
    assert answer.causes[0].why == "nvidia.com/gpu is not registered with kubelet: no socket"
    assert "kubelet runs" in answer.causes[0].do


@pytest.mark.parametrize(
    "name", ["1", "GPU1", "GPU-1", "GPU-1::0", "0000:01:00.0", "00000000:01:00.0", "01:00.0", "1:0"]
)
def test_names_that_people_have_for_it(name):
    assert why(Known(inventory(gpu(0), gpu(1)), Config(), WELL), name).index == 1


def test_a_mig_device_names_its_gpu():
    known = Known(inventory(gpu(0), gpu(1, "1g.10gb", "2g.20gb")), strategy("mixed"), WELL, {})
    answer = why(known, MigUuid("MIG-1-1"))
    assert answer.index == 1
    assert [device.resource for device in answer.devices] == ["nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"]


def test_one_that_never_told_who_it_is():
    machine = replace(inventory(gpu(0)), unreadable=(UnreadableGpu(3, None, "NVML says unknown error"),))
    answer = why(Known(machine, Config(), WELL), "3")
    assert (answer.offered, answer.uuid) == (False, None)
    assert "unknown error" in answer.causes[0].why
    with pytest.raises(NothingToExplain, match=r"there are: 0 \(GPU-0, 0000:00:00\.0\), 3 \(no address, unreadable\)"):
        why(Known(machine, Config(), WELL), "7")
