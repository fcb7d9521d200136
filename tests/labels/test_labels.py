"""What is said of each kind of node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuplugin.labels.build import kept, labels, without_driver
from gpuplugin.labels.facts import NodeFacts, Offer
from gpuplugin.labels.products import family
from gpuplugin.model.inventory import FabricState
from tests.labels.nodes import H100, UUID, fabric, facts, gpu, offers


def of(node: NodeFacts, prefix: str = "nvidia.com/") -> dict[str, str]:
    return {key.removeprefix(prefix): value for key, value in labels(node).items() if key.startswith(prefix)}


def test_eight_gpus_as_the_reference_has_them():
    gpus = [gpu(i, mig=False) for i in range(8)]
    classes = {one.pci: 0x0302 for one in gpus}
    assert of(facts(*gpus, machine="ProLiant DL380a Gen12 (rev. 2)", pci_classes=classes)) == {
        "cuda.driver-version.full": "580.65.06",
        "cuda.driver-version.major": "580",
        "cuda.driver-version.minor": "65",
        "cuda.driver-version.revision": "06",
        "cuda.driver.major": "580",
        "cuda.driver.minor": "65",
        "cuda.driver.rev": "06",
        "cuda.runtime-version.full": "13.0",
        "cuda.runtime-version.major": "13",
        "cuda.runtime-version.minor": "0",
        "cuda.runtime.major": "13",
        "cuda.runtime.minor": "0",
        "gpu.compute.major": "9",
        "gpu.compute.minor": "0",
        "gpu.count": "8",
        "gpu.family": "hopper",
        "gpu.machine": "ProLiant-DL380a-Gen12-rev.-2",
        "gpu.memory": "81559",
        "gpu.mode": "compute",
        "gpu.product": "NVIDIA-H100-80GB-HBM3",
        "gpu.replicas": "1",
        "gpu.sharing-strategy": "none",
        "mig.capable": "true",
        "mps.capable": "false",
    }


def test_a_node_without_gpus_says_nothing():
    assert labels(facts()) == {}


def test_what_is_not_known_is_left_out():
    found = of(facts(gpu(memory_bytes=None, compute_capability=None), driver="580"))
    assert not {"gpu.memory", "gpu.family", "gpu.compute.major", "cuda.driver.major", "gfd.timestamp"} & found.keys()
    assert (found["cuda.driver-version.full"], found["gpu.mode"], found["gpu.machine"]) == ("580", "unknown", "unknown")


def test_a_driver_version_of_two_parts_has_no_revision():
    found = of(facts(gpu(), driver="580.65"))
    assert (found["cuda.driver-version.revision"], found["cuda.driver.rev"]) == ("", "")


@pytest.mark.parametrize(
    ("share", "product", "strategy"),
    [
        ({"replicas": 4, "sharing": "time-slicing"}, "NVIDIA-H100-80GB-HBM3-SHARED", "time-slicing"),
        ({"replicas": 4, "sharing": "mps"}, "NVIDIA-H100-80GB-HBM3-SHARED", "mps"),
        ({"replicas": 4, "sharing": "mps", "renamed": True}, "NVIDIA-H100-80GB-HBM3", "mps"),
    ],
)
def test_shared_gpus(share, product, strategy):
    found = of(facts(gpu(0), gpu(1), share=share))
    assert [found[f"gpu.{name}"] for name in ("product", "count", "replicas", "sharing-strategy")] == [
        *(product, "2", "4", strategy)
    ]


def test_where_only_some_are_shared_the_shared_ones_count():
    one, two = gpu(0), gpu(1)
    node = facts(one, two, offers=(Offer(one), Offer(two, replicas=3, sharing="time-slicing")))
    assert (of(node)["gpu.replicas"], of(node)["gpu.product"]) == ("3", "NVIDIA-H100-80GB-HBM3-SHARED")


def test_mps_can_be_had_only_where_it_is_set_and_no_gpu_is_split():
    assert of(facts(gpu(mig=False), mps=True))["mps.capable"] == "true"
    assert of(facts(gpu(mig=True), mps=True))["mps.capable"] == "false"


def test_single_strategy_calls_mig_devices_gpus():
    gpus = [gpu(i, mig=True, profiles=["1g.10gb"] * 7) for i in range(2)]
    found = of(facts(*gpus, strategy="single"))
    assert {key: value for key, value in found.items() if key.startswith(("gpu.", "mig."))} == {
        "gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb",
        "gpu.count": "14",
        "gpu.replicas": "1",
        "gpu.sharing-strategy": "none",
        "gpu.memory": "9856",
        "gpu.multiprocessors": "16",
        "gpu.slices.gi": "1",
        "gpu.slices.ci": "1",
        "gpu.engines.copy": "1",
        "gpu.engines.decoder": "1",
        "gpu.engines.encoder": "0",
        "gpu.engines.jpeg": "1",
        "gpu.family": "hopper",
        "gpu.compute.major": "9",
        "gpu.compute.minor": "0",
        "gpu.machine": "unknown",
        "gpu.mode": "unknown",
        "mig.capable": "true",
        "mig.strategy": "single",
    }


def test_single_strategy_that_offers_nothing_says_so():
    found = of(facts(gpu(mig=True), strategy="single"))
    assert [found[f"gpu.{name}"] for name in ("product", "count", "replicas", "sharing-strategy", "memory")] == [
        *("NVIDIA-H100-80GB-HBM3-MIG-INVALID", "0", "0", "", "0")
    ]


def test_mixed_strategy_has_labels_a_profile_beside_the_parents():
    parent, whole = gpu(0, mig=True, profiles=["1g.10gb+me", "3g.40gb", "3g.40gb"]), gpu(1, mig=False)
    found = of(facts(parent, whole, strategy="mixed", share={"replicas": 2, "sharing": "time-slicing"}))
    assert found["gpu.count"] == "2"
    assert (found["mig-3g.40gb.count"], found["mig-1g.10gb.me.count"]) == ("2", "1")
    assert found["mig-1g.10gb.me.product"] == "NVIDIA-H100-80GB-HBM3-MIG-1g.10gbme-SHARED"
    assert found["mig-3g.40gb.product"] == "NVIDIA-H100-80GB-HBM3-MIG-3g.40gb-SHARED"
    assert found["mig-3g.40gb.replicas"] == "2"
    assert found["mig-3g.40gb.slices.gi"] == "1"
    assert "mig-3g.40gb.engines.ofa" not in found


def test_mig_parents_alone_are_shared_by_nobody():
    found = of(facts(gpu(mig=True, profiles=["1g.10gb"]), strategy="mixed", share={"replicas": 2, "sharing": "mps"}))
    assert (found["gpu.replicas"], found["gpu.sharing-strategy"]) == ("0", "none")
    assert found["gpu.product"] == "NVIDIA-H100-80GB-HBM3"


def test_of_several_models_one_is_described_whatever_their_order():
    gpus = [gpu(0, "NVIDIA A40"), gpu(1, "NVIDIA A100"), gpu(2, "NVIDIA A100"), gpu(3, "NVIDIA A40")]
    assert of(facts(*gpus))["gpu.product"] == "NVIDIA-A100"
    assert labels(facts(*gpus)) == labels(facts(*reversed(gpus)))
    found = of(facts(*gpus, gpu(4, "NVIDIA A40")), "gpuplugin.io/")
    assert (found["model.NVIDIA-A40"], found["model.NVIDIA-A100"], found["gpu.whole"]) == ("3", "2", "5")
    assert of(facts(*gpus, gpu(4, "NVIDIA A40")))["gpu.product"] == "NVIDIA-A40"


def test_whole_gpus_are_described_before_more_of_those_that_are_split():
    split = [gpu(i, "NVIDIA A100", mig=True) for i in range(3)]
    assert of(facts(*split, gpu(3, "NVIDIA T4")))["gpu.product"] == "NVIDIA-T4"


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        *(((7, 0), "volta"), ((7, 5), "turing"), ((8, 0), "ampere"), ((8, 9), "ada-lovelace"), ((9, 0), "hopper")),
        *(((10, 3), "blackwell"), ((12, 0), "blackwell"), ((13, 0), "rubin"), ((14, 0), "undefined")),
        ((6, 1), "pascal"),
    ],
)
def test_families(capability, name):
    assert family(capability) == name


@pytest.mark.parametrize(
    ("classes", "mode"),
    [((0x0302, 0x0302), "compute"), ((0x0300, 0x0300), "graphics"), ((0x0300, 0x0302), "unknown"), ((3, 3), "unknown")],
)
def test_modes(classes, mode):
    gpus = [gpu(i) for i in range(2)]
    assert of(facts(*gpus, pci_classes={one.pci: c for one, c in zip(gpus, classes, strict=True)}))["gpu.mode"] == mode
    assert of(facts(*gpus, pci_classes={gpus[0].pci: classes[0]}))["gpu.mode"] == "unknown"


def test_the_clique_is_told_where_there_is_one():
    assert of(facts(gpu(0, fabric=fabric()), gpu(1)))["gpu.clique"] == f"{UUID}.7"
    for others in (
        [gpu(0, fabric=fabric()), gpu(1, fabric=fabric(clique=8))],
        [gpu(0, fabric=fabric("00000000-0000-0000-0000-000000000000"))],
        [gpu(0, fabric=fabric(state=FabricState.IN_PROGRESS))],
    ):
        assert "gpu.clique" not in of(facts(*others))


def test_what_is_ours():
    gpus = [gpu(i, numa=numa) for i, numa in enumerate((0, 0, 1, None))]
    links = ((0, 4, 4, 0), (4, 0, 4, 0), (4, 4, 0, 0), (0, 0, 0, 0))
    assert of(facts(*gpus, links=links), "gpuplugin.io/") == {
        "driver.ready": "true",
        "gpu.whole": "4",
        "model.NVIDIA-H100-80GB-HBM3": "4",
        "nic.count": "0",
        "numa-0.gpus": "2",
        "numa-1.gpus": "1",
        "nvlink.island-size": "3",
        "nvlink.islands": "1",
    }


def test_gpus_that_nobody_may_use_are_in_no_island_and_join_none():
    gpus = [gpu(i) for i in range(4)]
    chain = ((0, 4, 0, 0), (4, 0, 4, 0), (0, 4, 0, 4), (0, 0, 4, 0))
    for left_out, islands, size in ((0, "1", "3"), (1, "1", "2"), (2, "1", "2")):
        offered = tuple(one for one in gpus if one.index != left_out)
        found = of(replace(facts(*gpus, links=chain), gpus=offered), "gpuplugin.io/")
        assert (found["nvlink.islands"], found["nvlink.island-size"]) == (islands, size)


@pytest.mark.parametrize(
    ("profiles", "layout"),
    [
        ((["1g.10gb", "3g.40gb", "1g.10gb"],), "1g.10gb-x2_3g.40gb-x1"),
        ((["7g.80gb"], ["7g.80gb"]), "7g.80gb-x1"),
        ((["7g.80gb"], ["3g.40gb"]), "mixed"),
        (([],), "empty"),
    ],
)
def test_the_mig_layout(profiles, layout):
    gpus = [gpu(i, mig=True, profiles=found) for i, found in enumerate(profiles)]
    found = of(facts(*gpus, strategy="mixed"), "gpuplugin.io/")
    assert (found["mig.layout"], found["mig.gpus"]) == (layout, f"{len(gpus)}")


def test_isolated_devices_are_not_counted_as_offered():
    one, two = gpu(0, mig=True, profiles=["3g.40gb"]), gpu(1, mig=True, profiles=["7g.80gb"])
    mine = (*offers(one, strategy="single"), Offer(two, two.mig_devices[0], isolated=True))
    assert of(facts(one, two, strategy="single", offers=mine))["gpu.count"] == "1"


def test_the_time_is_told_where_it_is_asked_for():
    assert of(facts(gpu(), timestamp=1700000000))["gfd.timestamp"] == "1700000000"


def test_nothing_is_taken_away_while_a_gpu_cannot_be_read():
    there, wanted = {"a": "1", "b": "1"}, {"b": "2", "c": "2"}
    assert kept(wanted, there, complete=True) == wanted
    assert kept(wanted, there, complete=False) == {"a": "1", "b": "2", "c": "2"}


def test_a_driver_that_is_gone_changes_one_word():
    there = labels(facts(gpu(0, H100)))
    assert without_driver(there) == there | {"gpuplugin.io/driver.ready": "false"}
