"""containerd's files: which one decides, what they say, and the edit, by release and layout."""

from pathlib import Path

import pytest

from gpuplugin.errors import RuntimeConfigRefused
from gpuplugin.runtime import toml_edit
from gpuplugin.runtime.containerd import decide
from gpuplugin.runtime.document import Source
from gpuplugin.runtime.support import DEFAULT_FOLDERS, Version

MAIN = Path("/etc/containerd/config.toml")
DROP_IN = Path("/etc/containerd/conf.d/50-site.toml")
OURS = ("/var/run/cdi",)
V17, V21, V24 = Version(1, 7, 27), Version(2, 1, 4), Version(2, 4, 2)
CRI2, CRI3 = "[plugins.'io.containerd.grpc.v1.cri']\n", "[plugins.'io.containerd.cri.v1.runtime']\n"

KUBEADM = """\
# written by the installer, do not lose the cgroup driver
version = 2
root = "/var/lib/containerd"

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = "registry.k8s.io/pause:3.9"
    cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
    enable_cdi = false  # until we have devices

    [plugins."io.containerd.grpc.v1.cri".containerd]
      default_runtime_name = "nvidia"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
        runtime_type = "io.containerd.runc.v2"
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
          BinaryName = "/usr/bin/nvidia-container-runtime"
          SystemdCgroup = true
"""


def one(text, release, wanted=OURS):
    return decide([Source(MAIN, text)], release, wanted)


def test_an_installers_file_for_1_7_changes_by_one_word():
    decision = one(KUBEADM, V17)
    assert decision.enabled is False
    assert [edit.after for edit in decision.edits] == [KUBEADM.replace("enable_cdi = false", "enable_cdi = true")]
    assert decision.edits[0].reasons == ("switch CDI on",)
    assert one(decision.edits[0].after, V17).edits == ()


STATES = [
    pytest.param("version = 2\n", V17, False, True, id="1.7: off by default"),
    pytest.param("version = 2\n" + CRI2 + "enable_cdi = true\n", V17, True, False, id="1.7: switched on"),
    pytest.param("version = 2\n", None, None, True, id="layout 2, release not known: set it, right for both"),
    pytest.param("version = 2\n", V21, True, False, id="2.x on layout 2: on by default"),
    pytest.param("version = 3\n", None, True, False, id="layout 3: on by default"),
    pytest.param("version = 3\n" + CRI3 + "enable_cdi = false\n", V21, False, True, id="2.1: switched off"),
    pytest.param("version = 3\n" + CRI3 + "enable_cdi = false\n", V24, True, False, id="2.4: no longer a switch"),
    pytest.param("version = 4\n", V24, True, False, id="layout 4"),
    pytest.param(None, V17, False, True, id="1.7 without a file"),
    pytest.param(None, V24, True, False, id="2.4 without a file"),
    pytest.param("# nothing yet\n", V17, False, True, id="1.7 with comments only"),
]


@pytest.mark.parametrize(("text", "release", "enabled", "edited"), STATES)
def test_the_default_is_the_releases(text, release, enabled, edited):
    decision = one(text, release)
    assert decision.enabled is enabled
    assert decision.folders == DEFAULT_FOLDERS
    assert bool(decision.edits) is edited
    for edit in decision.edits:
        again = one(edit.after, release)
        assert (again.enabled, again.edits) == (True, ())
        assert edit.after.splitlines()[0] == (text or "version = 2").splitlines()[0]


@pytest.mark.parametrize("version", ["3", "4"])
def test_a_folder_is_added_after_those_there(version):
    text = f"version = {version}\n{CRI3}cdi_spec_dirs = ['/etc/cdi'] # mine\n"
    decision = one(text, V24)
    assert decision.folders == ("/etc/cdi",)
    assert decision.edits[0].after == text.replace("['/etc/cdi']", "['/etc/cdi', \"/var/run/cdi\"]")


def test_run_and_var_run_are_one_folder():
    assert one(f"version = 3\n{CRI3}cdi_spec_dirs = ['/run/cdi/']\n", V24).edits == ()


def test_a_folder_of_ones_own_is_added_to_the_default():
    decision = one("version = 3\n", V24, ("/srv/cdi",))
    document = toml_edit.read(MAIN, decision.edits[0].after)
    assert document["plugins"]["io.containerd.cri.v1.runtime"] == {"cdi_spec_dirs": [*DEFAULT_FOLDERS, "/srv/cdi"]}


def two(main, drop_in, release):
    return decide([Source(MAIN, main), Source(DROP_IN, drop_in)], release, OURS)


def test_on_1_7_the_imported_section_is_edited_since_it_replaces_the_main_ones():
    main, drop_in = "version = 2\n" + CRI2 + "enable_cdi = true\n", "version = 2\n" + CRI2 + "enable_selinux = true\n"
    decision = two(main, drop_in, V17)
    assert decision.enabled is False
    assert [(edit.path, edit.after) for edit in decision.edits] == [(DROP_IN, drop_in + "enable_cdi = true\n")]
    assert decision.notes == (
        f"containerd 1.7.27 takes the CRI settings of {DROP_IN} alone and leaves out those of {MAIN}",
    )


def test_on_2_x_each_key_counts_where_it_stands_last():
    main = "version = 3\n" + CRI3 + "enable_cdi = false\n"
    decision = two(main, "version = 3\n" + CRI3 + "cdi_spec_dirs = []\n", V21)
    assert (decision.enabled, decision.folders) == (False, ())
    assert [edit.path for edit in decision.edits] == [MAIN, DROP_IN]
    assert decision.edits[0].after == main.replace("false", "true")
    assert 'cdi_spec_dirs = ["/var/run/cdi"]' in decision.edits[1].after


def test_an_import_of_another_layout_is_read_as_its_own():
    decision = two("version = 3\n", "version = 2\n" + CRI2 + "enable_cdi = false\n", V21)
    assert [edit.path for edit in decision.edits] == [DROP_IN]


def test_an_import_without_version_has_the_main_files():
    decision = two("version = 2\n", CRI2 + "x = 1\n", V17)
    assert [(edit.path, edit.after) for edit in decision.edits] == [(DROP_IN, CRI2 + "x = 1\nenable_cdi = true\n")]


REFUSED = [
    ("version = 5\n", "version is 5, known are 2, 3, 4", 1),
    ("# old\nversion = 1\n", "version is 1", 2),
    ("version = true\n", "version is True", 1),
    ("[plugins.cri]\n", "no `version`", None),
    ('\ndisabled_plugins = ["cri"]\n', "serves no Kubernetes", 2),
    ("version = 2\n[plugins\n", "not TOML", 2),
    ("version = 2\n" + CRI2 + "enable_cdi = 'yes'\n", "enable_cdi is 'yes', allowed is true or false", 3),
    ("version = 2\n" + CRI2 + "cdi_spec_dirs = '/x'\n", "allowed is a list of folders", 3),
]


@pytest.mark.parametrize(("text", "why", "line"), REFUSED)
def test_what_is_not_understood_is_left_alone(text, why, line):
    with pytest.raises(RuntimeConfigRefused, match=why) as refused:
        one(text, V17)
    assert (refused.value.path, refused.value.line) == (MAIN, line)
    assert "nothing was changed" in str(refused.value)


def test_a_containerd_without_cdi_is_not_configured():
    with pytest.raises(RuntimeConfigRefused, match=r"containerd 1\.6\.20 has no CDI.*Update to containerd 1\.7"):
        one("version = 2\n", Version(1, 6, 20))
