"""CRI-O's, podman's and Docker's files."""

import pytest

from gpuplugin.errors import RuntimeConfigRefused
from gpuplugin.runtime import crio, docker, podman
from gpuplugin.runtime.document import Source
from gpuplugin.runtime.support import DEFAULT_FOLDERS, Version

OURS = ("/var/run/cdi",)
CRIO = """\
[crio]
log_dir = "/var/log/crio/pods"

# The CRI-O runtime table
[crio.runtime]
# cdi_spec_dirs = [ "/etc/cdi" ]
default_runtime = "crun"
"""


def test_crio_always_has_cdi_and_the_usual_folders():
    decision = crio.decide([Source(crio.MAIN, CRIO)], OURS)
    assert (decision.enabled, decision.folders, decision.edits) == (True, DEFAULT_FOLDERS, ())


def test_crio_gets_a_drop_in_with_all_folders():
    site = Source(crio.DROP_INS / "10-site.conf", '[crio.runtime]\ncdi_spec_dirs = ["/etc/cdi"]\n')
    decision = crio.decide([Source(crio.MAIN, CRIO), site], OURS)
    assert decision.folders == ("/etc/cdi",)
    assert [(edit.path, edit.before, edit.after) for edit in decision.edits] == [
        (crio.OURS, None, '[crio.runtime]\ncdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]\n')
    ]
    ours = Source(crio.OURS, decision.edits[0].after)
    assert crio.decide([Source(crio.MAIN, CRIO), site, ours], OURS).edits == ()


@pytest.mark.parametrize("name", ["zz.conf", "99-gpuplugin.conf.bak", "99-z/site"])
def test_crios_drop_in_that_is_read_after_ours_is_edited_itself(name):
    last = Source(crio.DROP_INS / name, '[crio.runtime]\n# why\ncdi_spec_dirs = ["/etc/cdi"]\n')
    (edit,) = crio.decide([Source(crio.MAIN, CRIO), last], OURS).edits
    assert edit.path == last.path
    assert edit.after == last.text.replace('["/etc/cdi"]', '["/etc/cdi", "/var/run/cdi"]')


def test_an_own_drop_in_of_before_is_extended():
    ours = Source(crio.OURS, '[crio.runtime]\ncdi_spec_dirs = ["/etc/cdi"]\n')
    (edit,) = crio.decide([ours], OURS).edits
    assert (edit.path, edit.before) == (crio.OURS, ours.text)


def test_a_broken_drop_in_is_refused_with_its_line():
    broken = Source(crio.DROP_INS / "10-site.conf", "[crio.runtime]\ncdi_spec_dirs = \n")
    with pytest.raises(RuntimeConfigRefused) as refused:
        crio.decide([broken], OURS)
    assert (refused.value.path, refused.value.line) == (broken.path, 2)


@pytest.mark.parametrize(
    ("release", "folders", "edited"),
    [
        (Version(4, 3, 1), DEFAULT_FOLDERS, False),
        (Version(5, 0, 3), DEFAULT_FOLDERS, False),
        (Version(5, 1, 0), ("/etc/cdi",), True),
        (None, ("/etc/cdi",), True),
    ],
)
def test_podman_looks_in_etc_alone_since_5_1(release, folders, edited):
    decision = podman.decide([Source(podman.SHIPPED, "[engine]\n#cdi_spec_dirs = []\n")], release, OURS)
    assert (decision.enabled, decision.folders) == (True, folders)
    assert [edit.path for edit in decision.edits] == ([podman.OURS] if edited else [])
    for edit in decision.edits:
        assert edit.after == '[engine]\ncdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]\n'


def test_an_old_podman_cannot_be_made_to_look_elsewhere():
    with pytest.raises(RuntimeConfigRefused, match=r"podman 4\.3\.1 looks in /etc/cdi and /var/run/cdi only"):
        podman.decide([], Version(4, 3, 1), ("/srv/cdi",))


@pytest.mark.parametrize(
    ("text", "release", "enabled", "edited"),
    [
        (None, None, None, True),
        (None, Version(25, 0, 0), False, True),
        (None, Version(29, 0, 0), True, False),
        ('{"features": {"cdi": false}}', Version(29, 0, 0), False, True),
        ('{"features": {"cdi": true}}', Version(25, 0, 0), True, False),
    ],
)
def test_docker_is_switched_on_by_a_feature(text, release, enabled, edited):
    decision = docker.decide(Source(docker.MAIN, text), release, OURS)
    assert decision.enabled is enabled
    assert bool(decision.edits) is edited
    for edit in decision.edits:
        assert docker.decide(Source(docker.MAIN, edit.after), release, OURS).edits == ()


def test_docker_gets_its_folders_too():
    text = '{\n  "log-driver": "journald",\n  "cdi-spec-dirs": ["/etc/cdi"]\n}\n'
    (edit,) = docker.decide(Source(docker.MAIN, text), None, OURS).edits
    assert edit.reasons == ("switch CDI on", "look for CDI documents in /var/run/cdi too")
    assert edit.after == (
        '{\n  "log-driver": "journald",\n  "cdi-spec-dirs": ["/etc/cdi", "/var/run/cdi"],\n'
        '  "features": {\n    "cdi": true\n  }\n}\n'
    )


def test_a_docker_without_cdi_is_not_configured():
    with pytest.raises(RuntimeConfigRefused, match=r"Docker 24\.0\.9 has no CDI"):
        docker.decide(Source(docker.MAIN, "{}"), Version(24, 0, 9), OURS)
