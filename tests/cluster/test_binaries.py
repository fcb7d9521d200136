"""The build cache: what the cluster runs is made of exactly what is pinned, and appears whole."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from onenode.binaries import GO_FOLDER, build_once, is_whole, key
from onenode.errors import BuildError

MADE = "cluster-0123456789abcdef"


def compile_one(into: Path, _say) -> None:
    (into / "program").write_bytes(b"machine code")
    (into / "alias").symlink_to("program")


def refuse(_into: Path, _say) -> None:
    raise AssertionError("built again")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "k8s").mkdir()
    (tmp_path / "k8s" / "main.go").write_text("package main")
    (tmp_path / "k8s" / "go.mod").write_text("module test")
    return tmp_path


def test_key_is_the_same_for_the_same_bytes_whenever_they_were_written(source: Path):
    before = key(source, go_version="go1")
    (source / "k8s" / "main.go").touch()
    assert key(source, go_version="go1") == before


@pytest.mark.parametrize("change", ["content", "name", "new file", "another Go"])
def test_key_changes_with_what_the_binaries_are_made_of(source: Path, change: str):
    before = key(source, go_version="go1")
    match change:
        case "content":
            (source / "k8s" / "go.mod").write_text("module other")
        case "name":
            (source / "k8s" / "main.go").rename(source / "k8s" / "start.go")
        case "new file":
            (source / "k8s" / "go.sum").write_text("")
    assert key(source, go_version="go2" if change == "another Go" else "go1") != before


def test_whole_build_is_used_again(tmp_path: Path):
    made = build_once(tmp_path, MADE, compile_one, print)
    assert made == tmp_path / MADE
    assert build_once(tmp_path, MADE, refuse, print) == made


@pytest.mark.parametrize("damage", ["program cut short", "program gone", "alias gone", "no manifest", "manifest cut"])
def test_damaged_build_is_made_again(tmp_path: Path, damage: str):
    made = build_once(tmp_path, MADE, compile_one, print)
    match damage:
        case "program cut short":
            (made / "bin" / "program").write_bytes(b"mach")
        case "program gone":
            (made / "bin" / "program").unlink()
        case "alias gone":
            (made / "bin" / "alias").unlink()
        case "no manifest":
            (made / "manifest.json").unlink()
        case "manifest cut":
            (made / "manifest.json").write_text('{"prog')
    assert not is_whole(made)
    build_once(tmp_path, MADE, compile_one, print)
    assert is_whole(made)
    assert (made / "bin" / "alias").read_bytes() == b"machine code"


def test_failed_build_leaves_nothing_that_looks_built(tmp_path: Path):
    def half(into: Path, _say) -> None:
        (into / "program").write_bytes(b"mach")
        raise BuildError("k8s", "no space left on device")

    with pytest.raises(BuildError):
        build_once(tmp_path, MADE, half, print)
    assert not (tmp_path / MADE).exists()
    build_once(tmp_path, MADE, compile_one, print)
    assert [path.name for path in tmp_path.glob("cluster-*")] == sorted({MADE, "cluster.lock"} - {"cluster.lock"})


def test_two_builders_at_once_build_once(tmp_path: Path):
    builds, said = [], []
    waiting = threading.Event()

    def slow(into: Path, say) -> None:
        builds.append(into)
        assert waiting.wait(30)
        compile_one(into, say)

    def hear(text: str) -> None:
        said.append(text)
        waiting.set()

    builders = [threading.Thread(target=build_once, args=(tmp_path, MADE, slow, hear)) for _ in range(2)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join(30)
    assert len(builds) == 1
    assert said == ["another process builds the cluster's binaries: waiting for it"]
    assert is_whole(tmp_path / MADE)


def test_check_lists_a_thing_and_its_remedy_a_line(tmp_path: Path):
    script = Path(__file__).parent / "build.py"
    done = subprocess.run(
        [sys.executable, script, "--check"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "no Go: install Go 1.21 or newer from https://go.dev/dl" in done.stdout.splitlines()


def test_pinned_modules_are_there():
    assert {
        "k8s/go.mod",
        "k8s/go.sum",
        "k8s/main.go",
        "containerd/go.mod",
        "containerd/go.sum",
        "containerd/tools.go",
    } == {str(path.relative_to(GO_FOLDER)) for path in GO_FOLDER.rglob("*") if path.is_file()}
