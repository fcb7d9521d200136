"""Written so that nothing is lost: atomic, backed up, mode and owner kept, never through a link to elsewhere."""

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuplugin.errors import RuntimeConfigRefused
from gpuplugin.runtime.document import Edit
from gpuplugin.runtime.files import HostFiles

CONFIG = Path("/etc/containerd/config.toml")
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def files(tmp_path):
    root = tmp_path / "host"
    (root / "etc/containerd").mkdir(parents=True)
    return HostFiles(root)


def put(files, path, text):
    here = files.root / path.relative_to("/")
    here.parent.mkdir(parents=True, exist_ok=True)
    here.write_text(text)
    return here


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_what_was_there_is_kept_beside_it(files):
    here = put(files, CONFIG, "old")
    written = files.write(Edit(CONFIG, "old", "new", ()), NOW)
    assert written.backup == CONFIG.with_name("config.toml.gpuplugin-backup-20260102T030405Z")
    assert (here.read_text(), files.read(written.backup).text) == ("new", "old")
    assert len(names(here.parent)) == 2


def test_a_backup_is_never_written_over(files):
    here = put(files, CONFIG, "one")
    files.write(Edit(CONFIG, "one", "two", ()), NOW)
    second = files.write(Edit(CONFIG, "two", "three", ()), NOW)
    assert second.backup.name.endswith("Z-2")
    assert files.read(second.backup).text == "two"
    assert len(names(here.parent)) == 3


def test_mode_and_owner_stay(files):
    here = put(files, CONFIG, "old")
    here.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(here, 12, 34)
    before = here.stat()
    backup = files.here(files.write(Edit(CONFIG, "old", "new", ()), NOW).backup)
    for path in (here, backup):
        after = path.stat()
        assert (stat.S_IMODE(after.st_mode), after.st_uid, after.st_gid) == (0o640, before.st_uid, before.st_gid)


def test_a_new_file_comes_with_its_folder_and_can_be_read_by_all(files):
    path = Path("/etc/crio/crio.conf.d/99-gpuplugin.conf")
    assert files.write(Edit(path, None, "new", ()), NOW).backup is None
    assert stat.S_IMODE(files.here(path).stat().st_mode) == 0o644
    assert stat.S_IMODE(files.here(path.parent).stat().st_mode) == 0o755


def test_no_backup_is_left_where_it_would_be_read_as_configuration(files):
    path = Path("/etc/crio/crio.conf.d/99-gpuplugin.conf")
    put(files, path, "old")
    written = files.write(Edit(path, "old", "new", ()), NOW)
    assert written.backup.parent == Path("/etc/crio")
    assert names(files.here(path.parent)) == [path.name]


def test_what_somebody_else_changed_meanwhile_is_not_lost(files):
    here = put(files, CONFIG, "theirs")
    with pytest.raises(RuntimeConfigRefused, match="changed since it was read"):
        files.write(Edit(CONFIG, "old", "new", ()), NOW)
    assert (here.read_text(), names(here.parent)) == ("theirs", [CONFIG.name])


def test_a_link_in_the_same_tree_is_followed_and_stays_a_link(files):
    here = files.root / "etc/containerd/config.toml"
    here.symlink_to("/etc/containerd/site.toml")  # the host's /etc, not ours
    put(files, Path("/etc/containerd/site.toml"), "old")
    files.write(Edit(CONFIG, "old", "new", ()), NOW)
    assert here.is_symlink()
    assert (files.root / "etc/containerd/site.toml").read_text() == "new"


@pytest.mark.parametrize("link", ["/nix/store/x/config.toml", "../../nix/store/x/config.toml"])
def test_a_link_to_another_tree_is_left_alone(files, link):
    kept = put(files, Path("/nix/store/x/config.toml"), "old")
    (files.root / "etc/containerd/config.toml").symlink_to(link)
    assert files.read(CONFIG).text == "old"
    with pytest.raises(RuntimeConfigRefused, match=r"it is a link to /nix/store/x/config\.toml"):
        files.write(Edit(CONFIG, "old", "new", ()), NOW)
    assert (kept.read_text(), names(kept.parent)) == ("old", ["config.toml"])


def test_no_link_leads_out_of_the_mounted_root(files):
    (files.root / "etc/containerd/config.toml").symlink_to("../../../../../../etc/hostname")
    assert files.here(CONFIG) == files.root / "etc/hostname"


def test_links_in_a_circle_are_refused(files):
    (files.root / "etc/containerd/config.toml").symlink_to("config.toml")
    with pytest.raises(RuntimeConfigRefused, match="circle"):
        files.read(CONFIG)


def test_what_is_no_text_is_refused(files):
    put(files, CONFIG, "").write_bytes(b"version = 2\n\xff")
    with pytest.raises(RuntimeConfigRefused, match="not UTF-8 text at byte 12"):
        files.read(CONFIG)


def test_a_folder_in_the_place_of_the_file_is_refused(files):
    (files.root / "etc/containerd/config.toml").mkdir()
    with pytest.raises(RuntimeConfigRefused, match="Is a directory"):
        files.read(CONFIG)


def test_patterns_find_files_by_name_and_pass_over_folders(files):
    for name in ("20.toml", "10.toml", "README"):
        put(files, CONFIG.with_name(name), "")
    (files.root / "etc/containerd/30.toml").mkdir()
    assert files.matching(CONFIG.with_name("*.toml")) == [CONFIG.with_name("10.toml"), CONFIG.with_name("20.toml")]
    assert files.matching(CONFIG) == [CONFIG]
    assert files.matching(Path("/none/*.toml")) == []
    assert files.matching(Path("/etc/*/1?.toml")) == [CONFIG.with_name("10.toml")]


def test_a_drop_in_folder_is_read_with_its_subfolders_whatever_the_names(files):
    folder = Path("/etc/crio/crio.conf.d")
    paths = [folder / name for name in ("10-a.conf", "20/x", "20/y.bak", "30")]
    for path in paths:
        put(files, path, "")
    assert files.below(folder) == paths
    assert files.below(Path("/none")) == []
