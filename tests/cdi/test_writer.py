"""Documents reach the disk whole or not at all, and nothing of others is touched."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cdi_facts import driver_root, gpu

from cdi import writer
from cdi.build import build
from cdi.names import CLAIM_PREFIX, claim_file_name
from cdi.spec import Spec, encode
from cdi.validate import decode
from cdi.writer import Published, prune, publish, write
from gpuplugin.errors import CdiInvalid, CdiUnwritable

NAME = "gpuplugin.io-gpu.json"
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


def spec(gpus: int = 1) -> Spec:
    built = build([gpu(index) for index in range(gpus)], driver_root(gpus))
    assert built.spec is not None
    return built.spec


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_document_is_published_readable_for_all(tmp_path: Path) -> None:
    folder = tmp_path / "run/cdi"
    mask = os.umask(0o077)
    try:
        assert publish(folder, [spec()]) == Published((folder / NAME,), ())
    finally:
        os.umask(mask)
    assert stat.S_IMODE((folder / NAME).stat().st_mode) == 0o644
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert decode((folder / NAME).read_bytes()) == spec()
    assert names(folder) == [NAME]


def test_what_is_there_already_is_not_written_again(tmp_path: Path) -> None:
    publish(tmp_path, [spec()])
    before = (tmp_path / NAME).stat()
    assert publish(tmp_path, [spec()]) == Published((), ())
    after = (tmp_path / NAME).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize("spoil", ["content", "mode", "link", "gone"])
def test_what_somebody_changed_is_put_right(tmp_path: Path, spoil: str) -> None:
    publish(tmp_path, [spec()])
    path = tmp_path / NAME
    if spoil == "content":
        path.write_bytes(path.read_bytes().replace(b"0.3.0", b"0.4.0"))
    elif spoil == "mode":
        path.chmod(0o600)
    else:
        path.unlink()
    if spoil == "link":
        (tmp_path / "target").write_bytes(encode(spec()))
        path.symlink_to("target")
    assert publish(tmp_path, [spec()]).written == (path,)
    assert stat.S_ISREG(path.lstat().st_mode)
    assert path.read_bytes() == encode(spec())


def test_only_our_own_stale_files_are_removed(tmp_path: Path) -> None:
    kept = ["nvidia.json", "gpuplugin.io.yaml", "gpuplugin.io-gpu.yaml", "other-gpuplugin.io-gpu.json", ".hidden.tmp"]
    for name in [*kept, "gpuplugin.io-old.json", ".gpuplugin.io-gpu.json.1.tmp", ".gpuplugin.io-gpu.json.2.tmp"]:
        (tmp_path / name).write_text("x")
    os.utime(tmp_path / ".gpuplugin.io-gpu.json.1.tmp", (time.time() - 100,) * 2)
    (tmp_path / "gpuplugin.io-folder.json").mkdir()
    assert publish(tmp_path, [spec()]).pruned == (tmp_path / "gpuplugin.io-old.json",)
    assert names(tmp_path) == sorted([*kept, NAME, ".gpuplugin.io-gpu.json.2.tmp", "gpuplugin.io-folder.json"])


def test_files_of_claims_are_spared_unless_they_are_meant(tmp_path: Path) -> None:
    claims = [claim_file_name("1a"), claim_file_name("2b")]
    for name in claims:
        write(tmp_path, name, encode(spec()))
    temporary = tmp_path / f".{claims[0]}.1.tmp"
    temporary.touch()
    os.utime(temporary, (0, 0))
    assert publish(tmp_path, [spec()]).pruned == ()
    assert names(tmp_path) == sorted([NAME, *claims, temporary.name])
    assert prune(tmp_path, claims[:1], CLAIM_PREFIX) == (tmp_path / claims[1],)
    assert names(tmp_path) == sorted([NAME, claims[0]])


def test_no_device_left_means_no_document_left(tmp_path: Path) -> None:
    publish(tmp_path, [spec()])
    assert publish(tmp_path, []) == Published((), (tmp_path / NAME,))
    assert prune(tmp_path / "missing", ()) == ()


def test_a_document_that_runtimes_would_refuse_is_never_written(tmp_path: Path) -> None:
    publish(tmp_path, [spec()])
    with pytest.raises(CdiInvalid, match=r"gpuplugin\.io-gpu\.json: devices: "):
        publish(tmp_path, [Spec(version="0.3.0", kind="gpuplugin.io/gpu", devices=())])
    assert decode((tmp_path / NAME).read_bytes()) == spec()


@pytest.mark.parametrize("step", ["open", "write", "fchmod", "fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_a_failing_step_leaves_the_old_document_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, code: int
) -> None:
    publish(tmp_path, [spec()])

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(writer.os, step, fail)
        with pytest.raises(CdiUnwritable, match=os.strerror(code)) as caught:
            write(tmp_path, NAME, encode(spec(2)))
    assert caught.value.path == tmp_path / NAME
    assert names(tmp_path) == [NAME]
    assert decode((tmp_path / NAME).read_bytes()) == spec()
    assert publish(tmp_path, [spec(2)]).written == (tmp_path / NAME,)


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(writer.os, "write", lambda descriptor, data: real(descriptor, bytes(data[:7])))
    write(tmp_path, NAME, encode(spec()))
    assert (tmp_path / NAME).read_bytes() == encode(spec())


@pytest.mark.parametrize(
    ("place", "advice"),
    [("file/cdi", "stands in the place of a folder"), ("file", "stands in the place of a folder")],
)
def test_a_file_in_the_place_of_the_folder_is_told(tmp_path: Path, place: str, advice: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CdiUnwritable, match=advice):
        publish(tmp_path / place, [spec()])


def test_a_folder_in_the_place_of_the_file_is_told(tmp_path: Path) -> None:
    (tmp_path / NAME / "full").mkdir(parents=True)
    with pytest.raises(CdiUnwritable, match="stands in the place of the file"):
        publish(tmp_path, [spec()])
    assert names(tmp_path) == [NAME]


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of one page and a bit."""
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8k", "none", tmp_path], check=False, capture_output=True
    )
    if mount.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mount.stderr.decode().strip()}")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


