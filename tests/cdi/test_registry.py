"""The folders of documents, judged as runtimes judge them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cdi_facts import driver_root, gpu, mig_gpu, with_capabilities

from cdi.build import Options, build
from cdi.conflicts import read_as_runtimes
from cdi.names import Naming
from cdi.registry import read, read_files
from cdi.spec import ContainerEdits, Device, Spec, encode
from cdi.yamltext import encode_yaml


def write(path: Path, *names: str, kind: str = "nvidia.com/gpu") -> Path:
    devices = tuple(Device(name=name, container_edits=ContainerEdits(env=("A=1",))) for name in names)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encode(Spec(version="0.5.0", kind=kind, devices=devices)))
    return path


def test_a_later_folder_wins_and_one_folder_must_agree_with_itself(tmp_path: Path) -> None:
    early, late = tmp_path / "etc", tmp_path / "run"
    write(early / "a.json", "0", "1", "2")
    write(early / "b.yaml", "1", "3", "4")
    winner = write(late / "a.json", "0")
    twice = [write(late / f"{name}.json", "3") for name in ("x", "y")]
    write(late / "ignored.txt", "9")
    found = read([early, late, late, tmp_path / "missing"])
    assert dict(found.devices) == {
        "nvidia.com/gpu=0": winner,
        "nvidia.com/gpu=2": early / "a.json",
        "nvidia.com/gpu=4": early / "b.yaml",
    }
    assert found.problems == (
        f"nvidia.com/gpu=1: defined by {early}/a.json and {early}/b.yaml, which disables it; remove all but one",
        f"nvidia.com/gpu=3: defined by {twice[0]} and {twice[1]}, which disables it; remove all but one",
    )


def test_a_broken_file_is_told_and_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    good = write(tmp_path / "good.json", "0")
    found = read([tmp_path])
    assert list(found.specs) == [good]
    assert len(found.problems) == 1
    assert "broken.json" in found.problems[0]
    assert "No such file" in read_files([tmp_path / "gone.json"]).problems[0]


def test_a_folder_that_cannot_be_read_is_told_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, good = tmp_path / "closed", write(tmp_path / "open/a.json", "0")
    closed.mkdir()
    listed = Path.iterdir

    def iterdir(path: Path) -> Iterator[Path]:
        if path == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    found = read([closed, good.parent])
    assert list(found.specs) == [good]
    assert found.problems == (f"{closed}: Permission denied; what is in it is not known",)


@pytest.mark.parametrize("namings", [(Naming.INDEX,), tuple(Naming)])
def test_yaml_says_the_same_as_json(namings: tuple[Naming, ...]) -> None:
    gpus = [gpu(0), *(mig_gpu(index) for index in range(1, 12))]
    root = with_capabilities(driver_root(12, "/alt"), *gpus)
    spec = build(gpus, root, "nvidia.com/gpu", Options(namings=namings, everything=True)).spec
    assert spec is not None
    assert read_as_runtimes(encode_yaml(spec), "yaml") == read_as_runtimes(encode(spec), "json") == spec
    assert encode_yaml(spec).startswith(b"---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\n")


def test_yaml_keeps_texts_that_look_like_something_else() -> None:
    odd = ["0:0", "1:30", "0x1", "1e3", "010", "1_0", "on", "12:30:45", "1.0"]
    devices = tuple(Device(name=name, container_edits=ContainerEdits(env=(f"A={name}",))) for name in odd)
    spec = Spec(version="0.6.0", kind="a/b", devices=devices, annotations={"a": "yes", "b": "1"})
    assert read_as_runtimes(encode_yaml(spec), "yaml") == spec
