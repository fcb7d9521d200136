"""A Go program is built once for each content of its folder, whatever its time stamps say."""

from __future__ import annotations

import os
import threading

import pytest

from tests.gocheck.build import GoBuildError, GoMissingError, build

FAKE_GO = """#!/bin/sh
case "$1" in
version) cat "{home}/version" ;;
build)
    echo built >> "{home}/builds"
    if test -e "{home}/broken"; then echo "main.go:1: undefined: nonsense" >&2; exit 1; fi
    while test "$1" != -o; do shift; done
    cat main.go > "$2" ;;
esac
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Where the fake Go keeps what it says and what it was asked."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "go").write_text(FAKE_GO.format(home=home))
    (home / "go").chmod(0o755)
    (home / "version").write_text("go version go1.99 linux/amd64\n")
    monkeypatch.setenv("PATH", str(home), prepend=os.pathsep)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return home


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "wire"
    folder.mkdir()
    for name in ("main.go", "go.mod", "go.sum"):
        (folder / name).write_text(f"content of {name}\n")
    return folder


def builds(home) -> int:
    return len((home / "builds").read_text().splitlines())


def test_same_content_is_built_once(home, folder):
    first = build(folder)
    os.utime(folder / "main.go", (1, 1))
    assert build(folder) == first
    assert builds(home) == 1
    assert first.read_text() == "content of main.go\n"


@pytest.mark.parametrize("changed", ["main.go", "go.mod", "go.sum", "inner/more.go"])
def test_other_content_is_built_anew(home, folder, changed):
    first = build(folder)
    (folder / changed).parent.mkdir(exist_ok=True)
    (folder / changed).write_text("other content\n")
    os.utime(folder / changed, (1, 1))
    assert build(folder) != first
    assert builds(home) == 2


def test_another_go_builds_anew(home, folder):
    first = build(folder)
    (home / "version").write_text("go version go1.100 linux/amd64\n")
    assert build(folder) != first


def test_a_file_that_go_does_not_read_changes_nothing(home, folder):
    first = build(folder)
    (folder / "README.md").write_text("about\n")
    assert build(folder) == first


def test_many_at_once_share_one_build(home, folder):
    found = []
    threads = [threading.Thread(target=lambda: found.append(build(folder))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert builds(home) == 1


def test_failure_tells_the_compilers_words_and_is_not_kept(home, folder, tmp_path):
    (home / "broken").touch()
    with pytest.raises(GoBuildError, match="undefined: nonsense"):
        build(folder)
    assert [path.name for path in (tmp_path / "cache" / "gpuplugin").iterdir()] == ["build.lock"]
    (home / "broken").unlink()
    assert build(folder).exists()


def test_missing_go_is_told_apart(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GoMissingError, match="wire cannot be built"):
        build(folder)
