"""A real containerd 1.7: off, configured, restarted, on. Its build takes minutes, so only in `make test-more`."""

import os
import tempfile
from pathlib import Path

import pytest

from gpuplugin.__main__ import main
from tests.gocheck.build import build
from tests.runtime.lone_containerd import LoneContainerd

CRI = "io.containerd.grpc.v1.cri"

pytestmark = [
    pytest.mark.go,
    pytest.mark.skipif(
        os.environ.get("GPUPLUGIN_TEST_MORE") != "1", reason="builds containerd 1.7, minutes: make test-more does it"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="containerd needs root"),
]


@pytest.fixture
def containerd():
    with tempfile.TemporaryDirectory(prefix="gpuplugin-") as folder:  # a socket's path must be short
        yield LoneContainerd(build(Path(__file__).parent / "containerd17"), Path(folder), 2, CRI)


def runtime(verb, containerd):
    return main(["runtime", verb, f"--socket={containerd.socket}", f"--config={containerd.config}"])


def test_off_configured_restarted_on(containerd):
    containerd.append("enable_cdi = false\nenable_selinux = false # keep\n")
    before = containerd.config.read_text()
    with containerd.running() as status:
        assert (status.release[:2], status.cdi) == ((1, 7), False)
        assert runtime("check", containerd) == 1
        assert runtime("configure", containerd) == 0
        assert runtime("check", containerd) == 1  # it still runs with what it read
    assert containerd.config.read_text() == before.replace("enable_cdi = false", "enable_cdi = true")
    with containerd.running() as status:
        assert status.cdi is True
        assert runtime("check", containerd) == 0


def test_an_imported_section_replaces_the_main_files_which_is_why_ours_is_no_drop_in(containerd):
    containerd.append("enable_cdi = true\nsandbox_image = 'kept'\n")
    drop_in = containerd.folder / "drop-in.toml"
    drop_in.write_text(f"version = 2\n[plugins.'{CRI}']\ncdi_spec_dirs = ['/etc/cdi']\n")
    containerd.config.write_text(f"imports = ['{drop_in}']\n" + containerd.config.read_text())
    assert 'sandbox_image = "kept"' not in containerd.dump()
    assert "enable_cdi = false" in containerd.dump()
    with containerd.running():
        assert runtime("configure", containerd) == 0
    assert "enable_cdi = true" in containerd.dump()
    assert 'cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]' in containerd.dump()
