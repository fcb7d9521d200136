"""That an allocation's device name means the same GPU for ever, whatever the driver calls it by now."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.name_file import load, save
from dra.names import Names, adopt, adopt_pairs, left_behind, name_all
from dra.slices import Owner, cut, whole_gpus
from gpuplugin.errors import CheckpointError
from gpuplugin.model.inventory import Gpu, Inventory, UnreadableGpu
from gpuplugin.topology.allocate import Tables
from tests.topology import machines

FREE: frozenset[str] = frozenset()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "names.json"


def machine(*minors: tuple[str, int | None]) -> Inventory:
    """GPUs of these (letter, minor)."""
    base = machines.inventory([machines.Slot() for _ in minors])
    gpus = tuple(
        replace(gpu, uuid=f"GPU-{letter}", minor=minor) for gpu, (letter, minor) in zip(base.gpus, minors, strict=True)
    )
    return replace(base, gpus=gpus)


def of(names: Names, inventory: Inventory) -> list[str]:
    return [names.of(gpu.uuid) for gpu in inventory.gpus]


def test_at_first_the_names_are_those_of_the_reference():
    inventory = machine(("a", 3), ("b", 0), ("c", None))
    assert of(name_all(Names(), inventory, FREE), inventory) == ["gpu-3", "gpu-0", "gpu-2"]


def test_a_restart_changes_nothing_and_gives_the_same_object():
    inventory = machine(("a", 1), ("b", 0))
    names = name_all(Names(), inventory, FREE)
    assert name_all(names, inventory, FREE) is names


def test_gpus_that_moved_up_keep_their_names():
    names = name_all(Names(), machine(("a", 0), ("b", 1), ("c", 2)), FREE)
    after_reboot = machine(("b", 0), ("c", 1))
    later = name_all(names, after_reboot, FREE)
    assert of(later, after_reboot) == ["gpu-1", "gpu-2"]
    back = machine(("c", 0), ("a", 1), ("b", 2))
    assert of(name_all(later, back, FREE), back) == ["gpu-2", "gpu-0", "gpu-1"]


def test_a_new_gpu_in_the_place_of_a_dead_one_gets_its_name_once_nothing_holds_it():
    names = name_all(Names(), machine(("a", 0), ("b", 1)), FREE)
    swapped = machine(("a", 0), ("new", 1))
    assert of(name_all(names, swapped, {"gpu-1"}), swapped) == ["gpu-0", "gpu-2"]
    assert of(name_all(names, swapped, None), swapped) == ["gpu-0", "gpu-2"]
    unsure = replace(swapped, unreadable=(UnreadableGpu(2, None, "lost"),))
    assert of(name_all(names, unsure, FREE), unsure) == ["gpu-0", "gpu-2"]
    freed = name_all(names, swapped, FREE)
    assert of(freed, swapped) == ["gpu-0", "gpu-1"]
    assert freed.gpu("gpu-1") == "GPU-new"


def test_names_are_left_behind_only_where_a_new_gpu_would_have_them():
    names = name_all(Names(), machine(("a", 0), ("b", 1), ("c", 2)), FREE)
    assert left_behind(Names(), machine(("a", 0))) == set(), "at the first start nobody has any"
    assert left_behind(names, machine(("a", 0), ("c", 2))) == set(), "gone, and nobody in its place"
    assert left_behind(names, machine(("b", 0), ("c", 1))) == set(), "moved up"
    assert left_behind(names, machine(("a", 0), ("b", 1), ("c", 2), ("new", 3))) == set(), "one more"
    swapped = machine(("a", 0), ("new", 1), ("newer", 2))
    assert left_behind(names, swapped) == {"gpu-1", "gpu-2"}
    assert left_behind(names, replace(swapped, unreadable=(UnreadableGpu(3, None, "lost"),))) == set()


def test_a_name_once_given_is_kept_also_when_a_better_one_falls_free():
    names = name_all(name_all(Names(), machine(("a", 0)), FREE), machine(("new", 0)), {"gpu-0"})
    assert names.of("GPU-new") == "gpu-1"
    assert name_all(names, machine(("new", 0)), FREE).of("GPU-new") == "gpu-1"


def test_the_names_of_a_driver_before_us_are_taken_over():
    inventory = machine(("a", 0), ("b", 1))
    theirs = Names({"GPU-a": "gpu-7", "GPU-b": "gpu-0"})
    contents = whole_gpus(inventory, Tables.build(inventory), theirs, {})
    theirs_published = cut(Owner("node", "uid"), contents)
    assert of(name_all(adopt(Names(), theirs_published), inventory, None), inventory) == ["gpu-7", "gpu-0"]
    ours = Names({"GPU-a": "gpu-1"})
    assert adopt(ours, theirs_published).by_gpu == {"GPU-a": "gpu-1", "GPU-b": "gpu-0"}
    taken = Names({"GPU-x": "gpu-0"})
    assert adopt(taken, theirs_published).by_gpu == {"GPU-x": "gpu-0", "GPU-a": "gpu-7"}


letters = st.sampled_from("abcdef")
boots = st.lists(
    st.tuples(st.lists(letters, unique=True), st.sets(letters, max_size=2), st.booleans()), min_size=1, max_size=6
)


@given(boots)
def test_no_name_means_two_gpus_and_a_held_one_never_another(boots):
    names = Names()
    for present, holders, unreadable in boots:
        inventory = machine(*((letter, minor) for minor, letter in enumerate(present)))
        if unreadable:
            inventory = replace(inventory, unreadable=(UnreadableGpu(9, None, ""),))
        held = {names.by_gpu[uuid] for letter in holders if (uuid := f"GPU-{letter}") in names.by_gpu}
        held_by = {name: names.gpu(name) for name in held}
        kept = {gpu.uuid: names.by_gpu[gpu.uuid] for gpu in inventory.gpus if gpu.uuid in names.by_gpu}
        names = name_all(names, inventory, held)
        assert len(set(names.by_gpu.values())) == len(names.by_gpu)
        assert all(gpu.uuid in names.by_gpu for gpu in inventory.gpus)
        assert held_by.items() <= {name: uuid for uuid, name in names.by_gpu.items()}.items()
        assert kept.items() <= names.by_gpu.items()


def test_a_machine_without_minors_is_named_by_index():
    inventory = machines.inventory([machines.Slot()])
    gpus: tuple[Gpu, ...] = tuple(replace(gpu, minor=None) for gpu in inventory.gpus)
    assert name_all(Names(), replace(inventory, gpus=gpus), None).by_gpu == {gpus[0].uuid: "gpu-0"}


def test_names_outlive_the_process(file: Path):
    names = name_all(Names(), machine(("a", 1), ("b", 0)), None)
    assert load(file) == (Names(), "")
    save(file, names)
    again, trouble = load(file)
    assert (dict(again.by_gpu), trouble) == ({"GPU-a": "gpu-1", "GPU-b": "gpu-0"}, "")
    assert [path.name for path in file.parent.iterdir()] == ["names.json"]
    save(file, Names())
    assert load(file) == (Names(), "")


@pytest.mark.parametrize("content", [b"", b'{"format":1,"names":{"a"', b"[]", b'{"format":1}', b"\xff"])
def test_a_file_that_makes_no_sense_is_put_aside_and_said(file: Path, content: bytes):
    file.parent.mkdir()
    file.write_bytes(content)
    names, trouble = load(file)
    assert names == Names()
    assert str(file) in trouble
    assert file.with_name("names.json.unreadable").read_bytes() == content
    assert load(file) == (Names(), "")


def test_a_later_format_is_read_for_what_it_has(file: Path):
    file.parent.mkdir()
    file.write_text('{"format": 9, "names": {"GPU-a": "gpu-5"}, "later": [1]}')
    names, trouble = load(file)
    assert (names.by_gpu, trouble) == ({"GPU-a": "gpu-5"}, "")


def test_a_name_that_stands_there_twice_is_one_gpus(file: Path):
    file.parent.mkdir()
    file.write_text('{"format": 1, "names": {"GPU-a": "gpu-5", "GPU-b": "gpu-5", "GPU-c": "gpu-1"}}')
    names, trouble = load(file)
    assert sorted(names.by_gpu.values()) == ["gpu-1", "gpu-5"]
    assert "two GPUs" in trouble


def test_a_disk_that_does_not_let_us_is_said(tmp_path: Path):
    (tmp_path / "state").write_text("a file")
    with pytest.raises(CheckpointError, match="cannot be written"):
        save(tmp_path / "state" / "names.json", Names())
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(tmp_path)


def test_two_instances_that_write_at_once_do_not_disturb_each_other(file: Path, monkeypatch: pytest.MonkeyPatch):
    ours, theirs = (name_all(Names(), machine(*gpus), None) for gpus in ([("a", 0), ("b", 1)], [("a", 0)]))
    synced, others = os.fsync, [theirs]

    def fsync(descriptor: int) -> None:
        synced(descriptor)
        if others:
            save(file, others.pop())

    monkeypatch.setattr(os, "fsync", fsync)
    save(file, ours)
    assert load(file) == (ours, "")
    assert [path.name for path in file.parent.iterdir()] == ["names.json"]


def test_names_that_cannot_be_put_in_place_leave_nothing_behind(file: Path):
    file.mkdir(parents=True)
    with pytest.raises(CheckpointError, match="cannot be written"):
        save(file, Names())
    assert [path.name for path in file.parent.iterdir()] == ["names.json"]


def test_of_two_that_say_a_name_the_first_counts():
    pairs = [("GPU-a", "gpu-3"), ("GPU-a", "gpu-0"), ("GPU-b", "gpu-3"), ("GPU-b", "gpu-1")]
    assert adopt_pairs(Names(), pairs).by_gpu == {"GPU-a": "gpu-3", "GPU-b": "gpu-1"}
