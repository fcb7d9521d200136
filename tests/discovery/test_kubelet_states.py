"""What kubelet's managers write down, in each form that kubelets of today write."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.discovery.kubelet_states import read_states
from gpuplugin.discovery.places import Place
from gpuplugin.model.kubelet import CpuState, KubeletStates, MemoryBlock, MemoryOfNode

CPUS = {
    "policyName": "static",
    "defaultCpuSet": "0,6-7",
    "entries": {"uid-1": {"main": "1-2", "init": "1-3"}, "uid-2": {"main": "4"}},
}
MEMORY = {
    "policyName": "Static",
    "machineState": {
        "0": {
            "numberOfAssignments": 2,
            "memoryMap": {
                "memory": {"total": 9, "systemReserved": 1, "allocatable": 8, "reserved": 3, "free": 5},
                "hugepages-2Mi": {"total": 4, "systemReserved": 0, "allocatable": 4, "reserved": 4, "free": 0},
            },
            "cells": [0, 1],
        },
    },
    "entries": {"uid-1": {"main": [{"numaAffinity": [0, 1], "type": "memory", "size": 3}]}},
}


def wrapped(document: dict[str, object]) -> dict[str, object]:
    """As kubelet 1.37 writes it: the whole as a text, and beside it what older ones read."""
    return {**document, "checksum": 1, "data": json.dumps(document), "dataChecksum": 2}


def found(folder: Path, cpus: object = None, memory: object = None) -> KubeletStates:
    for name, document in (("cpu", cpus), ("memory", memory)):
        if document is not None:
            (folder / f"{name}_manager_state").write_text(
                document if isinstance(document, str) else json.dumps(document)
            )
    return read_states(folder, Place(folder, "/elsewhere"))


@pytest.mark.parametrize("form", [dict, wrapped])
def test_cpus_by_pod_and_container(tmp_path: Path, form):
    one, two, init = frozenset({1, 2}), frozenset({4}), frozenset({1, 2, 3})
    own = {("uid-1", "main"): one, ("uid-1", "init"): init, ("uid-2", "main"): two}
    assert found(tmp_path, form(CPUS)).cpus == CpuState("static", frozenset({0, 6, 7}), own)


@pytest.mark.parametrize("form", [dict, wrapped])
def test_memory_and_huge_pages(tmp_path: Path, form):
    state = found(tmp_path, memory=form(MEMORY)).memory
    assert state is not None
    assert state.policy == "Static"
    assert state.nodes == {
        0: MemoryOfNode({"memory": 8, "hugepages-2Mi": 4}, {"memory": 5, "hugepages-2Mi": 0}, 2, (0, 1))
    }
    assert state.own == {("uid-1", "main"): (MemoryBlock("memory", (0, 1), 3),)}


def test_the_text_within_counts_where_both_are_there(tmp_path: Path):
    state = found(tmp_path, {**wrapped(CPUS), "entries": {}, "defaultCpuSet": "0-7"}).cpus
    assert state is not None
    assert state.shared == {0, 6, 7}


def test_what_a_pod_has_as_a_whole_stands_for_its_containers(tmp_path: Path):
    block = {"numaAffinity": [0], "type": "memory", "size": 5}
    memory = {**MEMORY, "podEntries": {"uid-1": {"memoryBlocks": [block]}}}
    states = found(tmp_path, {**CPUS, "podEntries": {"uid-2": {"cpuSet": "4-5"}}}, memory)
    assert states.memory is not None
    assert states.cpus is not None
    assert states.memory.own == {("uid-1", ""): (MemoryBlock("memory", (0,), 5),)}
    assert states.cpus.own["uid-2", ""] == {4, 5}


def test_policies_that_give_nothing_out(tmp_path: Path):
    states = found(tmp_path, {"policyName": "none", "defaultCpuSet": ""}, {"policyName": "None", "machineState": {}})
    assert states.cpus == CpuState("none", frozenset(), {})
    assert states.memory is not None
    assert (states.memory.nodes, states.troubles) == ({}, ())


def test_devices_by_pod_and_container(tmp_path: Path):
    entry = {"PodUID": "uid-1", "ContainerName": "main", "AllocResp": "secret"}
    entries = [
        {**entry, "ResourceName": "nvidia.com/gpu", "DeviceIDs": {"0": ["GPU-1"], "1": ["GPU-2"]}},
        {**entry, "ResourceName": "rdma/hca", "DeviceIDs": {"-1": ["mlx5_0"]}},
    ]
    (tmp_path / "device-plugins").mkdir()
    file = tmp_path / "device-plugins/kubelet_internal_checkpoint"
    file.write_text(json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1}))
    had = {("nvidia.com/gpu", "GPU-1"), ("nvidia.com/gpu", "GPU-2"), ("rdma/hca", "mlx5_0")}
    assert found(tmp_path).devices == {("uid-1", "main"): had}
    file.write_text(json.dumps({"Data": {"PodDeviceEntries": None, "RegisteredDevices": {}}, "Checksum": 1}))
    assert found(tmp_path) == KubeletStates()


def test_no_files_are_no_trouble(tmp_path: Path):
    assert found(tmp_path) == KubeletStates()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"policyName": "static", "defaultCpuSet": "x"}', '{"data": "{"}'])
def test_what_makes_no_sense_is_told(tmp_path: Path, text: str):
    states = found(tmp_path, text)
    assert states.cpus is None
    assert states.troubles[0].startswith("/var/lib/kubelet/cpu_manager_state: ")


def test_files_are_found_in_the_hosts_root_under_kubelets_own_folder(tmp_path: Path):
    folder = tmp_path / "root/var/data/kubelet"
    folder.mkdir(parents=True)
    (folder / "cpu_manager_state").write_text(json.dumps(CPUS))
    assert read_states(Path("/var/data/kubelet"), Place(tmp_path / "root", "/")).cpus is not None


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda each: st.lists(each) | st.dictionaries(st.text(), each))
)
def test_nothing_is_raised(tmp_path_factory, document):
    folder = tmp_path_factory.mktemp("kubelet")
    found(folder, {"policyName": "static", "entries": document}, {"policyName": "Static", "machineState": document})
