"""Other files that stand in our documents' way are told, and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cdi_documents import documents
from hypothesis import given
from hypothesis import strategies as st

from cdi.conflicts import conflicts, read_as_runtimes
from cdi.names import KIND
from gpuplugin.errors import CdiInvalid

OURS = "gpuplugin.io-gpu.json"
NAMES = ("GPU-a", "GPU-b", "GPU-c", "GPU-d", "GPU-e")


def document(kind: str = KIND, names: tuple[str, ...] = ("GPU-a",)) -> dict[str, Any]:
    devices = [{"name": name, "containerEdits": {"env": ["A=1"]}} for name in names]
    return {"cdiVersion": "0.3.0", "kind": kind, "devices": devices}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path, Path]:
    found = tuple(tmp_path / name for name in ("etc", "run", "late"))
    for folder in found:
        folder.mkdir()
    return found  # type: ignore[return-value]


def told(folders: tuple[Path, Path, Path]) -> list[str]:
    return list(conflicts(folders, folders[1] / OURS, KIND, NAMES))


def test_harmless_neighbours_are_not_mentioned(folders: tuple[Path, Path, Path]) -> None:
    (folders[1] / OURS).write_text("our own, whatever is in it")
    (folders[1] / "nvidia.json").write_text(json.dumps(document("nvidia.com/gpu")))
    (folders[1] / "others.json").write_text(json.dumps(document(names=("GPU-z",))))
    (folders[1] / "notes.txt").write_text("{")
    (folders[1] / "folder.json").mkdir()
    assert told(folders) == []
    assert conflicts([folders[0] / "missing"], folders[1] / OURS, KIND, NAMES) == ()


@pytest.mark.parametrize(
    ("place", "says"),
    [(0, "is hidden by|are hidden by those of"), (1, "which disables them for runtimes"), (2, "are taken in place of")],
)
def test_a_second_definition_is_told_with_what_it_does(folders: tuple[Path, Path, Path], place: int, says: str) -> None:
    path = folders[place] / "copy.json"
    path.write_text(json.dumps(document(names=NAMES)))
    (text,) = told(folders)
    assert text.startswith(f"{path}: ")
    assert any(words in text for words in says.split("|"))
    assert "gpuplugin.io/gpu=GPU-a, gpuplugin.io/gpu=GPU-b, gpuplugin.io/gpu=GPU-c and 2 more; remove" in text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b"\xff\xfe\x00",
        b"kind: a/b",
        json.dumps(document() | {"cdiVersion": "0.2.0"}).encode(),
        b"[" * 9999,
    ],
)
def test_what_runtimes_cannot_read_is_told(folders: tuple[Path, Path, Path], content: bytes) -> None:
    (folders[0] / "bad.yaml").write_bytes(content)
    (text,) = told(folders)
    assert text.startswith(f"{folders[0] / 'bad.yaml'}: ")
    assert text.endswith("; runtimes ignore the whole file")


def test_a_dangling_link_is_left_alone(folders: tuple[Path, Path, Path]) -> None:
    (folders[0] / "gone.json").symlink_to("nowhere")
    assert told(folders) == []


def test_yaml_is_read_as_runtimes_do() -> None:
    spec = read_as_runtimes(
        b"""---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
annotations: null
containerEdits:
devices:
- name: 0
  containerEdits:
    env:
    deviceNodes:
    - {path: /dev/nvidia0, major: 195, fileMode: 438}
""",
        "here",
    )
    assert spec.devices[0].name == "0"
    assert spec.devices[0].container_edits.device_nodes[0].major == 195


@given(st.binary())
def test_bytes_never_crash_the_reader(content: bytes) -> None:
    with pytest.raises(CdiInvalid):
        read_as_runtimes(content, "here")


@given(documents())
def test_documents_read_alike_from_json(raw: dict[str, Any]) -> None:
    try:
        spec = read_as_runtimes(json.dumps(raw).encode(), "here")
    except CdiInvalid:
        return
    assert len(spec.devices) == len(raw["devices"])