@ROOT_ONLY
def test_a_full_disk_leaves_the_old_document(tiny: Path) -> None:
    publish(tiny, [spec()])
    with pytest.raises(CdiUnwritable, match="No space left on device; free space"):
        write(tiny, NAME, b"x" * 20_000)
    assert names(tiny) == [NAME]
    assert decode((tiny / NAME).read_bytes()) == spec()


@ROOT_ONLY
def test_a_read_only_file_system_is_told(tiny: Path) -> None:
    publish(tiny, [spec()])
    subprocess.run(["mount", "-o", "remount,ro", tiny], check=True)
    assert publish(tiny, [spec()]) == Published((), ())
    with pytest.raises(CdiUnwritable, match="Read-only file system; mount the host's folder"):
        publish(tiny, [spec(2)])
    assert decode((tiny / NAME).read_bytes()) == spec()


KILLED = """
import os, signal, sys
from pathlib import Path
from cdi import writer
step, when, folder, name = sys.argv[1:]
real = getattr(os, step)
def last(*arguments, **options):
    if when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    real(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(os, step, last)
writer.write(Path(folder), name, sys.stdin.buffer.read())
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_kill_at_any_step_leaves_one_whole_document(tmp_path: Path, step: str, when: str) -> None:
    publish(tmp_path, [spec()])
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, step, when, str(tmp_path), NAME],
        input=encode(spec(2)),
        check=False,
        cwd=Path(writer.__file__).parents[1],
    )
    assert killed.returncode == -signal.SIGKILL
    renamed = (step, when) == ("replace", "after")
    assert decode((tmp_path / NAME).read_bytes()) == spec(2 if renamed else 1)
    assert [name for name in names(tmp_path) if name.endswith((".json", ".yaml"))] == [NAME]
    assert len(names(tmp_path)) == (1 if renamed else 2)
    for left in tmp_path.glob(".*.tmp"):
        os.utime(left, (0, 0))
    publish(tmp_path, [spec(2)])
    assert names(tmp_path) == [NAME]
